package hint

// Reply is everything that one provider answered to one request. Without
// answers the request does not concern the provider.
type Reply struct {
	Provider string
	Answers  []ResourceAnswer
}

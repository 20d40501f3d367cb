// Package monitor serves the metrics of a node's programs on an address of the node, to those who may read them.
//
// The connection is TLS with a certificate from files, which are read again when they change. A caller has a token of the cluster. The API
// server says whose it is (TokenReview), and whether that user may get the path (SubjectAccessReview). Decisions are kept for a minute.
// Tokens that no decision is known for cost at most a few reviews each second, and at a time. A review of one token delays no answer to the
// owner of another one.
//
// The paths are /metrics for the metrics of this program, and /metrics/NAME for those of another program, which are read from its unix
// socket. Nothing else is served. The package does not know what the programs count.
package monitor

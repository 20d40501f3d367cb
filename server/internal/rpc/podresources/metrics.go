package podresources

// Metric is the name of a counter as the kubelet has it, so that dashboards keep
// working.
type Metric string

// The counters. The kubelet registers two more, for errors of List and of
// GetAllocatableResources, which cannot fail.
const (
	// Requests counts every call.
	Requests Metric = "kubelet_pod_resources_endpoint_requests_total"
	// ListRequests, GetRequests and AllocatableRequests count the calls of v1 by
	// method.
	ListRequests        Metric = "kubelet_pod_resources_endpoint_requests_list"
	GetRequests         Metric = "kubelet_pod_resources_endpoint_requests_get"
	AllocatableRequests Metric = "kubelet_pod_resources_endpoint_requests_get_allocatable"
	// ListErrors and AllocatableErrors are always 0.
	ListErrors        Metric = "kubelet_pod_resources_endpoint_errors_list"
	AllocatableErrors Metric = "kubelet_pod_resources_endpoint_errors_get_allocatable"
	// GetErrors counts calls of Get for a pod that is not there.
	GetErrors Metric = "kubelet_pod_resources_endpoint_errors_get"
)

// VersionLabel is the only label of the counters; its values are Versions.
const VersionLabel = "server_api_version"

// The versions of the protocol.
const (
	V1       = "v1"
	V1Alpha1 = "v1alpha1"
)

// Metrics lists the counters.
func Metrics() []Metric {
	return []Metric{
		Requests, ListRequests, GetRequests, AllocatableRequests,
		ListErrors, AllocatableErrors, GetErrors,
	}
}

// Counter counts calls.
type Counter interface {
	// Count raises a counter by one for a version of the protocol.
	Count(m Metric, version string)
}

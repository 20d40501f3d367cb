package berth

import (
	"cmp"
	"context"
	"crypto/rand"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
)

// Resize requests other amounts of cpu and memory for an admitted pod. Like Admit it fills in an admission id and the owner of
// Options, and repeats the call with the same admission id while berthd is unavailable.
func (c *Client) Resize(ctx context.Context, req *admissionv1.ResizeRequest) (*admissionv1.ResizeResponse, error) {
	req = proto.CloneOf(req)
	req.AdmissionId, req.Owner = cmp.Or(req.GetAdmissionId(), rand.Text()), cmp.Or(req.GetOwner(), c.owner)
	return retried(ctx, c, func() (*admissionv1.ResizeResponse, error) { return c.Admission().Resize(ctx, req) })
}

// ResizeTo returns the request that gives an admitted pod the cpu and memory of a specification. The rest of the specification
// is not compared. A request that is missing where a limit is given equals the limit, as the API server would have stored it.
func ResizeTo(pod *typesv1.Pod) *admissionv1.ResizeRequest {
	req := &admissionv1.ResizeRequest{PodUid: pod.GetMetadata().GetUid(), QosClass: classes[pod.GetStatus().GetQosClass()]}
	spec := pod.GetSpec()
	for _, c := range slices.Concat(spec.GetInitContainers(), spec.GetContainers()) {
		resources := resizable(c.GetResources())
		for name, limit := range resources.GetLimits() {
			if _, given := resources.GetRequests()[name]; !given {
				resources.Requests[name] = limit
			}
		}
		if resources != nil {
			req.Containers = append(req.Containers, &admissionv1.ContainerResources{ContainerName: c.GetName(), Resources: resources})
		}
	}
	req.Resources = resizable(spec.GetResources())
	return req
}

// classes are the classes with their names in Kubernetes.
var classes = map[string]typesv1.QOSClass{
	"Guaranteed": typesv1.QOSClass_QOS_CLASS_GUARANTEED,
	"Burstable":  typesv1.QOSClass_QOS_CLASS_BURSTABLE,
	"BestEffort": typesv1.QOSClass_QOS_CLASS_BEST_EFFORT,
}

// resizable returns the amounts that may change; nil if there are none.
func resizable(r *typesv1.ResourceRequirements) *typesv1.ResourceRequirements {
	only := func(amounts map[string]string) map[string]string {
		out := maps.Clone(amounts)
		maps.DeleteFunc(out, func(name, _ string) bool { return name != "cpu" && name != "memory" })
		if out == nil {
			out = map[string]string{}
		}
		return out
	}
	out := &typesv1.ResourceRequirements{Requests: only(r.GetRequests()), Limits: only(r.GetLimits())}
	if len(out.GetRequests())+len(out.GetLimits()) == 0 {
		return nil
	}
	return out
}

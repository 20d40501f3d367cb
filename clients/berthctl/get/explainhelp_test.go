package get_test

import (
	"bytes"
	"testing"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/clients/berthctl/get"
	"github.com/berthd/berth/clients/internal/command"
)

// TestExplainHelp: on a kubelet's node each suggestion has what carries it out.
func TestExplainHelp(t *testing.T) {
	t.Parallel()
	trace := &typesv1.Trace{Suggestions: []*typesv1.Suggestion{
		{Kind: typesv1.SuggestionKind_SUGGESTION_KIND_REQUEST, Text: "with less", Requests: []*typesv1.RequestChange{
			{ContainerName: "app", Resource: "cpu", Current: 5, Proposed: 4},
			{ContainerName: "app", Resource: "memory", Current: 2 << 30, Proposed: 1 << 30},
			{Resource: "hugepages-2Mi", Current: 4 << 20, Proposed: 2 << 20},
			{ContainerName: "side", Resource: "example.com/gpu", Current: 1},
		}},
		{Kind: typesv1.SuggestionKind_SUGGESTION_KIND_POLICY, Text: "with a policy", Policy: "restricted", Scope: "pod"},
		{Kind: typesv1.SuggestionKind_SUGGESTION_KIND_REMOVAL, Text: "without pods", RemovePodUids: []string{"u-1", "u-2"}},
	}}
	const berths = `
it would fit
  with less, or
  with a policy, or
  without pods
`
	const restart = "    systemctl restart kubelet   # after this change of its configuration; it admits the pods that run again, " +
		"and ends one that does not fit (kubernetes#123859)\n"
	const kubelets = `
it would fit
  with less, or
    without example.com/gpu   # in resources of container side
    resources: {limits: {cpu: "4", memory: "1Gi"}, requests: {cpu: "4", memory: "1Gi"}}   # container app; keep what else is there
    resources: {limits: {hugepages-2Mi: "2Mi"}, requests: {hugepages-2Mi: "2Mi"}}   # the pod's own; keep what else is there
  with a policy, or
    topologyManagerPolicy: restricted
    topologyManagerScope: pod
` + restart + `  without pods
    kubectl delete pod -n shop web
    kubectl get pods -A -o json | jq -r '.items[].metadata | select(.uid == "u-2")'
`
	for root, want := range map[string]string{"": berths, "/": kubelets} {
		var out bytes.Buffer
		get.ExplainHelp(&command.Ctl{Kubelet: root}, &out, trace, command.Names{"u-1": "shop/web"})
		if out.String() != want {
			t.Errorf("--kubelet=%s: got\n%s\nwant\n%s", root, out.String(), want)
		}
	}
}

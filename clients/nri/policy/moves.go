package policy

import (
	"fmt"

	"github.com/containerd/nri/pkg/api"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
)

// movesAnnotation of a pod limits how much its containers may be disturbed by moves to other NUMA
// nodes, where a kubelet's resize is not possible on the nodes that they have. Without it, they do not move.
const movesAnnotation = "nri.berthd.github.io/max-move-disruption"

// moveLimits are the values of movesAnnotation.
var moveLimits = map[string]admissionv1.Disruption{
	"none":        admissionv1.Disruption_DISRUPTION_NONE,
	"move-cpus":   admissionv1.Disruption_DISRUPTION_MOVE_CPUS,
	"move-memory": admissionv1.Disruption_DISRUPTION_MOVE_MEMORY,
}

// maxMove reads movesAnnotation. A value that is not valid allows no move.
func maxMove(pod *api.PodSandbox) (admissionv1.Disruption, error) {
	text, given := pod.GetAnnotations()[movesAnnotation]
	if !given {
		return admissionv1.Disruption_DISRUPTION_NONE, nil
	}
	d, known := moveLimits[text]
	if !known {
		return admissionv1.Disruption_DISRUPTION_NONE,
			fmt.Errorf("annotation %s is %.40q: expected none, move-cpus or move-memory; the containers do not move to other NUMA nodes",
				movesAnnotation, text)
	}
	return d, nil
}

// moveHelp names what would allow the move without which a resize was refused; empty if there is none.
func moveHelp(answer *admissionv1.ResizeResponse) string {
	for text, d := range moveLimits {
		if d == answer.GetMoveDisruption() {
			return fmt.Sprintf("; it would move with the annotation %s: %s, which is read when a pod starts", movesAnnotation, text)
		}
	}
	return ""
}

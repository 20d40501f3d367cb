package admission

import (
	"fmt"

	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/workload"
)

// Record returns the record of a pod without claims: completed, valid, with its class and
// digest. The notes describe what was completed; what names the operation in an error.
// Errors are of class Invalid. The class is computed, so that a pod that is sent again with
// its status is the same pod.
func (e *Engine) Record(sent workload.Pod, what string) (record *ledger.Pod, notes []string, err error) {
	pod, notes := workload.Defaulted(sent, e.Features)
	if err := workload.Validate(&pod, e.Bounds); err != nil {
		return nil, nil, err
	}
	pod.QoS = pod.QoSClass(e.Features)
	digest, err := pod.Digest()
	if err != nil {
		return nil, nil, fmt.Errorf("%s pod %s: %w", what, &pod, err)
	}
	return &ledger.Pod{Pod: pod, Digest: digest, QoS: pod.QoS, AdmittedAt: e.Now()}, notes, nil
}

package kubelet

import (
	"encoding/json"

	"github.com/berthd/berth/managers/errdefs"
)

// The kinds of allocated_pods_state and actuated_pods_state, which have the pods that the kubelet has admitted and their amounts. They are
// only read.
const (
	Allocated Kind = "allocated"
	Actuated  Kind = "actuated"
)

// CheckAmounts returns why a kubelet would not start with allocated_pods_state or actuated_pods_state. Errors are of class Invalid: no
// JSON object, a checksum that does not fit, no list or object of pods (Kubernetes 1.33 to 1.38, pkg/kubelet/allocation/state).
func CheckAmounts(data []byte) error {
	var file struct {
		Data     string `json:"data"`
		Checksum uint64 `json:"checksum"`
	}
	if err := json.Unmarshal(data, &file); err != nil {
		return misread(err)
	}
	if sum := checksum("(string)" + file.Data); file.Checksum != sum {
		return wrongChecksum(file.Checksum, sum)
	}
	var inner struct {
		Pods    []byte                     `json:"podList"` // from Kubernetes 1.38 on
		Entries map[string]json.RawMessage `json:"entries"`
	}
	if err := json.Unmarshal([]byte(file.Data), &inner); err != nil {
		return errdefs.Invalidf("data: %w", misread(err))
	}
	return nil
}

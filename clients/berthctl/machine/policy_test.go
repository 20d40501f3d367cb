package machine

import (
	"strings"
	"testing"

	topologyv1 "github.com/berthd/berth/api/berth/topology/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
)

// TestReservedOfPolicyNone: CPU policy none keeps no CPU from containers, and the settings say so beside the list.
func TestReservedOfPolicyNone(t *testing.T) {
	t.Parallel()
	for policy, want := range map[string]string{"none": "0,8 (CPU policy none uses only their number, 2)\n", "static": "0,8\n"} {
		p := &topologyv1.PolicySettings{CpuPolicy: policy, ReservedCpus: &typesv1.CPUSet{List: "0,8"}}
		if got := settingsFields(p).String(); !strings.HasSuffix(got, want) {
			t.Errorf("%s: %q, want %q at its end", policy, got, want)
		}
	}
}

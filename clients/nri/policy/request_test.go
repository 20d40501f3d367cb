package policy

import (
	"reflect"
	"testing"

	"github.com/containerd/nri/pkg/api"

	"github.com/berthd/berth/managers/workload"
)

func TestQoS(t *testing.T) {
	t.Parallel()
	for parent, want := range map[string]string{
		"/kubepods/pod1f":                      "Guaranteed",
		"/kubepods/burstable/pod1f":            "Burstable",
		"/kubepods/besteffort/pod1f":           "BestEffort",
		"/kubelet/kubepods/pod1f":              "Guaranteed",
		"/kubepods.slice/kubepods-pod1f.slice": "Guaranteed",
		"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1f.slice": "Burstable",
		"kubepods-besteffort-pod1f.slice":                                         "BestEffort",
		"/kubepods/podburstable":                                                  "Guaranteed",
		"/machine/pod1f":                                                          "",
		"":                                                                        "",
	} {
		if got := qosOf(parent); got != want {
			t.Errorf("%q: %q, want %q", parent, got, want)
		}
	}
}

// TestWithoutClaims: what the kubelet adds to limits for claims is subtracted where there is a limit.
func TestWithoutClaims(t *testing.T) {
	t.Parallel()
	m := &member{claimUse: claimUse{added: map[workload.Resource]int64{workload.CPU: 1500, workload.Memory: gib, "hugepages-2Mi": 8 << 20}}}
	resources := func(milli, memory int64, pages uint64) *api.LinuxResources {
		r := size(100, milli, memory)
		r.Cpu.Period = api.UInt64(uint64(50_000)) // cpuCFSQuotaPeriod of the kubelet
		r.Cpu.Quota = api.Int64(milli * 50)
		r.HugepageLimits = []*api.HugepageLimit{{PageSize: "2MB", Limit: pages}, {PageSize: "1GB", Limit: gib}}
		return r
	}
	for name, row := range map[string]struct{ has, want *api.LinuxResources }{
		"with limits":    {resources(1600, 3*gib, 12<<20), resources(100, 2*gib, 4<<20)},
		"without limits": {resources(-1, -1, 8<<20), resources(-1, -1, 0)},
		"the pod's":      {resources(1000, gib/2, 1<<20), resources(1000, gib/2, 0)},
	} {
		before := row.has.Copy()
		if got := m.without(row.has); !reflect.DeepEqual(got, row.want) {
			t.Errorf("%s: %v, want %v", name, got, row.want)
		}
		if !reflect.DeepEqual(row.has, before) {
			t.Errorf("%s: the runtime's resources have become %v", name, row.has)
		}
	}
}

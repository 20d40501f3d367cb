package policy

import (
	"testing"

	"github.com/containerd/nri/pkg/api"
)

// TestStrangeUIDHoldsUpNobody: berthd refuses a list of living pods with a uid that is none. Such a pod of the runtime must not keep what
// others have left from being released.
func TestStrangeUIDHoldsUpNobody(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	e := newEngine(t, Config{Client: d.Client})
	job := pod("job", "guaranteed")
	e.run(job, container(job, "main", "job-1", 2000, gib))
	e.renew(Config{Client: d.Client})
	if _, err := e.policy.Synchronize(t.Context(), []*api.PodSandbox{pod("../../etc", "burstable"), {Id: "x"}}, nil); err != nil {
		t.Fatal(err)
	}
	if left := d.uids(); len(left) > 0 {
		t.Errorf("berthd still has %v", left)
	}
}

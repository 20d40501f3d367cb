package policy

import (
	"os"
	"slices"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
)

// loseLedger starts berthd again without its ledger. The claim records are left.
func (d *daemon) loseLedger() {
	d.t.Helper()
	d.stop()
	if err := os.RemoveAll(d.config.StateDir); err != nil {
		d.t.Fatal(err)
	}
	d.again()
}

// TestClaimRecordsKeepPlaces: berthd has lost its ledger and has the claim records, and berth-nri starts again at the same time. It learns
// from berthd how the pods were admitted: each keeps its CPUs, is admitted in the form that it had, and once. There are CPUs free that a
// pod would get that is planned anew.
func TestClaimRecordsKeepPlaces(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		whole bool
		// late means that the kubelet does not have the specification at first.
		late bool
		// counted is the size that berthd counts when it loses the ledger; the container runs with 2000m. 0 for the same.
		counted int64
		// wanted are the CPUs that the kubelet's specification has then, as of a resize that is to come; empty for 2.
		wanted string
		uid    string
	}{
		"by itself":             {uid: "job-uid.main"},
		"by itself, other size": {counted: 3000, uid: "job-uid.main"},
		"whole":                 {whole: true, uid: "job-uid"},
		"whole, known later":    {whole: true, late: true, uid: "job-uid"},
		"whole, other size":     {whole: true, counted: 3000, wanted: "3", uid: "job-uid"},
		"whole, to be resized":  {whole: true, wanted: "3", uid: "job-uid"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := startBerthd(t)
			kubelet := &knows{active: []string{"first-uid", "job-uid"}}
			if test.whole {
				kubelet.pods = map[string]*typesv1.Pod{"job-uid": specOf("job", "2")}
			}
			config := Config{Client: d.Client, Kubelet: kubelet}
			e := newEngine(t, config)
			first, job := pod("first", "guaranteed"), pod("job", "guaranteed")
			f, c := container(first, "main", "first-1", 2000, gib), container(job, "main", "job-1", 2000, gib)
			e.run(first, f)
			if err := e.policy.RunPodSandbox(t.Context(), job); err != nil {
				t.Fatal(err)
			}
			had := e.run(job, c)
			e.stop(first, f)
			e.end(first)
			e.pushes(2)
			if test.wanted != "" {
				kubelet.pods["job-uid"] = specOf("job", test.wanted)
			}
			if test.counted != 0 {
				// Berthd agrees, and the runtime fails to carry it out.
				if _, err := e.policy.UpdateContainer(t.Context(), job, c, size(test.counted, test.counted, 0)); err != nil {
					t.Fatal(err)
				}
			}
			c.Linux.Resources.Cpu.Cpus = had
			d.loseLedger()

			specs := kubelet.pods
			if test.late {
				kubelet.pods = nil
			}
			e.renew(config)
			updates, err := e.policy.Synchronize(t.Context(), []*api.PodSandbox{job}, []*api.Container{c})
			if err != nil {
				t.Fatal(err)
			}
			e.apply(updates)
			e.pushes(2)
			if got := e.on("job-1"); got != had {
				t.Errorf("the container ran on CPUs %s, and is moved to %s", had, got)
			}
			kubelet.pods = specs
			e.policy.Now = func() time.Time { return time.Now().Add(compareInterval) }
			e.pushes(3)
			if got := d.uids(); !slices.Equal(got, []string{test.uid}) {
				t.Errorf("berthd has %v, want %s", got, test.uid)
			}
			if got := e.on("job-1"); got != had {
				t.Errorf("the container ran on CPUs %s, and is moved to %s after all", had, got)
			}
			d.expect("after the ledger was lost", test.uid, "main", 2000, gib)
			next := pod("next", "guaranteed")
			if got := set(t, e.run(next, container(next, "main", "next-1", 2000, gib))); got.Overlaps(set(t, had)) {
				t.Errorf("another pod gets CPUs %s", got)
			}
		})
	}
}

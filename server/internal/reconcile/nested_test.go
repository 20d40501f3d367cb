package reconcile

import (
	"errors"
	"fmt"
	"testing"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/cgroup/memtree"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/placement"
	"github.com/berthd/berth/managers/workload"
)

func cpusetOf(set cpuset.Set) cgroup.Values { return cgroup.Values{Cpuset: cgroup.Cpuset{CPUs: set}} }

// A container that makes cgroups of its own, as docker in docker does, leaves CPUs from the
// innermost cgroup up: v1 narrows no cgroup below what is in it. It gets them back too.
func TestNestedCpusets(t *testing.T) {
	t.Parallel()
	for name, of := range map[string]func(*testing.T) (b *bench, path string){
		"of berth": func(t *testing.T) (*bench, string) {
			b := newBench(t, memtree.V1(), nil)
			b.admit("a", workload.Guaranteed, cpus(500))
			b.pass()
			path, err := b.startIn("a", "a1")
			b.must(err)
			return b, path
		},
		"of a runtime": func(t *testing.T) (*bench, string) {
			b, d := asked(t)
			d.start(t, "a1")
			b.must(b.Follow(t.Context()))
			return b, "/kubepods/poda/a1"
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, path := of(t)
			b.set(path+"/docker", cpusetOf(cpuset.Range(0, 3)))
			b.set(path+"/docker/all", cpusetOf(cpuset.Range(0, 3)))
			b.set(path+"/docker/some", cpusetOf(cpuset.Of(1, 2)))
			b.set(path+"/docker/there", cpusetOf(cpuset.Of(3)))
			want := func(list ...string) {
				t.Helper()
				for i, at := range []string{"", "/docker", "/docker/all", "/docker/some", "/docker/there"} {
					if got := b.seen(path + at).Values.CPUs.String(); got != list[i] {
						t.Errorf("%s has CPUs %s, want %s", at, got, list[i])
					}
				}
			}
			b.own()
			b.must(b.Follow(t.Context()))
			want("0-1", "0-1", "0-1", "1", "0-1")
			b.update(func(d *ledger.Draft) { d.RemovePod("own") })
			b.must(b.Follow(t.Context()))
			want("0-3", "0-3", "0-3", "1", "0-3")
			b.own()
			b.pass()
			want("0-1", "0-1", "0-1", "1", "0-1")
		})
	}
}

// A container whose CPUs cannot be written keeps those from their start who have CPUs of
// their own that it may be on, and no others.
func TestOneRefusalHoldsUpWhoNeedsItsCPUs(t *testing.T) {
	t.Parallel()
	b := newBench(t, memtree.V1(), nil)
	for _, uid := range []string{"a", "b"} {
		b.admit(uid, workload.Guaranteed, cpus(500))
	}
	b.pass()
	path, err := b.startIn("a", "a1")
	b.must(err)
	b.refuse[path] = errRefused
	b.give("own", "2-3")
	if _, err := b.startIn("own", "own1"); !errors.Is(err, errBlocked) || !errors.Is(err, errRefused) {
		t.Errorf("container a/c cannot be moved from CPUs 2-3: %v", err)
	}
	_, err = b.startIn("b", "b1") // shares
	b.must(err)
	delete(b.refuse, path)
	_, err = b.startIn("own", "own1")
	b.must(err)
}

// Where drift is reported only, a container that was moved stays there, and a start that
// has its own CPUs there does not start.
func TestReportedDriftIsInTheWay(t *testing.T) {
	t.Parallel()
	b := newBench(t, memtree.V1(), func(c *Config) { c.DriftPolicy = ReportDrift })
	b.admit("a", workload.Guaranteed, cpus(500))
	b.pass()
	path, err := b.startIn("a", "a1")
	b.must(err)
	b.give("own", "2-3")
	b.pass()
	b.set(path, cpusetOf(cpuset.Range(0, 3)))
	b.pass()
	if _, err := b.startIn("own", "own1"); !errors.Is(err, errBlocked) {
		t.Errorf("container a/c runs on CPUs 0-3: %v", err)
	}
	b.set(path, cpusetOf(cpuset.Range(0, 1)))
	_, err = b.startIn("own", "own1")
	b.must(err)
}

// give admits a pod with CPUs of its own.
func (b *bench) give(uid, list string) {
	b.t.Helper()
	b.update(func(d *ledger.Draft) { d.PutPod(exclusivePod(uid, list)) })
}

// A container that ends beside a pass that has begun before stays away: the pass does not
// make its cgroup again.
func TestPassBesideAnEnd(t *testing.T) {
	t.Parallel()
	for name, lacks := range map[string]bool{"its CPUs change": false, "its cgroup is missing": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, memtree.V1(), nil)
			b.admit("a", workload.Guaranteed, cpus(500))
			b.pass()
			path, err := b.startIn("a", "a1")
			b.must(err)
			bound, _ := b.ledger.View().Binding("a1")
			b.give("own", "2-3")
			if lacks {
				b.must(b.tree.Remove(t.Context(), cgroup.ParseCgroupfs(path)))
			}
			removed, ended := make(chan struct{}), make(chan error, 1)
			b.removing = func() error {
				defer close(removed)
				return b.tree.Remove(t.Context(), cgroup.ParseCgroupfs(path))
			}
			b.observed = func() {
				b.observed = nil
				go func() { ended <- b.RemoveContainer(t.Context(), bound) }()
				<-removed
				b.removing = nil
			}
			b.pass()
			b.must(<-ended)
			if got := b.seen(path).State; got != cgroup.Absent {
				t.Errorf("after the pass the cgroup is %s", got)
			}
			b.pass() // it is bound still, and so it is made again
			b.update(func(d *ledger.Draft) { d.Unbind("a1") })
			b.must(b.Follow(t.Context()))
			if got := b.seen(path).State; got != cgroup.Absent {
				t.Errorf("after its end the cgroup is %s", got)
			}
			if c, known := b.tracker.Get(placement.Key{Cgroup: path}); known {
				t.Errorf("after its end it is known still: %+v", c)
			}
			_, err = b.startIn("a", "a2")
			b.must(err)
			b.pass()
			if got := b.seen(path).State; got != cgroup.Valid {
				t.Errorf("it runs again, and its cgroup is %s", got)
			}
		})
	}
}

// The error names what a start waits for: which container, and why.
func TestBlockedStartsSayBywhom(t *testing.T) {
	t.Parallel()
	b, d := newFakeRuntime(t, memtree.V1())
	d.create("a1", "a", "0-3")
	b.must(b.prestart("a1", "a"))
	b.own()
	err := b.tryToStart(b.ledger.View(), admission.Start{Binding: box("own1", "own")})
	want := "clear the CPUs for own/c: CPUs 2-3 may be in use by container a/c, which is being started"
	if err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	// The view for people has the same, for as long as the start is requested.
	b.beginStart(ofID("own1"))
	_ = b.ensureContainer(t.Context(), b.ledger.View(), admission.Start{Binding: box("own1", "own")})
	known, err := b.Placements(t.Context(), "own")
	if err != nil || len(known) != 1 || known[0].Phase != placement.Planned || fmt.Sprint(known[0].BlockedBy) != "[{a c}]" ||
		!known[0].BlockedSince.Equal(b.clock()) {
		t.Errorf("known of pod own: %+v, %v", known, err)
	}
	if got := b.Phases(); got[placement.Planned] != 1 || got[placement.Created] != 1 {
		t.Errorf("phases %v", got)
	}
	b.endStart(ofID("own1"), "own1")
	if known, err := b.Placements(t.Context(), "own"); err != nil || len(known) > 0 {
		t.Errorf("nobody asks any more: %+v, %v", known, err)
	}
}

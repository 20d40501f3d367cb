package policy

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/workload"
)

// TestResizeMoves: berthd has NUMA nodes with CPUs 0-3 and 4-7. A container with CPU 1 is resized to 4
// CPUs, which only the other node has.
func TestResizeMoves(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		annotations map[string]string
		moves       bool
		refusal     string // a part of it
		log         string // a part of the warning
	}{
		"unset": {nil, false, "it would move with the annotation nri.berthd.github.io/max-move-disruption: move-cpus", ""},
		"none": {map[string]string{movesAnnotation: "none"}, false,
			"it would move with the annotation nri.berthd.github.io/max-move-disruption: move-cpus", ""},
		"wrong": {map[string]string{movesAnnotation: "Move-CPUs"}, false, "it would move with",
			`is \"Move-CPUs\": expected none, move-cpus or move-memory`},
		"CPUs":   {map[string]string{movesAnnotation: "move-cpus"}, true, "", ""},
		"memory": {map[string]string{movesAnnotation: "move-memory"}, true, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := startBerthd(t)
			var log bytes.Buffer
			e := newEngine(t, Config{Client: d.Client, Log: slog.New(slog.NewTextHandler(&log, nil))})
			p := pod("trainer", "guaranteed")
			p.Annotations = row.annotations
			c := container(p, "main", "trainer-1", 1000, gib)
			if own := e.run(p, c); !set(t, own).IsSubsetOf(cpuset.Of(1, 2, 3)) {
				t.Fatalf("the container is on %s", own)
			}
			_, err := e.resize(p, c, size(4000, 4000, 0))
			if row.moves {
				if err != nil {
					t.Fatal(err)
				}
				e.follow()
				eventually(t, "the container is on CPUs 4-7 only", func() bool { return e.on("trainer-1") == "4-7" })
				d.expect("moved", "trainer-uid.main", "main", 4000, gib)
				return
			}
			if err == nil || !strings.Contains(err.Error(), row.refusal) {
				t.Errorf("the resize: %v", err)
			}
			if got := log.String(); strings.Count(got, "an annotation of a pod is not valid") != strings.Count(row.log, "expected") ||
				!strings.Contains(got, row.log) {
				t.Errorf("the log: %s", got)
			}
			d.expect("refused", "trainer-uid.main", "main", 1000, gib)
		})
	}
}

// TestRestartMoves: a container that has ended is made again with more CPUs than its NUMA node has. It gets those of the other node
// although the pod allows no moves, because nothing runs that has to move: another container of the pod stays where it is. If that one
// had to move, or while the ended container has a process, the new one is refused.
func TestRestartMoves(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		scope  string
		second bool // another container runs
		hangs  bool // the process of the one that has ended is still there
		moves  bool
	}{
		"alone":               {scope: "container", moves: true},
		"beside another one":  {scope: "container", second: true, moves: true},
		"its process hangs":   {scope: "container", second: true, hangs: true},
		"alone, as a pod":     {scope: "pod", moves: true},
		"another one, as pod": {scope: "pod", second: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := startBerthdWith(t, func(c *config.Config) { c.Topology.Scope = row.scope })
			kubelet := &knows{pods: map[string]*typesv1.Pod{"job-uid": pairOf("job")}, active: []string{"job-uid"}}
			e := newEngine(t, Config{Client: d.Client, Kubelet: kubelet})
			job := pod("job", "guaranteed")
			if err := e.policy.RunPodSandbox(t.Context(), job); err != nil {
				t.Fatal(err)
			}
			c := container(job, "main", "job-1", 1000, gib)
			e.run(job, c)
			stays := ""
			if row.second {
				stays = e.run(job, container(job, "second", "job-2", 1000, gib))
			}
			if row.hangs {
				if _, err := e.policy.StopContainer(t.Context(), job, c); err != nil {
					t.Fatal(err)
				}
			} else {
				e.stop(job, c)
			}
			e.follow()
			kubelet.pods["job-uid"] = pairOf("job")
			kubelet.pods["job-uid"].Spec.Containers[0].Resources.Limits["cpu"] = "3"
			again := container(job, "main", "job-3", 3000, gib)
			_, err := e.create(job, again)
			if !row.moves {
				if err == nil || !strings.Contains(err.Error(), "does not allow the move") {
					t.Errorf("the container is made: %v", err)
				}
				d.expect("refused", "job-uid", "main", 1000, gib)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			for i := 0; e.start(job, again) != nil && i < 5; i++ {
				e.pushes(1)
			}
			eventually(t, "the container has three CPUs of the other node", func() bool {
				cpus := set(t, e.on("job-3"))
				return cpus.Len() == 3 && cpus.IsSubsetOf(cpuset.Range(4, 7))
			})
			if got := e.on("job-2"); got != stays {
				t.Errorf("the other container was on CPUs %s, and is on %s", stays, got)
			}
			d.expect("moved", "job-uid", "main", 3000, gib)
		})
	}
}

// TestMovablePods: berthd gets the annotation that allows moves of a pod, with and without its specification.
func TestMovablePods(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ text, want string }{{"anywhere", "anywhere"}, {"within-node", "within-node"}, {"", ""},
		{"Everywhere", ""}} {
		for _, known := range []bool{true, false} {
			d := startBerthd(t)
			var log bytes.Buffer
			kubelet := &knows{}
			uid := "trainer-uid.main"
			if known {
				kubelet.pods, uid = map[string]*typesv1.Pod{"trainer-uid": specOf("trainer", "1")}, "trainer-uid"
			}
			e := newEngine(t, Config{Client: d.Client, Kubelet: kubelet, Log: slog.New(slog.NewTextHandler(&log, nil))})
			p := pod("trainer", "guaranteed")
			p.Annotations = map[string]string{workload.MovableAnnotation: row.text}
			if err := e.policy.RunPodSandbox(t.Context(), p); err != nil {
				t.Fatal(err)
			}
			e.run(p, container(p, "main", "trainer-1", 1000, gib))
			got, err := d.Allocation().Get(t.Context(), &allocationv1.GetRequest{Subject: &allocationv1.GetRequest_PodUid{PodUid: uid}})
			if err != nil || got.GetSpec().GetMetadata().GetAnnotations()[workload.MovableAnnotation] != row.want {
				t.Errorf("%q: berthd has %v, %v", row.text, got.GetSpec().GetMetadata(), err)
			}
			if wrong := row.text != row.want; strings.Contains(log.String(), "expected never, within-node or anywhere") != wrong {
				t.Errorf("%q: the log: %s", row.text, log.String())
			}
		}
	}
}

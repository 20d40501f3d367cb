package policy

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
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

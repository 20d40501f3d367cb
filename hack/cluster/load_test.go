package cluster_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	fitv1 "github.com/berthd/berth/api/berth/fit/v1"
	"github.com/berthd/berth/clients/nri/publish"
	"github.com/berthd/berth/hack/cluster"
)

// loadVariable is "full" for the load of a large cluster: 5,000 nodes for five minutes.
const loadVariable = "BERTH_LOAD"

// load is how many nodes publish, and for how long one percent of them change every second.
type load struct {
	nodes int
	lasts time.Duration
}

// writer writes NodeResourceTopology objects as the service account of berth, each with a connection of its own, as berth-nri
// does.
type writer struct {
	*cluster.Cluster
	token string

	nodes []node

	mu     sync.Mutex // guards what is below
	took   []time.Duration
	failed []error
}

// node is one whose object is written, one write at a time.
type node struct {
	sync.Mutex
	// written counts the writes that the API server has confirmed. The object's amounts depend on it.
	written int
}

// object is that of a node of 8 NUMA nodes, with a number that its available amounts depend on.
func object(node string, number int) *publish.Object {
	free := &fitv1.FreeResources{
		TopologyPolicy: "single-numa-node", TopologyScope: "pod",
		PodsFingerprint: fmt.Sprintf("pfp0v001%016x", number),
	}
	for id := range uint32(8) {
		n := &fitv1.NUMANode{NumaNode: id, Distances: map[uint32]uint32{}}
		for to := range uint32(8) {
			n.Distances[to] = 12
		}
		for _, name := range []string{"cpu", "example.com/gpu", "example.com/nic", "hugepages-1Gi", "hugepages-2Mi", "memory"} {
			n.Resources = append(n.Resources, &fitv1.NodeResource{Resource: name, Capacity: 1 << 40, Allocatable: 1 << 40,
				Available: uint64(number), Aligned: true})
		}
		free.Nodes = append(free.Nodes, n)
	}
	return publish.New(node, nil, free, nil)
}

func nodeName(i int) string { return "node-" + strconv.Itoa(i) }

// write changes the object of a node when it is due, and notes how long it took since then.
func (w *writer) write(ctx context.Context, i int, due time.Time) {
	timer := time.NewTimer(time.Until(due))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return
	}
	n := &w.nodes[i]
	n.Lock()
	defer n.Unlock()
	err := w.apply(ctx, object(nodeName(i), n.written+1))
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.took = append(w.took, time.Since(due)); err != nil {
		w.failed = append(w.failed, err)
		return
	}
	n.written++
}

func (w *writer) apply(ctx context.Context, o *publish.Object) error {
	text, err := json.Marshal(o)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPatch,
		cluster.APIServer+publish.Path+"/"+o.Metadata.Name+"?fieldManager=berth-nri&force=true&fieldValidation=Strict",
		bytes.NewReader(text))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/apply-patch+yaml")
	req.Header.Set("Authorization", "Bearer "+w.token)
	req.Close = true
	answer, err := w.HTTP().Do(req)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	said, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode >= 300 {
		err = fmt.Errorf("%s: %.300s", answer.Status, said)
	}
	return err
}

// figures are percentiles of the writes since the last call.
func (w *writer) figures() (text string, p99 time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	slices.Sort(w.took)
	at := func(percent int) time.Duration {
		return w.took[min(len(w.took)*percent/100, len(w.took)-1)].Round(time.Millisecond)
	}
	text, p99 = fmt.Sprintf("%d writes, p50 %s, p99 %s, max %s, %d failed", len(w.took), at(50), at(99), at(100), len(w.failed)), at(99)
	w.took = nil
	return text, p99
}

// loadAverage is the average number of runnable processes in the last minute, including those of the test.
func loadAverage() string {
	text, _ := os.ReadFile("/proc/loadavg")
	first, _, _ := strings.Cut(string(text), " ")
	return first
}

// TestClusterTopologyLoad: every node of a cluster has a NodeResourceTopology object, and one percent of the nodes write theirs every
// second. No write is lost. The figures are in the log; the full load has limits for them.
func TestClusterTopologyLoad(t *testing.T) {
	cluster.Need(t) // before something is built for it
	l, full := load{nodes: 500, lasts: 10 * time.Second}, os.Getenv(loadVariable) == "full"
	if full {
		l = load{nodes: 5000, lasts: 5 * time.Minute}
	}
	built, err := programs.Dir()
	if err != nil {
		t.Fatal(err)
	}
	c := cluster.Run(t, cluster.Options{Image: filepath.Join(built, "probe")})
	must := func(args ...string) string {
		t.Helper()
		text, err := c.Kubectl(args...)
		if err != nil {
			t.Fatal(err, text)
		}
		return text
	}
	deploy, err := filepath.Abs("../../deploy/kubernetes")
	if err != nil {
		t.Fatal(err)
	}
	must("apply", "-k", filepath.Join(deploy, "crd"))
	must("apply", "-f", filepath.Join(deploy, "base", "namespace.yaml"), "-f", filepath.Join(deploy, "base", "rbac.yaml"), "-f",
		filepath.Join(deploy, "overlays", "node-resource-topology", "rbac.yaml"))
	must("wait", "--for=condition=Established", "--timeout=60s", "crd/noderesourcetopologies.topology.node.k8s.io")
	w := &writer{Cluster: c, nodes: make([]node, l.nodes), token: strings.TrimSpace(must("-n", "berth-system", "create", "token", "berth",
		"--duration=2h"))}
	c.Eventually("objects are served", func() bool { return w.apply(t.Context(), object("first", 1)) == nil })
	must("delete", "noderesourcetopology", "first")
	t.Logf("load average before: %s", loadAverage())

	// All nodes at once, as after an upgrade: each at a random moment of the spread.
	spread := publish.DefaultSpread
	if !full {
		spread = l.lasts
	}
	var writes sync.WaitGroup
	begin := time.Now()
	for i := range l.nodes {
		due := begin.Add(time.Duration(rand.Float64() * float64(spread)))
		writes.Go(func() { w.write(t.Context(), i, due) })
	}
	writes.Wait()
	text, _ := w.figures()
	t.Logf("%d nodes at once, spread over %s: %s; load average %s", l.nodes, spread, text, loadAverage())

	// One percent of the nodes every second.
	perSecond := l.nodes / 100
	begin = time.Now()
	for second := range int(l.lasts / time.Second) {
		for _, i := range rand.Perm(l.nodes)[:perSecond] {
			due := begin.Add(time.Duration(second)*time.Second + time.Duration(rand.Float64()*float64(time.Second)))
			writes.Go(func() { w.write(t.Context(), i, due) })
		}
	}
	writes.Wait()
	text, p99 := w.figures()
	t.Logf("%d writes a second for %s on %d objects: %s; load average %s", perSecond, l.lasts, l.nodes, text, loadAverage())
	if full && p99 > time.Second {
		t.Errorf("p99 of a server-side apply is %s, expected at most 1 s", p99)
	}
	if len(w.failed) > 0 {
		t.Errorf("%d writes failed: %v", len(w.failed), errors.Join(w.failed[:min(len(w.failed), 3)]...))
	}
	w.check(t)
}

// check compares each object with what was confirmed. The API server counts an object's changes, so a write that
// another one has replaced is not missed.
func (w *writer) check(t *testing.T) {
	t.Helper()
	type state struct {
		publish.Object
		Metadata struct {
			Name       string
			Generation int
		} `json:"metadata"`
	}
	var list struct{ Items []state }
	if err := w.Get(&list, "noderesourcetopologies"); err != nil {
		t.Fatal(err)
	}
	have := map[string]state{}
	for _, s := range list.Items {
		have[s.Metadata.Name] = s
	}
	lost := 0
	for i := range w.nodes {
		name, n := nodeName(i), w.nodes[i].written
		if h := have[name]; h.Metadata.Generation != n || publish.Compare(&h.Object, object(name, n)) != publish.Same {
			lost++
		}
	}
	if t.Logf("%d objects, %d lost updates", len(have), lost); lost > 0 || len(have) != len(w.nodes) {
		t.Errorf("%d of %d objects are not as they were written last", lost, len(w.nodes))
	}
}

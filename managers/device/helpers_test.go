package device

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/workload"
)

const (
	gpu = "example.com/gpu"
	nic = "example.com/nic"
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// parse reads devices as in "a@0 b@0+1 c odd@ bad@1!"; see hack/testing/script.
func parse(list string) []Device {
	var out []Device
	for text := range strings.FieldsSeq(list) {
		text, unhealthy := strings.CutSuffix(text, "!")
		id, nodes, topology := strings.Cut(text, "@")
		d := Device{ID: id, Healthy: !unhealthy, Topology: topology}
		mask, err := numa.Parse(strings.ReplaceAll(nodes, "+", ","))
		if err != nil {
			panic(err)
		}
		d.Nodes = mask
		out = append(out, d)
	}
	return out
}

// fakePlugins returns prepared answers and records its calls.
type fakePlugins struct {
	preferred      []string
	preferErr      error
	allocateErr    error
	asked          []string // "available | must | size"
	allocated      []string // ids joined by blanks
	beforeAllocate func()
}

func (f *fakePlugins) Preferred(_ context.Context, resource string, available, must []string, size int) ([]string, error) {
	f.asked = append(f.asked, strings.Join(available, " ")+" | "+strings.Join(must, " ")+" | "+string(rune('0'+size)))
	return f.preferred, f.preferErr
}

func (f *fakePlugins) Allocate(_ context.Context, resource string, ids []string) ([]byte, error) {
	if f.beforeAllocate != nil {
		f.beforeAllocate()
	}
	f.allocated = append(f.allocated, strings.Join(ids, " "))
	return []byte(strings.Join(ids, ",")), f.allocateErr
}

// bench is a manager beside a ledger on a machine.
type bench struct {
	*Manager
	t       ledgertest.T
	inv     *Inventory
	plugins *fakePlugins
	ledger  *ledger.Ledger
	draft   *ledger.Draft
}

func newBench(t ledgertest.T, shape string) *bench {
	inv, plugins := NewInventory(nil, epoch), &fakePlugins{}
	l := ledgertest.New(t, ledger.Rules{Machine: machinetest.Build(shape)})
	return &bench{New(inv, plugins), t, inv, plugins, l, ledger.NewDraft(l.View())}
}

// list registers a plugin and sends a list.
func (b *bench) list(resource, devices string, o Options) Session {
	b.t.Helper()
	s := b.inv.Registered(resource, o, epoch)
	if !b.inv.Listed(s, parse(devices), epoch) {
		b.t.Fatalf("list of %s was not taken", resource)
	}
	return s
}

// pod puts a pod with claims into the draft. Containers are "name", "init:name"
// or "sidecar:name", with their requests: "init:i gpu=2 nic=1".
func (b *bench) pod(uid string, containers ...string) *workload.Pod {
	b.t.Helper()
	var names []string
	var wants []workload.Quantities
	for _, c := range containers {
		fields := strings.Fields(c)
		names = append(names, fields[0])
		q := workload.Quantities{}
		for _, f := range fields[1:] {
			name, n, _ := strings.Cut(f, "=")
			q[workload.Resource("example.com/"+name)] = int64(n[0] - '0')
		}
		wants = append(wants, q)
	}
	record := ledgertest.Pod(uid, names...)
	for i := range wants {
		record.Pod.Containers[i].Limits = wants[i]
	}
	b.draft.PutPod(record)
	return &record.Pod
}

// hold gives a container devices as they are listed now, or without nodes.
func (b *bench) hold(uid, container, resource string, ids ...string) {
	b.t.Helper()
	c := ledgertest.Devices(container, resource, ids...)
	c.Owner.Pod = uid
	if r, ok := b.inv.Snapshot().Resource(resource); ok {
		for i := range c.Devices.Devices {
			d := &c.Devices.Devices[i]
			if listed, ok := r.Device(d.ID); ok {
				d.Nodes, d.Topology = listed.Nodes, listed.Topology
			}
		}
	}
	b.draft.AddClaims(uid, c)
}

// plan plans for one container, adds the claims to the draft and returns the
// devices by resource.
func (b *bench) plan(pod *workload.Pod, container int, affinity hint.Hint) (map[string][]string, error) {
	claims, err := b.Plan(context.Background(), b.draft.View(), hint.Request{Pod: pod, Container: container}, affinity)
	if err != nil {
		return nil, err
	}
	b.draft.AddClaims(pod.UID, claims...)
	out := map[string][]string{}
	for _, c := range claims {
		out[c.Resource] = c.Devices.IDs()
	}
	return out, nil
}

func nodes(ids ...int) hint.Hint { return hint.Hint{Nodes: numa.Of(ids...)} }

var anywhere = hint.Hint{Any: true}

// text prints an answer: "-", "impossible", or nodes with a star if preferred.
func text(t *testing.T, a hint.Answer) string {
	t.Helper()
	var hints []hint.Hint
	switch a.Kind {
	case hint.NoPreference:
		return "-"
	case hint.Impossible:
		if a.Reason == "" {
			t.Error("impossible without a reason")
		}
		return "impossible"
	case hint.Options:
		hints = a.Hints
	case hint.ByRule:
		expanded, err := a.Rule.Expand(1 << 20)
		if err != nil {
			t.Fatal(err)
		}
		hints = expanded
	}
	if !slices.IsSortedFunc(hints, func(a, b hint.Hint) int { return a.Nodes.CompareEnumeration(b.Nodes) }) {
		t.Errorf("hints are not in order: %v", hints)
	}
	var out []string
	for _, h := range hints {
		s := h.Nodes.String()
		if h.Preferred {
			s += "*"
		}
		out = append(out, s)
	}
	return strings.Join(out, " ")
}

var errPlugin = errors.New("the plugin says no")

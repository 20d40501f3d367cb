package check_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/check"
	"github.com/berthd/berth/managers/ledger/ledgertest"
)

func TestCheck(t *testing.T) {
	t.Parallel()
	pod, with, exclusive, cpus := ledgertest.Pod, ledgertest.With, ledgertest.Exclusive, ledgertest.CPUs
	memory, devices := ledgertest.Memory, ledgertest.Devices
	const gpu, mem, huge, whole = "vendor.com/gpu", "memory", "hugepages-2Mi", ""
	const room = 8<<30 - 100<<21 // for memory, of a node
	podCPUs := func(list string) ledger.Claim { return cpus(whole, list, ledger.CPUPod) }
	part := func(c, list string) ledger.Claim { return cpus(c, list, ledger.CPUPodExclusive) }
	rest := func(c, list string) ledger.Claim { return cpus(c, list, ledger.CPUPodShared) }
	two := func(a, b ledger.Claim) ledger.Claim { a.CPUs = b.CPUs; return a }
	by := func(provider string, c ledger.Claim) ledger.Claim { c.Provider = provider; return c }
	foreign := func(p *ledger.Pod, o ledger.Owner, c ledger.Claim) *ledger.Pod {
		c.Owner = o
		p.Claims = append(p.Claims, c)
		return p
	}
	for name, c := range map[string]struct {
		pods     []*ledger.Pod
		bindings []ledger.Binding
		want     []string // "rule owner other", in order
	}{
		"empty":     {},
		"no claims": {pods: []*ledger.Pod{pod("a", "c"), pod("b")}},
		"disjoint": {pods: []*ledger.Pod{with(pod("a", "c", "d"), exclusive("c", "1"), exclusive("d", "2")),
			with(pod("b", "c"), exclusive("c", "3-7"))}},
		"two pods overlap": {pods: []*ledger.Pod{with(pod("a", "c"), exclusive("c", "1-3")), with(pod("b", "c"), exclusive("c", "3-4"))},
			want: []string{"cpu-overlap a b"}},
		"three pods overlap": {pods: []*ledger.Pod{
			with(pod("a", "c"), exclusive("c", "1-3")), with(pod("b", "c"), exclusive("c", "3-4")), with(pod("c", "c"), podCPUs("3"))},
			want: []string{"cpu-overlap a b", "cpu-overlap a c", "cpu-overlap b c"}},
		"overlap beside reuse": {pods: []*ledger.Pod{
			with(pod("a", "init:i", "init:j", "c"), exclusive("i", "1-3"), exclusive("j", "1-2"), exclusive("c", "1")),
			with(pod("b", "c"), exclusive("c", "2"))},
			want: []string{"cpu-overlap a b"}},
		"init hands on": {pods: []*ledger.Pod{with(pod("a", "init:i", "sidecar:s", "c"), exclusive("i", "1-4"),
			exclusive("s", "1"), exclusive("c", "2-4"))}},
		"sidecar hands nothing on": {pods: []*ledger.Pod{with(pod("a", "sidecar:s", "c"), exclusive("s", "1"), exclusive("c", "1-2"))},
			want: []string{"cpu-overlap a/c a/s"}},
		"sidecar before init": {pods: []*ledger.Pod{with(pod("a", "sidecar:s", "init:i", "c"), exclusive("s", "1"),
			exclusive("i", "1-2"), exclusive("c", "2"))}, want: []string{"cpu-overlap a/i a/s"}},
		"apps overlap": {pods: []*ledger.Pod{with(pod("a", "c", "d"), exclusive("c", "1"), exclusive("d", "1"))},
			want: []string{"cpu-overlap a/c a/d"}},
		"one owner, two providers": {pods: []*ledger.Pod{with(pod("a", "c"), exclusive("c", "1"), by("other", exclusive("c", "1")))},
			want: []string{"cpu-overlap a/c a/c"}},
		"same claim twice": {pods: []*ledger.Pod{with(pod("a", "c"), exclusive("c", "1"), exclusive("c", "2"))},
			want: []string{"duplicate a/c"}},
		"pod's set": {pods: []*ledger.Pod{with(pod("a", "init:i", "sidecar:s", "c", "d", "e"), podCPUs("1-6"),
			rest("i", "1-6"), part("s", "1"), part("c", "2-3"), rest("d", "4-6"), rest("e", "4-6"))}},
		"part outside pod's set": {pods: []*ledger.Pod{with(pod("a", "c"), podCPUs("1-2"), part("c", "2-3"))},
			want: []string{"contained a/c a"}},
		"part without pod's set": {pods: []*ledger.Pod{with(pod("a", "c"), part("c", "2"))}, want: []string{"contained a/c a"}},
		"parts overlap": {pods: []*ledger.Pod{with(pod("a", "c", "d"), podCPUs("1-2"), part("c", "1"), part("d", "1-2"))},
			want: []string{"cpu-overlap a/c a/d"}},
		"part overlaps the rest": {pods: []*ledger.Pod{with(pod("a", "c", "d"), podCPUs("1-2"), part("c", "1"), rest("d", "1-2"))},
			want: []string{"cpu-overlap a/c a/d"}},
		"own set inside pod's set": {pods: []*ledger.Pod{with(pod("a", "c"), podCPUs("1-2"), exclusive("c", "2"))},
			want: []string{"cpu-overlap a a/c"}},
		"own set beside pod's set": {pods: []*ledger.Pod{with(pod("a", "c"), podCPUs("1-2"), exclusive("c", "3"))}},
		"claim of nobody": {pods: []*ledger.Pod{foreign(pod("a", "c"), ledger.Owner{}, exclusive("c", "1"))},
			want: []string{"owner  a"}},
		"pod with a container's": {pods: []*ledger.Pod{with(pod("a", "c"), exclusive(whole, "1"))}, want: []string{"payload a"}},
		"container with a pod's": {pods: []*ledger.Pod{with(pod("a", "c"), cpus("c", "1", ledger.CPUPod))},
			want: []string{"payload a/c"}},
		"unknown use": {pods: []*ledger.Pod{with(pod("a", "c"), cpus("c", "1", "borrowed"))},
			want: []string{"payload a/c"}},
		"no CPUs": {pods: []*ledger.Pod{with(pod("a", "c"), exclusive("c", ""))}, want: []string{"payload a/c"}},
		"no payload": {pods: []*ledger.Pod{with(pod("a", "c"),
			ledger.Claim{Owner: ledger.Owner{Container: "c"}, Resource: "x"})}, want: []string{"payload a/c"}},
		"two payloads": {pods: []*ledger.Pod{with(pod("a", "c"), two(devices("c", gpu, "1"), exclusive("c", "1")))},
			want: []string{"payload a/c"}},
		"opaque": {pods: []*ledger.Pod{with(pod("a", "c"),
			ledger.Claim{Owner: ledger.Owner{Container: "c"}, Resource: "x", Opaque: []byte("y")})}},
		"claim of another pod": {pods: []*ledger.Pod{foreign(pod("a", "c"), ledger.Owner{Pod: "b", Container: "c"},
			exclusive("c", "1"))}, want: []string{"owner b/c a"}},
		"claim of no container": {pods: []*ledger.Pod{with(pod("a", "c"), exclusive("d", "1"))}, want: []string{"owner a/d a"}},
		"uid with slash":        {pods: []*ledger.Pod{pod("a/b", "c")}, want: []string{"record a/b"}},
		"no uid":                {pods: []*ledger.Pod{pod("", "c")}, want: []string{"record "}},
		"reserved":              {pods: []*ledger.Pod{with(pod("a", "c"), exclusive("c", "7-8"))}, want: []string{"reserved a/c"}},
		"vanished":              {pods: []*ledger.Pod{with(pod("a", "c"), exclusive("c", "15-16"))}, want: []string{"vanished a/c"}},
		"vanished and reserved": {pods: []*ledger.Pod{with(pod("a", "c"), podCPUs("0,20"))},
			want: []string{"vanished a", "reserved a"}},
		"devices": {pods: []*ledger.Pod{with(pod("a", "init:i", "c"), devices("i", gpu, "1", "2"),
			devices("c", gpu, "2", "3")), with(pod("b", "c"), devices("c", gpu, "4"), devices("c", "vendor.com/nic", "1"))}},
		"device in two pods": {pods: []*ledger.Pod{with(pod("a", "c"), devices("c", gpu, "1", "2")),
			with(pod("b", "c"), devices("c", gpu, "2", "3"))}, want: []string{"device-overlap a b/c"}},
		"device in two containers": {pods: []*ledger.Pod{with(pod("a", "init:i", "sidecar:s", "c"), devices("i", gpu, "1"),
			devices("s", gpu, "1"), devices("c", gpu, "1"))}, want: []string{"device-overlap a/c a/s"}},
		"device twice": {pods: []*ledger.Pod{with(pod("a", "c"), devices("c", gpu, "1", "1"))},
			want: []string{"payload a/c"}},
		"no devices": {pods: []*ledger.Pod{with(pod("a", "c"), devices("c", gpu))}, want: []string{"payload a/c"}},
		"memory fits": {pods: []*ledger.Pod{with(pod("a", "c"), memory("c", mem, "0", room)),
			with(pod("b", "c"), memory("c", mem, "1", room))}},
		"memory on a group": {pods: []*ledger.Pod{with(pod("a", "c"), memory("c", mem, "0-1", 2*room))}},
		"memory of a node": {pods: []*ledger.Pod{with(pod("a", "c"), memory("c", mem, "0", 5<<30)),
			with(pod("b", "c"), memory("c", mem, "0", 4<<30))}, want: []string{"memory "}},
		"memory of a group": {pods: []*ledger.Pod{with(pod("a", "c"), memory("c", mem, "0-1", 9<<30)),
			with(pod("b", "c"), memory("c", mem, "0", 4<<30)), with(pod("d", "c"), memory("c", mem, "1", 4<<30))},
			want: []string{"memory "}},
		"group leaves room": {pods: []*ledger.Pod{with(pod("a", "c"), memory("c", mem, "0-1", room)),
			with(pod("b", "c"), memory("c", mem, "0", room))}},
		"memory of disjoint nodes": {pods: []*ledger.Pod{with(pod("a", "c"), memory("c", mem, "0", room)),
			with(pod("b", "c"), memory("c", mem, "1", 9<<30))}, want: []string{"memory "}},
		"memory of both nodes": {pods: []*ledger.Pod{with(pod("a", "c"), memory("c", mem, "0", 9<<30)),
			with(pod("b", "c"), memory("c", mem, "1", 9<<30))}, want: []string{"memory ", "memory "}},
		"of a node, and of a group": {pods: []*ledger.Pod{with(pod("a", "c"), memory("c", mem, "0", 9<<30)),
			with(pod("b", "c"), memory("c", mem, "0-1", 9<<30))}, want: []string{"memory ", "memory "}},
		"of a node, and a full group": {pods: []*ledger.Pod{with(pod("a", "c"), memory("c", mem, "0", 9<<30)),
			with(pod("b", "c"), memory("c", mem, "0-1", room))}, want: []string{"memory "}},
		"huge pages fit": {pods: []*ledger.Pod{with(pod("a", "c"), memory("c", huge, "0", 200<<20))}},
		"huge pages do not": {pods: []*ledger.Pod{with(pod("a", "c"), memory("c", huge, "0", 202<<20))},
			want: []string{"memory "}},
		"no such huge pages": {pods: []*ledger.Pod{with(pod("a", "c"), memory("c", "hugepages-1Gi", "0", 1<<30))},
			want: []string{"memory "}},
		"memory that is not ours": {pods: []*ledger.Pod{with(pod("a", "c"), memory("c", "vendor.com/hbm", "0", 1<<60))}},
		"memory on no node": {pods: []*ledger.Pod{with(pod("a", "c"), memory("c", mem, "", 1))},
			want: []string{"payload a/c", "memory "}},
		"memory on a vanished node": {pods: []*ledger.Pod{with(pod("a", "c"), memory("c", mem, "1-2", 1))},
			want: []string{"vanished a/c"}},
		"all on a vanished node": {pods: []*ledger.Pod{with(pod("a", "c"), memory("c", mem, "2", 9<<30))},
			want: []string{"vanished a/c"}},
		"too much on the other node": {pods: []*ledger.Pod{with(pod("a", "c"), memory("c", mem, "1-2", 9<<30))},
			want: []string{"vanished a/c", "memory "}},
		"beside a vanished node": {pods: []*ledger.Pod{with(pod("a", "c"), memory("c", mem, "1-2", 5<<30)),
			with(pod("b", "c"), memory("c", mem, "1", 5<<30))}, want: []string{"vanished a/c", "memory "}},
		"amounts do not wrap": {pods: []*ledger.Pod{with(pod("a", "c", "d"), memory("c", mem, "0", 1<<63),
			memory("d", mem, "0", 1<<63))}, want: []string{"memory "}},
		"init memory handed on": {pods: []*ledger.Pod{with(pod("a", "init:i", "init:j", "c", "d"), memory("i", mem, "0", room),
			memory("j", mem, "0", 7<<30), memory("c", mem, "0", 4<<30), memory("d", mem, "0", room-4<<30))}},
		"init memory too large": {pods: []*ledger.Pod{with(pod("a", "init:i", "c"), memory("i", mem, "0", 9<<30),
			memory("c", mem, "0", 1<<30))}, want: []string{"memory "}},
		"sidecar memory stays": {pods: []*ledger.Pod{with(pod("a", "sidecar:s", "c"), memory("s", mem, "0", 5<<30),
			memory("c", mem, "0", 4<<30))}, want: []string{"memory "}},
		"pod's memory": {pods: []*ledger.Pod{with(pod("a", "c", "d", "e"),
			memory(whole, mem, "0", room), memory("c", mem, "0", 1<<30), memory("d", mem, "0", 7<<30), memory("e", mem, "0", 7<<30))}},
		"part of pod's memory too large": {pods: []*ledger.Pod{with(pod("a", "c"), memory(whole, mem, "0", 1<<30),
			memory("c", mem, "0", 2<<30))}, want: []string{"contained a/c a"}},
		"part on another node": {pods: []*ledger.Pod{with(pod("a", "c"), memory(whole, mem, "0", 1<<30),
			memory("c", mem, "1", 1<<30))}, want: []string{"contained a/c a"}},
		"bound": {pods: []*ledger.Pod{pod("a", "c")},
			bindings: []ledger.Binding{{ID: "1", Owner: ledger.Owner{Pod: "a", Container: "c"}}}},
		"bound to no pod": {bindings: []ledger.Binding{{ID: "1", Owner: ledger.Owner{Pod: "a", Container: "c"}}},
			want: []string{"owner a/c"}},
		"bound to no container": {pods: []*ledger.Pod{pod("a", "c")},
			bindings: []ledger.Binding{{ID: "1", Owner: ledger.Owner{Pod: "a", Container: "d"}},
				{ID: "2", Owner: ledger.Owner{Pod: "a"}}}, want: []string{"owner a", "owner a/d"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := ledger.NewDraft(ledgertest.New(t, ledgertest.TwoNodes()).View())
			for _, p := range c.pods {
				d.PutPod(p)
			}
			for _, b := range c.bindings {
				d.Bind(b)
			}
			var got []string
			findings := check.View(d.View())
			for _, f := range findings {
				got = append(got, strings.TrimSuffix(fmt.Sprintf("%s %s %s", f.Rule, f.Owner, f.Other), " "))
				policy := f.Rule == check.RuleReserved || f.Rule == check.RuleVanished || f.Rule == check.RuleMemory
				if f.Text == "" || (f.Kind == check.Policy) != policy {
					t.Errorf("finding %+v", f)
				}
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("findings %q, want %q\n%v", got, c.want, findings)
			}
			if c.bindings == nil {
				samePods(t, d.View(), findings)
			}
			if again := check.View(d.View()); !slices.Equal(findings, again) {
				t.Errorf("findings are not the same again: %v, %v", findings, again)
			}
		})
	}
}

// samePods checks that Pod finds for each pod what View found. Which of two
// pods is named first may differ.
func samePods(t *testing.T, v *ledger.View, all []check.Finding) {
	t.Helper()
	say := func(f check.Finding) string {
		pods := []string{f.Owner.Pod, f.Other.Pod}
		slices.Sort(pods)
		return fmt.Sprint(f.Kind, f.Rule, f.Resource, pods)
	}
	for p := range v.Pods() {
		var got, want []string
		for _, f := range check.Pod(v, p.UID()) {
			got = append(got, say(f))
		}
		for _, f := range all {
			if f.Owner.Pod == p.UID() || f.Other.Pod == p.UID() {
				want = append(want, say(f))
			}
		}
		for _, c := range p.Claims {
			planned := check.Planned(v, p.UID(), []ledger.Claim{c})
			for _, f := range check.Pod(v, p.UID()) {
				if (f.Owner == c.Owner || f.Other == c.Owner) && !slices.Contains(planned, f) {
					t.Errorf("pod %s: a look at the claim of %s lacks %s", p.UID(), c.Owner, f)
				}
			}
		}
		slices.Sort(got)
		slices.Sort(want)
		if p.UID() != "" && !slices.Equal(got, want) {
			t.Errorf("pod %s: findings %q, want %q", p.UID(), got, want)
		}
	}
	if findings := check.Pod(v, "nobody"); findings != nil {
		t.Errorf("a pod that is not there: %v", findings)
	}
}

func BenchmarkCheck(b *testing.B) {
	v := ledgertest.Large(b)
	if findings := check.View(v); findings != nil {
		b.Fatal(findings)
	}
	b.ReportAllocs()
	for b.Loop() {
		check.View(v)
	}
}

// BenchmarkCheckPod is what a look at one planned pod costs.
func BenchmarkCheckPod(b *testing.B) {
	d := ledger.NewDraft(ledgertest.Large(b))
	d.PutPod(ledgertest.With(ledgertest.Pod("new", "c"), ledgertest.Exclusive("c", "511"), ledgertest.Devices("c", "vendor.com/gpu", "x")))
	v := d.View()
	b.ReportAllocs()
	for b.Loop() {
		check.Pod(v, "new")
	}
}

// BenchmarkDraftView is what every step of an admission pays for a view of its
// draft.
func BenchmarkDraftView(b *testing.B) {
	base := ledgertest.Large(b)
	p := ledgertest.With(ledgertest.Pod("new", "c"), ledgertest.Exclusive("c", "511"))
	b.ReportAllocs()
	for b.Loop() {
		d := ledger.NewDraft(base)
		d.PutPod(p)
		d.View()
	}
}

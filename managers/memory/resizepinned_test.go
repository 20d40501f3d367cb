package memory

import (
	"strings"
	"testing"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/check"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/workload"
)

// TestGrowingUnderTheTopologyPolicy: two nodes with 8 GiB each. A container on node 0 gets the other
// node as well if an admission of the new size would get both, and can never have more than they have.
func TestGrowingUnderTheTopologyPolicy(t *testing.T) {
	t.Parallel()
	anywhere, one, preferred := hint.Widening{}, hint.Widening{OneNode: true}, hint.Widening{Preferred: true}
	podScope := hint.Widening{Preferred: true, Scope: hint.PodScope}
	for name, tt := range map[string]struct {
		rule     hint.Widening
		affinity hint.Hint
		cpus     string // of the container
		device   string // the NUMA nodes of a device that another program has allocated to it
		others   string // on node 0
		to       string
		want     string
		reason   errdefs.Reason
		says     string
	}{
		"best-effort": {rule: anywhere, affinity: preferably(0), cpus: "0", to: "12Gi", want: "0-1"},
		"one node": {rule: one, affinity: preferably(0), to: "12Gi", reason: errdefs.Infeasible,
			says: `container "c" has memory on NUMA nodes 0 and now requests 12Gi of memory (they have 8Gi for pods, 8Gi are free), and the topology policy allows no other nodes`},
		"one node, without a preference": {rule: one, affinity: on(0), to: "12Gi", reason: errdefs.Infeasible},
		"one node that has it":           {rule: one, affinity: preferably(0), to: "8Gi", want: "0"},
		"one node that is taken": {rule: one, affinity: preferably(0), others: "5Gi", to: "4Gi",
			reason: errdefs.ResizeDeferred, says: "now requests 4Gi of memory (they have 8Gi for pods, 3Gi are free)"},
		"one node, without, that is taken": {rule: one, affinity: on(0), others: "5Gi", to: "4Gi", reason: errdefs.ResizeDeferred},
		"restricted, memory alone":         {rule: preferred, affinity: preferably(0), to: "12Gi", want: "0-1"},
		"restricted, its CPUs are on one":  {rule: preferred, affinity: preferably(0), cpus: "0", to: "12Gi", reason: errdefs.Infeasible},
		"restricted, its CPUs are on both": {rule: preferred, affinity: preferably(0), cpus: "0-1", to: "12Gi", want: "0-1"},
		"restricted, one would be enough":  {rule: preferred, affinity: on(0), others: "5Gi", to: "4Gi", reason: errdefs.ResizeDeferred},
		"restricted, a device on one": {rule: preferred, affinity: preferably(0), device: "0", to: "12Gi",
			reason: errdefs.Infeasible},
		"restricted, a device on both": {rule: preferred, affinity: preferably(0), device: "0-1", to: "12Gi", want: "0-1"},
		"restricted, CPUs of another":  {rule: preferred, affinity: preferably(0), cpus: "other 0", to: "12Gi", want: "0-1"},
		"restricted, of another, pod scope": {rule: podScope, affinity: preferably(0), cpus: "other 0", to: "12Gi",
			reason: errdefs.Infeasible},
		"more than there is": {rule: anywhere, affinity: preferably(0), to: "17Gi", reason: errdefs.Infeasible,
			says: "more than all NUMA nodes together have for pods"},
		"more than there is, restricted": {rule: preferred, affinity: preferably(0), to: "17Gi", reason: errdefs.Infeasible},
		"more than is free": {rule: anywhere, affinity: preferably(0), others: "5Gi", to: "16Gi",
			reason: errdefs.ResizeDeferred, says: "wider nodes are not free"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, nodesOf(8*gi, 8*gi))
			size := func(amount string) *workload.Pod {
				p := pod("a", "c="+amount, "other")
				if near, err := numa.Parse(tt.device); err == nil && tt.device != "" {
					p.Containers[0].ExternalDevices = []workload.ExternalDevice{{Resource: "example.com/nic", ID: "0", Nodes: near}}
				}
				return p
			}
			n.must(n.admit(size("2Gi"), tt.affinity))
			if tt.others != "" {
				n.must(n.admit(pod("b", "c="+tt.others), preferably(0)))
			}
			d := ledger.NewDraft(n.View())
			if tt.cpus != "" {
				container, cpus, other := strings.Cut(tt.cpus, " ")
				if !other {
					container, cpus = "c", tt.cpus
				}
				d.AddClaims("a", ledgertest.With(ledgertest.Pod("a", container), ledgertest.Exclusive(container, cpus)).Claims...)
			}
			claims, err := n.Resize(t.Context(), d.View(), size("2Gi"), size(tt.to), tt.rule)
			if reason, _ := errdefs.ReasonOf(err); reason != tt.reason || err != nil && !strings.Contains(err.Error(), tt.says) {
				t.Fatalf("got %v, want reason %q with %q", err, tt.reason, tt.says)
			}
			if err == nil && (len(claims) != 1 || claims[0].Memory[0].Nodes.String() != tt.want) {
				t.Errorf("it has %+v, want nodes %s", claims, tt.want)
			}
		})
	}
}

// TestLessPinnedMemory: a smaller size is never deferred, and keeps its nodes.
func TestLessPinnedMemory(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		from, to   []string
		affinity   hint.Hint
		overcommit bool
		want       string // usage
	}{
		"less":                             {[]string{"c=6Gi"}, []string{"c=4Gi"}, preferably(0), false, "4Gi[0] 0[1]"},
		"while its node is over-committed": {[]string{"c=6Gi"}, []string{"c=4Gi"}, preferably(0), true, "8Gi[0] 0[1]"},
		"the same, without a preference":   {[]string{"c=6Gi"}, []string{"c=4Gi"}, on(0), true, "8Gi[0] 0[1]"},
		"on both nodes":                    {[]string{"c=10Gi"}, []string{"c=9Gi"}, on(0, 1), false, "8Gi[0-1] 1Gi[0-1]"},
		"on both nodes, for one":           {[]string{"c=10Gi"}, []string{"c=1Gi"}, on(0, 1), false, "1Gi[0-1] 0[0-1]"},
		"before its init container ends": {[]string{"init:i=7Gi", "c=7Gi"}, []string{"init:i=7Gi", "c=6Gi"}, preferably(0), false,
			"7Gi[0] 0[1]"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, nodesOf(8*gi, 8*gi))
			n.must(n.admit(pod("a", tt.from...), tt.affinity))
			d := ledger.NewDraft(n.View())
			if tt.overcommit {
				d.PutPod(ledgertest.With(ledgertest.Pod("b", "c"), ledgertest.Memory("c", "memory", "0", 5*gi)))
			}
			claims, err := n.Resize(t.Context(), d.View(), pod("a", tt.from...), pod("a", tt.to...), hint.Widening{OneNode: true})
			n.must(err)
			d.AddClaims("a", claims...)
			if got := n.usageIn(d.View(), "memory"); got != tt.want {
				t.Errorf("usage %s, want %s", got, tt.want)
			}
			if want := pod("a", tt.to...).Container("c").Requests[workload.Memory]; len(claims) != 1 ||
				bytesOf(&claims[0]) != uint64(want) {
				t.Errorf("it has %+v, want %d bytes", claims, want)
			}
			if findings := check.Pod(d.View(), "a"); len(findings) > 0 {
				t.Error(findings)
			}
		})
	}
}

// TestGrowingBesideAnInitContainer: a container uses memory that only the init containers before it had.
func TestGrowingBesideAnInitContainer(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		from, to []string
		want     string // usage, or the beginning of the refusal
	}{
		"alone":                    {[]string{"init:i=7Gi", "c=5Gi"}, []string{"init:i=7Gi", "c=8Gi"}, "8Gi[0] 0[1]"},
		"another one has a part":   {[]string{"init:i=7Gi", "c=5Gi", "d=2Gi"}, []string{"init:i=7Gi", "c=6Gi", "d=2Gi"}, "8Gi[0] 0[1]"},
		"another one has too much": {[]string{"init:i=7Gi", "c=5Gi", "d=2Gi"}, []string{"init:i=7Gi", "c=7Gi", "d=2Gi"}, ""},
		"a sidecar":                {[]string{"init:i=7Gi", "sidecar:s=1Gi"}, []string{"init:i=7Gi", "sidecar:s=2Gi"}, "7Gi[0] 0[1]"},
		"a sidecar, and then init j": {[]string{"init:i=7Gi", "sidecar:s=1Gi", "init:j=7Gi"},
			[]string{"init:i=7Gi", "sidecar:s=2Gi", "init:j=7Gi"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, nodesOf(8*gi, 8*gi))
			n.must(n.admit(pod("a", tt.from...), preferably(0)))
			n.must(n.admit(pod("b", "c=8Gi"), preferably(1)))
			claims, err := n.Resize(t.Context(), n.View(), pod("a", tt.from...), pod("a", tt.to...), hint.Widening{})
			if reason, _ := errdefs.ReasonOf(err); (reason == errdefs.ResizeDeferred) != (tt.want == "") {
				t.Fatal(err)
			}
			d := ledger.NewDraft(n.View())
			d.RemovePod("b")
			d.AddClaims("a", claims...)
			if got := n.usageIn(d.View(), "memory"); err == nil && got != tt.want {
				t.Errorf("usage %s, want %s", got, tt.want)
			}
		})
	}
}

// TestResizeOfInitContainersWithPinnedMemory: their memory passes to later containers, so only an admission changes it.
func TestResizeOfInitContainersWithPinnedMemory(t *testing.T) {
	t.Parallel()
	for _, to := range []string{"2Gi", "4Gi"} {
		n := newNode(t, nodesOf(8*gi, 8*gi))
		n.must(n.admit(pod("a", "init:i=3Gi", "c=3Gi"), preferably(0)))
		claims, err := n.Resize(t.Context(), n.View(), pod("a", "init:i=3Gi", "c=3Gi"), pod("a", "init:i="+to, "c=3Gi"), hint.Widening{})
		if reason, _ := errdefs.ReasonOf(err); reason != errdefs.Infeasible || len(claims) > 0 ||
			!strings.Contains(err.Error(), `container "i" is an ordinary init container`) {
			t.Errorf("to %s: %v, %v", to, claims, err)
		}
	}
	n := newNode(t, nodesOf(8*gi, 8*gi))
	old, wanted := pod("a", "init:i=3Gi", "c=3Gi"), pod("a", "init:i=4Gi", "c=3Gi")
	old.QoS, wanted.QoS = workload.Burstable, workload.Burstable
	if claims, err := n.Resize(t.Context(), n.View(), old, wanted, hint.Widening{}); err != nil || len(claims) > 0 {
		t.Errorf("not pinned: %v, %v", claims, err)
	}
}

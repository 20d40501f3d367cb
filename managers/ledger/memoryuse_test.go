package ledger_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/check"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/numa"
)

// divided gives a claim on memory parts, as "0:5 1:3".
func divided(c ledger.Claim, parts string) ledger.Claim {
	for text := range strings.FieldsSeq(parts) {
		var p ledger.Part
		if _, err := fmt.Sscanf(text, "%d:%d", &p.Node, &p.Bytes); err != nil {
			panic(err)
		}
		c.Memory[0].Parts = append(c.Memory[0].Parts, p)
	}
	return c
}

// use shows what is held of memory on the first three nodes, with their groups.
func use(v *ledger.View) string {
	u := v.MemoryUse()
	held := u.Held("memory")
	var out []string
	for node := range 3 {
		out = append(out, fmt.Sprintf("%d[%s]x%d", held[node], u.Groups[node], u.Blocks[node]))
	}
	return strings.Join(out, " ")
}

func TestMemoryUse(t *testing.T) {
	t.Parallel()
	memory := ledgertest.Memory
	for _, row := range []struct {
		name string
		pod  *ledger.Pod
		want string
	}{
		{"nothing", ledgertest.Pod("a", "c"), "0[]x0 0[]x0 0[]x0"},
		{"one node", ledgertest.With(ledgertest.Pod("a", "c"), memory("c", "memory", "1", 7)), "0[]x0 7[1]x1 0[]x0"},
		{"counted by parts", ledgertest.With(ledgertest.Pod("a", "c"), divided(memory("c", "memory", "0-2", 7), "0:4 2:3")),
			"4[0-2]x1 0[0-2]x1 3[0-2]x1"},
		{"no parts", ledgertest.With(ledgertest.Pod("a", "c"), memory("c", "memory", "1-2", 7)), "0[]x0 7[1-2]x1 0[1-2]x1"},
		{
			"another resource", ledgertest.With(ledgertest.Pod("a", "c"), memory("c", "hugepages-2Mi", "0", 7)),
			"0[0]x1 0[]x0 0[]x0",
		},
		{
			"a node of a group", ledgertest.With(ledgertest.Pod("a", "c", "d"),
				divided(memory("c", "memory", "0-1", 7), "0:4 1:3"), memory("d", "memory", "0", 1)),
			"5[0]x2 3[0-1]x1 0[]x0",
		},
		{
			"init containers hand on", ledgertest.With(ledgertest.Pod("a", "init:i", "init:j", "c", "d"),
				memory("i", "memory", "0", 4), memory("j", "memory", "0", 3), memory("c", "memory", "0", 2), memory("d", "memory", "0", 1)),
			"4[0]x4 0[]x0 0[]x0",
		},
		{
			"not to other nodes", ledgertest.With(ledgertest.Pod("a", "init:i", "c"),
				memory("i", "memory", "0", 4), memory("c", "memory", "1", 2)),
			"4[0]x1 2[1]x1 0[]x0",
		},
		{
			"sidecars do not", ledgertest.With(ledgertest.Pod("a", "init:i", "sidecar:s", "c"),
				memory("i", "memory", "0", 4), memory("s", "memory", "0", 3), memory("c", "memory", "0", 2)),
			"5[0]x3 0[]x0 0[]x0",
		},
		{
			"a pod as a whole", ledgertest.With(ledgertest.Pod("a", "c"), memory("", "memory", "0", 4), memory("c", "memory", "0", 3)),
			"4[0]x1 0[]x0 0[]x0",
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			l := ledgertest.New(t, ledger.Rules{Machine: machinetest.Build("1s3n1c,mem=1Gi,huge=2Mi:1")})
			draft := ledger.NewDraft(l.View())
			draft.PutPod(row.pod)
			if got := use(draft.View()); got != row.want {
				t.Errorf("in a draft: %s, want %s", got, row.want)
			}
			committed, err := l.Commit(t.Context(), draft)
			if err != nil {
				t.Fatal(err)
			}
			if got := use(committed); got != row.want {
				t.Errorf("committed: %s, want %s", got, row.want)
			}
			more := ledger.NewDraft(committed)
			more.PutPod(ledgertest.With(ledgertest.Pod("b", "c"), ledgertest.Memory("c", "memory", "2", 5)))
			more.RemovePod("b")
			if got := use(more.View()); got != row.want {
				t.Errorf("with a pod that came and went: %s, want %s", got, row.want)
			}
			more.RemovePod("a")
			if got, want := use(more.View()), "0[]x0 0[]x0 0[]x0"; got != want {
				t.Errorf("with all gone: %s, want %s", got, want)
			}
			if got := use(committed); got != row.want {
				t.Errorf("after drafts: %s, want %s", got, row.want)
			}
		})
	}
}

func TestBlocks(t *testing.T) {
	t.Parallel()
	b := divided(ledgertest.Memory("c", "memory", "0-2", 7), "0:4 2:3").Memory[0]
	if got := b.On(numa.Of(0, 1)); got != 4 {
		t.Errorf("on nodes 0 and 1: %d, want 4", got)
	}
	if o := divided(ledgertest.Memory("c", "memory", "0-2", 7), "0:4 1:3").Memory[0]; b.Equal(o) || !b.Equal(b) {
		t.Error("blocks that are counted elsewhere are equal")
	}
	l := ledgertest.New(t, ledger.Rules{Machine: machinetest.Build("1s3n1c,mem=1Gi")})
	for _, parts := range []string{"0:4 2:2", "2:3 0:4", "0:4 5:3", "0:4 0:3"} {
		draft := ledger.NewDraft(l.View())
		draft.PutPod(ledgertest.With(ledgertest.Pod("a", "c"), divided(ledgertest.Memory("c", "memory", "0-2", 7), parts)))
		if f := check.View(draft.View()); len(f) != 1 || f[0].Rule != check.RulePayload {
			t.Errorf("parts %q: findings %v", parts, f)
		}
	}
}

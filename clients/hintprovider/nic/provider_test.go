package main

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"reflect"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/hint/hinttest"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/workload"
)

const resource = "example.com/nic"

// tree is a sysfs tree with cards by name, and some interfaces that are none.
func tree(cards map[string]string) fs.FS {
	t := fstest.MapFS{
		"class/net/lo/mtu":           {Data: []byte("65536\n")},
		"class/net/bonding_masters":  {Data: []byte("\n")},
		"class/net/usb0/device/type": {Data: []byte("x\n")},
	}
	for name, node := range cards {
		t["class/net/"+name+"/device/numa_node"] = &fstest.MapFile{Data: []byte(node + "\n")}
	}
	return t
}

var four = map[string]string{"eth0": "0", "eth1": "0", "eth2": "1", "wlan": "-1"}

// view is a machine of two nodes on which pod "earlier" holds some cards.
func view(t ledgertest.T, held ...string) *ledger.View {
	draft := ledger.NewDraft(ledgertest.New(t, ledger.Rules{Machine: machinetest.Build("1s2n4c1t")}).View())
	if len(held) > 0 {
		claim := ledgertest.Devices("c", resource, held...)
		claim.Provider = "nic"
		draft.PutPod(ledgertest.With(ledgertest.Pod("earlier", "c"), claim))
	}
	return draft.View()
}

// wanting is a pod whose containers request so many cards each.
func wanting(uid string, cards ...int64) *workload.Pod {
	p := &workload.Pod{UID: uid}
	for i, n := range cards {
		q := workload.Quantities{resource: n}
		p.Containers = append(p.Containers, workload.Container{Name: fmt.Sprint("c", i), Requests: q, Limits: q})
	}
	return p
}

func TestReadCards(t *testing.T) {
	t.Parallel()
	got, err := readCards(tree(four))
	want := []card{{"eth0", 0}, {"eth1", 0}, {"eth2", 1}, {"wlan", -1}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, %v; want %v", got, err, want)
	}
	for _, bad := range []string{"", "x", "64", "-2"} {
		if _, err := readCards(tree(map[string]string{"eth0": bad})); errdefs.ClassOf(err) != errdefs.Unavailable ||
			!strings.Contains(err.Error(), "eth0") {
			t.Errorf("numa_node %q: %v", bad, err)
		}
	}
	if _, err := readCards(fstest.MapFS{}); errdefs.ClassOf(err) != errdefs.Unavailable {
		t.Errorf("no tree: %v", err)
	}
}

func TestHints(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		held  []string
		cards []int64
		kind  hint.Kind
		// of a rule: options in enumeration order, preferred ones with a star
		options string
	}{
		"none":             {nil, []int64{0}, "", ""},
		"anywhere":         {nil, []int64{1}, hint.NoPreference, ""},
		"two":              {nil, []int64{2}, hint.ByRule, "0* 1* 0-1"},
		"three":            {nil, []int64{3}, hint.ByRule, "0* 0-1"},
		"all":              {nil, []int64{4}, hint.ByRule, "0-1*"},
		"five":             {nil, []int64{5}, hint.Impossible, ""},
		"two, some held":   {[]string{"eth0", "wlan"}, []int64{2}, hint.ByRule, "0-1"},
		"three, some held": {[]string{"eth0", "wlan"}, []int64{3}, hint.Impossible, ""},
		"whole pod":        {nil, []int64{1, 0, 2}, hint.ByRule, "0* 0-1"},
	} {
		pod := wanting("p", row.cards...)
		req := hint.Request{Pod: pod}
		if len(row.cards) > 1 {
			req.Container = -1
		}
		p := newProvider("nic", resource, tree(four), io.Discard)
		answers, err := p.Hints(t.Context(), view(t, row.held...), req)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if row.kind == "" {
			if len(answers) != 0 {
				t.Errorf("%s: %+v", name, answers)
			}
			continue
		}
		if len(answers) != 1 || answers[0].Kind != row.kind || (row.kind == hint.Impossible) == (answers[0].Reason == "") {
			t.Errorf("%s: %+v, want %s", name, answers, row.kind)
			continue
		}
		if row.kind != hint.ByRule {
			continue
		}
		list, err := answers[0].Rule.Expand(1 << 4)
		var got []string
		for _, h := range list {
			text := h.Nodes.String()
			if h.Preferred {
				text += "*"
			}
			got = append(got, text)
		}
		if err != nil || strings.Join(got, " ") != row.options {
			t.Errorf("%s: %q, %v; want %q", name, got, err, row.options)
		}
	}
}

func TestPlan(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		held     []string
		cards    int64
		affinity hint.Hint
		want     string
	}{
		"near":            {nil, 1, hint.Hint{Nodes: numa.Of(1)}, "eth2"},
		"near, then any":  {nil, 2, hint.Hint{Nodes: numa.Of(1)}, "eth2,wlan"},
		"near, then far":  {nil, 3, hint.Hint{Nodes: numa.Of(1)}, "eth0,eth2,wlan"},
		"wherever":        {nil, 2, hint.Hint{Any: true}, "eth0,wlan"},
		"what is free":    {[]string{"eth0"}, 2, hint.Hint{Nodes: numa.Of(0)}, "eth1,wlan"},
		"more than there": {[]string{"eth0"}, 4, hint.Hint{Any: true}, ""},
	} {
		p := newProvider("nic", resource, tree(four), io.Discard)
		claims, err := p.Plan(t.Context(), view(t, row.held...), hint.Request{Pod: wanting("p", row.cards)}, row.affinity)
		if row.want == "" {
			if reason, _ := errdefs.ReasonOf(err); reason != "OutOfexample.com/nic" {
				t.Errorf("%s: %v, %v", name, claims, err)
			}
			continue
		}
		if err != nil || len(claims) != 1 || strings.Join(claims[0].Devices.IDs(), ",") != row.want {
			t.Errorf("%s: %+v, %v; want %s", name, claims, err, row.want)
		}
	}
}

func TestExplain(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		held  []string
		cards int64
		nodes numa.Mask
		want  string
	}{
		"enough":            {nil, 3, numa.Of(0), ""},
		"none wanted":       {nil, 0, numa.Of(0), ""},
		"more than there":   {nil, 5, numa.Of(0, 1), "example.com/nic@0-1 4/5 held 0 by []"},
		"one node":          {[]string{"eth0"}, 3, numa.Of(0), "example.com/nic@0 2/3 held 1 by [earlier/c]"},
		"another one's":     {[]string{"eth0"}, 3, numa.Of(1), "example.com/nic@1 2/3 held 0 by []"},
		"held is elsewhere": {[]string{"eth0", "wlan"}, 2, numa.Of(1), "example.com/nic@1 1/2 held 1 by [earlier/c]"},
	} {
		p, got := newProvider("nic", resource, tree(four), io.Discard), ""
		for _, s := range p.Explain(view(t, row.held...), hint.Request{Pod: wanting("p", row.cards)}, row.nodes) {
			got += fmt.Sprintf("%s@%s %d/%d held %d by %v", s.Resource, s.Nodes, s.Free, s.Need, s.Held, s.Holders)
		}
		if got != row.want {
			t.Errorf("%s: %q, want %q", name, got, row.want)
		}
	}
}

// What is reserved or held is refused to others, given back by an abort and taken
// over by a commit.
func TestUsage(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	b := newUsage(&out)
	reserve := func(admission, owner, want string, cards ...string) {
		t.Helper()
		err := b.reserve(admission, owner, cards)
		if (want == "") != (err == nil) || err != nil && (errdefs.ClassOf(err) != errdefs.Refused || err.Error() != want) {
			t.Errorf("reserve %v for %s: %v, want %q", cards, owner, err, want)
		}
	}
	reserve("a1", "p/c", "", "eth0", "eth1")
	reserve("a2", "q/c", "card eth1 is reserved for admission a1", "eth1")
	reserve("a1", "p/c", "", "eth1") // planned again
	reserve("a2", "q/c", "", "eth0")
	b.abort("a2")
	b.abort("unknown")
	b.commit(map[string]string{"eth1": "p/c"}, []string{"a1"})
	reserve("a3", "r/c", "card eth1 is held by p/c", "eth0", "eth1")
	reserve("a3", "p/c", "", "eth1")
	b.commit(nil, nil)
	want := strings.Join([]string{
		`{"event":"reserved","held":{},"reserved":{"a1":{"eth0":"p/c","eth1":"p/c"}}}`,
		`{"event":"reserved","held":{},"reserved":{"a1":{"eth1":"p/c"}}}`,
		`{"event":"reserved","held":{},"reserved":{"a1":{"eth1":"p/c"},"a2":{"eth0":"q/c"}}}`,
		`{"event":"aborted","held":{},"reserved":{"a1":{"eth1":"p/c"}}}`,
		`{"event":"committed","held":{"eth1":"p/c"},"reserved":{}}`,
		`{"event":"reserved","held":{"eth1":"p/c"},"reserved":{"a3":{"eth1":"p/c"}}}`,
		`{"event":"committed","held":null,"reserved":{"a3":{"eth1":"p/c"}}}`,
	}, "\n") + "\n"
	if out.String() != want {
		t.Errorf("printed\n%swant\n%s", out.String(), want)
	}
}

// setup is what the contract suite tries the provider on.
func setup(t ledgertest.T, p hint.Provider) hinttest.Setup {
	return hinttest.Setup{
		Provider: p, View: view(t, "eth0"),
		Pods: []*workload.Pod{wanting("one", 1), wanting("more", 2, 0, 1), wanting("many", 3, 1), wanting("none", 0)},
	}
}

func TestContract(t *testing.T) {
	t.Parallel()
	hinttest.Run(t, func() hinttest.Setup {
		return setup(t, newProvider("nic", resource, tree(four), io.Discard))
	})
}

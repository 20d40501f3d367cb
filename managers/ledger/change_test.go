package ledger_test

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"testing"

	"pgregory.net/rapid"

	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine/machinetest"
)

// reader follows a ledger by its changes alone.
type reader struct {
	pods map[string]*ledger.Pod
	ids  map[string]ledger.Owner
}

// follow applies one change, which must be possible.
func (r *reader) follow(t *rapid.T, c ledger.Change) {
	var uid string
	if c.Pod != nil {
		uid = c.Pod.UID()
	}
	_, here := r.pods[uid]
	_, bound := r.ids[c.Binding.ID]
	switch {
	case c.Kind == ledger.PodAdded && !here, c.Kind == ledger.PodChanged && here:
		r.pods[uid] = c.Pod
	case c.Kind == ledger.PodRemoved && here && r.pods[uid] == c.Pod:
		for id, owner := range r.ids {
			if owner.Pod == uid {
				t.Fatalf("pod %s is removed before its container id %s is forgotten", uid, id)
			}
		}
		delete(r.pods, uid)
	case c.Kind == ledger.Bound && !bound && r.pods[c.Binding.Owner.Pod] != nil:
		r.ids[c.Binding.ID] = c.Binding.Owner
	case c.Kind == ledger.Unbound && bound:
		delete(r.ids, c.Binding.ID)
	default:
		t.Fatalf("%s cannot happen to pod %q, binding %+v", c.Kind, uid, c.Binding)
	}
}

// TestChangesCanBeFollowed checks that a reader who gets only changes
// has the ledger's pods and container ids after every commit.
func TestChangesCanBeFollowed(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		l := ledgertest.New(t, ledger.Rules{Machine: machinetest.Build("1s1n8c1t")})
		r := &reader{map[string]*ledger.Pod{}, map[string]ledger.Owner{}}
		uids := rapid.SampledFrom([]string{"a", "b", "c"})
		for range rapid.IntRange(1, 12).Draw(t, "commits") {
			old := l.View()
			d := ledger.NewDraft(old)
			for range rapid.IntRange(1, 4).Draw(t, "steps") {
				uid := uids.Draw(t, "uid")
				_, here := d.View().Pod(uid)
				switch rapid.IntRange(0, 3).Draw(t, "step") {
				case 0:
					d.RemovePod(uid)
				case 1:
					d.PutPod(ledgertest.Pod(uid, "main", "side"))
				case 2:
					id := fmt.Sprintf("%s-%d", uid, rapid.IntRange(0, 2).Draw(t, "id"))
					if here {
						d.Bind(ledger.Binding{ID: id, Owner: ledger.Owner{Pod: uid, Container: "main"},
							Sequence: rapid.Uint64Range(1, 3).Draw(t, "sequence")})
					}
				case 3:
					d.Unbind(fmt.Sprintf("%s-%d", uid, rapid.IntRange(0, 2).Draw(t, "id")))
				}
			}
			next, err := l.Commit(context.Background(), d)
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range ledger.Changes(old, next) {
				r.follow(t, c)
			}
			want := &reader{map[string]*ledger.Pod{}, map[string]ledger.Owner{}}
			for p := range next.Pods() {
				want.pods[p.UID()] = p
			}
			for b := range next.Bindings() {
				want.ids[b.ID] = b.Owner
			}
			if !maps.Equal(r.pods, want.pods) || !maps.Equal(r.ids, want.ids) {
				t.Fatalf("the reader has %v, the ledger %v", r, want)
			}
		}
	})
}

func TestChangesInOrder(t *testing.T) {
	t.Parallel()
	l := ledgertest.New(t, ledger.Rules{Machine: machinetest.Build("1s1n8c1t")})
	commit := func(change func(d *ledger.Draft)) (kinds []string) {
		t.Helper()
		old := l.View()
		next, err := l.Update(t.Context(), func(d *ledger.Draft) error { change(d); return nil })
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range ledger.Changes(old, next) {
			name := c.Binding.ID
			if c.Pod != nil {
				name = c.Pod.UID()
			}
			kinds = append(kinds, string(c.Kind)+" "+name)
		}
		return kinds
	}
	bind := func(d *ledger.Draft, id, uid string) {
		d.Bind(ledger.Binding{ID: id, Owner: ledger.Owner{Pod: uid, Container: "main"}})
	}
	for _, row := range []struct {
		change func(d *ledger.Draft)
		want   []string
	}{
		{func(d *ledger.Draft) {
			d.PutPod(ledgertest.Pod("b", "main"))
			d.PutPod(ledgertest.Pod("a", "main"))
			bind(d, "1", "b")
		}, []string{"pod added a", "pod added b", "bound 1"}},
		{func(d *ledger.Draft) {
			d.RemovePod("b")
			d.PutPod(ledgertest.Pod("a", "main"))
			d.PutPod(ledgertest.Pod("c", "main"))
			bind(d, "2", "c")
		}, []string{"unbound 1", "pod removed b", "pod changed a", "pod added c", "bound 2"}},
		{func(d *ledger.Draft) { d.PutResource(ledger.SeenResource{Name: "example.com/gpu"}) }, nil},
	} {
		if got := commit(row.change); !reflect.DeepEqual(got, row.want) {
			t.Errorf("%q, want %q", got, row.want)
		}
	}
}

package mover

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/live"
	"github.com/berthd/berth/managers/machine/machinetest"
)

// rooms is a Defragmenter whose plans are given, and whose pods arrive after 250 ms.
type rooms struct {
	*Defragmenter
	ledger   *ledger.Ledger
	plans    []live.Defragmentation // the last one stays
	requests []live.DefragmentRequest
	begun    []string
	canceled []string
	events   []string
}

func newRooms(t *testing.T, plans ...live.Defragmentation) *rooms {
	r := &rooms{ledger: ledgertest.New(t, ledger.Rules{Machine: machinetest.Build("4c")}), plans: plans}
	put := func(uid string, m *ledger.Move) {
		p := ledgertest.Pod(uid, "c")
		p.Move = m
		if _, err := r.ledger.Update(t.Context(), func(d *ledger.Draft) error { d.PutPod(p); return nil }); err != nil {
			t.Error(err)
		}
	}
	for _, uid := range []string{"a", "b"} {
		put(uid, nil)
	}
	r.Defragmenter = &Defragmenter{
		View: r.ledger.View, Now: time.Now,
		Plan: func(_ context.Context, req live.DefragmentRequest) (live.Defragmentation, error) {
			r.requests = append(r.requests, req)
			p := r.plans[0]
			if len(r.plans) > 1 {
				r.plans = r.plans[1:]
			}
			return p, nil
		},
		Begin: func(_ context.Context, m live.Relocation, rate uint64) error {
			if m.UID == "none" {
				return errdefs.NotFoundf("pod none is not admitted")
			}
			if m.UID == "busy" {
				return errdefs.Unavailablef("pod busy is being resized")
			}
			r.begun = append(r.begun, fmt.Sprint(m.UID, " ", rate))
			put(m.UID, &ledger.Move{})
			time.AfterFunc(250*time.Millisecond, func() { put(m.UID, nil) })
			return nil
		},
		Cancel: func(_ context.Context, uid string) error { r.canceled = append(r.canceled, uid); return nil },
	}
	return r
}

func (r *rooms) tell(e live.DefragmentEvent) error {
	switch {
	case e.Plan != nil:
		r.events = append(r.events, fmt.Sprint("plan of ", len(e.Plan.Moves)))
	case e.Progress != nil:
		r.events = append(r.events, "progress of "+e.Progress.UID)
	case e.Moved != nil:
		r.events = append(r.events, fmt.Sprint(e.Moved.UID, " has moved in ", e.Moved.Took))
	case e.Result != nil:
		r.events = append(r.events, fmt.Sprintf("%+v", *e.Result))
	}
	return nil
}

func planOf(uids ...string) (d live.Defragmentation) {
	for _, uid := range uids {
		d.Moves = append(d.Moves, live.Relocation{UID: uid})
	}
	return d
}

var (
	fits = live.Defragmentation{Verdict: admission.Verdict{Outcome: admission.Admitted}}
	want = live.DefragmentRequest{MaxMoves: 2}
)

func TestDefragment(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		plans  []live.Defragmentation
		dry    bool
		begun  []string
		events []string
	}{
		"it fits":   {[]live.Defragmentation{fits}, false, nil, []string{"plan of 0", "{Fits:true Moved:0 Why:}"}},
		"a dry run": {[]live.Defragmentation{planOf("a")}, true, nil, []string{"plan of 1"}},
		"two moves": {[]live.Defragmentation{planOf("a", "b"), planOf("b"), fits}, false, []string{"a 7", "b 7"},
			[]string{"plan of 2", "progress of a", "a has moved in 300ms", "progress of b", "b has moved in 300ms",
				"{Fits:true Moved:2 Why:}"}},
		"taken meanwhile": {[]live.Defragmentation{planOf("a"), {Why: "none may move"}}, false, []string{"a 7"},
			[]string{"plan of 1", "progress of a", "a has moved in 300ms", "{Fits:false Moved:1 Why:none may move}"}},
		"no more than allowed": {[]live.Defragmentation{planOf("a"), planOf("b"), planOf("a")}, false, []string{"a 7", "b 7"},
			[]string{"plan of 1", "progress of a", "a has moved in 300ms", "progress of b", "b has moved in 300ms",
				"{Fits:false Moved:2 Why:other pods have taken the room meanwhile: }"}},
		"in use by another call": {[]live.Defragmentation{planOf("a"), planOf("busy")}, false, []string{"a 7"},
			[]string{"plan of 1", "progress of a", "a has moved in 300ms", "{Fits:false Moved:1 Why:pod busy is being resized}"}},
		"it has left": {[]live.Defragmentation{planOf("none")}, false, nil,
			[]string{"plan of 1", "{Fits:false Moved:0 Why:pod none is not admitted}"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				r := newRooms(t, row.plans...)
				if err := r.Defragment(t.Context(), want, 7, row.dry, r.tell); err != nil {
					t.Fatal(err)
				}
				if !slices.Equal(r.events, row.events) || !slices.Equal(r.begun, row.begun) || len(r.canceled) > 0 {
					t.Errorf("begun %q, canceled %q, events\n%q\nwant\n%q", r.begun, r.canceled, r.events, row.events)
				}
				if last := r.requests[len(r.requests)-1]; len(last.Stay) != len(row.begun) {
					t.Errorf("%q stay", last.Stay)
				}
			})
		})
	}
}

// A caller that leaves takes its move back; meanwhile nobody else begins one.
func TestDefragmentEndsEarly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRooms(t, planOf("a"))
		ctx, leave := context.WithCancel(t.Context())
		err := r.Defragment(ctx, want, 0, false, func(e live.DefragmentEvent) error {
			if e.Progress != nil {
				if err := r.Defragment(t.Context(), want, 0, false, r.tell); errdefs.ClassOf(err) != errdefs.Unavailable {
					t.Errorf("another one: %v", err)
				}
				if err := r.Defragment(t.Context(), want, 0, true, r.tell); err != nil {
					t.Errorf("a dry run: %v", err)
				}
				leave()
			}
			return nil
		})
		if !errors.Is(err, context.Canceled) || !slices.Equal(r.canceled, []string{"a"}) {
			t.Errorf("canceled %q, %v", r.canceled, err)
		}
		broken := errors.New("the connection is broken")
		r.canceled = nil
		if err := r.Defragment(t.Context(), want, 0, false, func(e live.DefragmentEvent) error {
			if e.Progress != nil {
				return broken
			}
			return nil
		}); !errors.Is(err, broken) || !slices.Equal(r.canceled, []string{"a"}) {
			t.Errorf("canceled %q, %v", r.canceled, err)
		}
		time.Sleep(time.Second) // the pods arrive
	})
}

// A look at the progress that takes long, as while the kernel moves memory, does not delay the end of the move.
func TestSlowLooks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRooms(t, planOf("a"), planOf())
		const look = 10 * time.Second
		r.Use = func(context.Context, *ledger.View, string) live.PodUse {
			time.Sleep(look)
			return live.PodUse{}
		}
		var took time.Duration
		err := r.Defragment(t.Context(), live.DefragmentRequest{MaxMoves: 1}, 0, false, func(e live.DefragmentEvent) error {
			if e.Moved != nil {
				took = e.Moved.Took
			}
			return nil
		})
		if err != nil || took < 2*look || took > 2*look+progressEvery { // one look before the move, and one meanwhile
			t.Errorf("%v: it took %s", err, took)
		}
	})
}

package mover

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/live"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/transition"
)

// replacements is an engine whose pods a and b have CPUs 1 and 2.
type replacements struct {
	*Replacer
	view  *ledger.View
	now   time.Time
	plans []string
	begun []string
	// observed are the pods of observed losses, and whether they move.
	observed []string
	errs     map[string]error
	took     time.Duration // of each plan
	log      bytes.Buffer
}

func newReplacements(t *testing.T) *replacements {
	h := &replacements{now: time.Unix(1000, 0), errs: map[string]error{}}
	d := ledger.NewDraft(ledgertest.New(t, ledger.Rules{Machine: machinetest.Build("1s8c1t")}).View())
	for uid, cpus := range map[string]string{"a": "1", "b": "2"} {
		d.PutPod(ledgertest.With(ledgertest.Pod(uid, "c"), ledgertest.Exclusive("c", cpus)))
	}
	h.view = d.View()
	h.Replacer = NewReplacer(ReplacerConfig{
		View: func() *ledger.View { return h.view },
		Plan: func(_ context.Context, l live.Loss) (live.Relocation, error) {
			h.plans = append(h.plans, l.UID)
			h.now = h.now.Add(h.took)
			return live.Relocation{UID: l.UID, Plan: &transition.Plan{}}, h.errs[l.UID]
		},
		Begin: func(_ context.Context, r live.Relocation, limit uint64) error {
			h.begun = append(h.begun, r.UID)
			if limit != 0 {
				t.Errorf("limit %d", limit)
			}
			return nil
		},
		Observe: func(l live.Loss, err error) {
			h.observed = append(h.observed, fmt.Sprintf("%s %t", l.UID, err == nil))
		},
		Log: slog.New(slog.NewTextHandler(&h.log, nil)), Now: func() time.Time { return h.now },
	})
	return h
}

func (h *replacements) become(t *testing.T, offline string) {
	t.Helper()
	rules := h.view.Rules()
	var options []machinetest.Option
	if offline != "" {
		options = append(options, machinetest.Offline(offline))
	}
	rules.Machine = machinetest.Build("1s8c1t", options...)
	h.view = h.view.Under(rules)
}

// turn makes a turn, and returns the pods whose moves were planned.
func (h *replacements) turn(t *testing.T, wait time.Duration) string {
	t.Helper()
	h.plans = nil
	if got := h.Turn(t.Context()); got != wait {
		t.Errorf("the next turn is due in %s, want %s", got, wait)
	}
	return strings.Join(h.plans, " ")
}

// TestReplacer: each pod that has lost something is tried once in a turn. A turn on the same machine waits, so
// that commits which free nothing cost little.
func TestReplacer(t *testing.T) {
	t.Parallel()
	h := newReplacements(t)
	if got := h.turn(t, 0); got != "" {
		t.Errorf("nothing is lost, and %q were planned", got)
	}
	h.become(t, "1-2")
	h.errs["a"] = errdefs.Refuse(errdefs.ResizeDeferred, "no CPU is free")
	h.took = 200 * time.Millisecond
	if got := h.turn(t, 0); got != "a b" || strings.Join(h.begun, " ") != "b" {
		t.Errorf("planned %q, begun %q", got, h.begun)
	}
	if got := h.log.String(); strings.Count(got, "has lost CPUs or memory") != 1 || strings.Count(got, "a pod moves") != 1 {
		t.Errorf("log %s", got)
	}
	if got := h.turn(t, 8*time.Second); got != "" {
		t.Errorf("at once again: %q", got)
	}
	h.now = h.now.Add(8 * time.Second)
	if got := h.turn(t, 0); got != "a b" || strings.Count(h.log.String(), "has lost CPUs or memory") != 1 {
		t.Errorf("planned %q, log %s", got, h.log.String())
	}
	if want := "a false, b true, b true"; strings.Join(h.observed, ", ") != want { // the refusal of the same loss counts once
		t.Errorf("observed %q, want %q", h.observed, want)
	}
	// Another machine is looked at immediately.
	h.become(t, "1")
	if got := h.turn(t, 0); got != "a" {
		t.Errorf("planned %q", got)
	}
	h.become(t, "")
	if got := h.turn(t, 0); got != "" {
		t.Errorf("planned %q", got)
	}
	h.become(t, "1")
	if h.turn(t, 0); strings.Count(h.log.String(), "has lost CPUs or memory") != 2 {
		t.Errorf("another loss, log %s", h.log.String())
	}
}

// What fails for another reason than a refusal is tried again without a commit.
func TestReplacerFails(t *testing.T) {
	t.Parallel()
	h := newReplacements(t)
	h.become(t, "1")
	h.errs["a"] = errors.New("the disk is full")
	if got := h.turn(t, lastPause); got != "a" || len(h.begun) > 0 {
		t.Errorf("planned %q, begun %q", got, h.begun)
	}
	h.now = h.now.Add(lastPause)
	delete(h.errs, "a")
	if h.turn(t, 0); strings.Join(h.begun, " ") != "a" {
		t.Errorf("begun %q", h.begun)
	}
}

// TestReplacerOfABusyPod: a pod that cannot be planned or begun at the moment holds up no other pod, and is tried again soon.
func TestReplacerOfABusyPod(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		err  error
		wait time.Duration
		log  string // the warning about the pod
	}{
		"another operation": {errdefs.Unavailablef("another operation on the pod is in progress"), replacePause,
			"could not be moved yet"},
		"it has changed":         {errdefs.Conflictf("the pod has changed"), replacePause, ""},
		"it has left":            {errdefs.NotFoundf("pod a is not admitted"), 0, ""},
		"nothing is free":        {errdefs.Refuse(errdefs.ResizeDeferred, "no CPU is free"), 0, "keeps the rest"},
		"a fault of the machine": {errors.New("the disk is full"), lastPause, "could not be moved yet"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newReplacements(t)
			h.become(t, "1-2")
			h.errs["a"] = row.err
			if got := h.turn(t, row.wait); got != "a b" || strings.Join(h.begun, " ") != "b" {
				t.Errorf("planned %q, begun %q", got, h.begun)
			}
			if got := h.log.String(); strings.Contains(got, "has lost CPUs or memory") != (row.log != "") ||
				!strings.Contains(got, row.log) {
				t.Errorf("log %s", got)
			}
		})
	}
}

// A pod that was busy, and then cannot be served: both are reported.
func TestReplacerReportsEachReason(t *testing.T) {
	t.Parallel()
	h := newReplacements(t)
	h.become(t, "1")
	h.errs["a"] = errdefs.Unavailablef("another operation on the pod is in progress")
	h.turn(t, replacePause)
	h.now = h.now.Add(replacePause)
	h.turn(t, replacePause)
	h.now = h.now.Add(replacePause)
	h.errs["a"] = errdefs.Refuse(errdefs.ResizeDeferred, "no CPU is free")
	h.turn(t, 0)
	if got := h.log.String(); strings.Count(got, "could not be moved yet") != 1 || strings.Count(got, "keeps the rest") != 1 {
		t.Errorf("log %s", got)
	}
}

// A pod that moves already is neither planned nor reported.
func TestReplacerOfAMovingPod(t *testing.T) {
	t.Parallel()
	h := newReplacements(t)
	h.become(t, "1-2")
	d := ledger.NewDraft(h.view)
	p := ledgertest.With(ledgertest.Pod("a", "c"), ledgertest.Exclusive("c", "1"))
	p.Move = &ledger.Move{}
	d.PutPod(p)
	h.view = d.View()
	if got := h.turn(t, 0); got != "b" || strings.Contains(h.log.String(), "has lost CPUs or memory") {
		t.Errorf("planned %q, log %s", got, h.log.String())
	}
}

// The replacer follows the ledger, and ends with its context.
func TestReplacerRuns(t *testing.T) {
	t.Parallel()
	h := newReplacements(t)
	h.become(t, "1")
	ctx, cancel := context.WithCancel(t.Context())
	begin := h.Begin
	h.Begin = func(ctx context.Context, r live.Relocation, limit uint64) error {
		h.become(t, "")
		cancel()
		return begin(ctx, r, limit)
	}
	if err := h.Run(ctx); !errors.Is(err, context.Canceled) || strings.Join(h.begun, " ") != "a" {
		t.Errorf("%v, begun %q", err, h.begun)
	}
}

package hintproxy

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	hintv1 "github.com/berthd/berth/api/berth/hint/v1"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/workload"
)

// leasing serves a required provider that holds reservations for 10 seconds. slow is how long it takes to answer Reserve.
func leasing(t *testing.T, slow func(container string) time.Duration) *stage {
	t.Helper()
	s := newStage(t, Config{})
	sc, _ := s.serveScript(slotsOf("slots"))
	s.register("slots")
	sc.set(func(sc *script) {
		sc.reserve = func(ctx context.Context, q *hintv1.ReserveRequest) (*hintv1.ReserveResponse, error) {
			resp, err := sc.HintProviderServiceServer.Reserve(ctx, q)
			s.clock.advance(slow(q.GetContainerName()))
			if err == nil {
				resp.Lease = durationpb.New(10 * time.Second)
			}
			return resp, err
		}
	})
	return s
}

// TestLeaseOfEachContainer: a provider reserves for each container of a pod in turn. The next reservation prolongs those before only if
// they are still held. Otherwise the provider may have given them away, and the admission must not be committed.
func TestLeaseOfEachContainer(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name          string
		between, slow time.Duration // before the second call, and in it
		prolonged     bool
	}{
		{"at once", 0, 0, true},
		{"before the end", 9 * time.Second, 0, true},
		{"at the end", 10 * time.Second, 0, false},
		{"after the end", 11 * time.Second, 0, false},
		{"it ends during the call", 9 * time.Second, time.Second, false},
	} {
		s := leasing(t, func(container string) time.Duration {
			if container == "second" {
				return c.slow
			}
			return 0
		})
		q := workload.Quantities{slot: 1}
		pod := &workload.Pod{UID: "pod", Containers: []workload.Container{
			{Name: "first", Requests: q, Limits: q}, {Name: "second", Requests: q, Limits: q},
		}}
		for attempt := range 4 { // more than suspend a provider that fails
			var trace ledger.Trace
			draft := ledger.NewDraft(s.ledger.View())
			draft.PutPod(&ledger.Pod{Pod: *pod, AdmissionID: "adm"})
			var errs []error
			for i := range pod.Containers {
				errs = append(errs, s.theBus().Plan(t.Context(), draft, hint.Request{Pod: pod, Container: i}, hint.Hint{Any: true}, &trace))
			}
			errs = append(errs, s.theBus().Prepare(t.Context(), "adm", draft, hint.Request{Pod: pod}, &trace))
			if err := errors.Join(errs...); err != nil {
				t.Fatalf("%s, attempt %d: %v", c.name, attempt, err)
			}
			s.clock.advance(c.between)
			began := s.clock.Now()
			err := s.theBus().Prepare(t.Context(), "adm", draft, hint.Request{Pod: pod, Container: 1}, &trace)
			leases := slices.Collect(draft.View().Leases())
			var w hint.Waiter
			switch {
			case c.prolonged && (err != nil || len(leases) != 1 || !leases[0].Expires.Equal(began.Add(10*time.Second))):
				t.Errorf("%s: %v, leases %+v, want one until %s", c.name, err, leases, began.Add(10*time.Second))
			case !c.prolonged && (!errors.As(err, &w) || w.Waits().Condition != hint.LeaseExpired ||
				!strings.Contains(err.Error(), "provider slots")):
				t.Errorf("%s: %v, want the condition %s of the provider", c.name, err, hint.LeaseExpired)
			}
			s.theBus().Abort(context.Background(), "adm")
		}
	}
}

// TestAnswerAfterTheLease: a provider that answers Reserve only after the lease that it gives holds nothing. That is its failure.
func TestAnswerAfterTheLease(t *testing.T) {
	t.Parallel()
	s := leasing(t, func(string) time.Duration { return 10 * time.Second })
	_, err := s.admit("adm", wantingSlots("pod", 1, slot))
	if errors.As(err, new(hint.Waiter)) || errdefs.ClassOf(err) != errdefs.Deadline || !strings.Contains(err.Error(), "provider slots") {
		t.Errorf("%v", err)
	}
	if s.ledger.View().NumPods() != 0 {
		t.Error("the pod was admitted")
	}
}

package usage

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/journal"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/workload"
)

func viewOf(t *testing.T, pods map[string][]string) *ledger.View {
	t.Helper()
	l, _ := ledgertest.Open(t, journal.Options{Journal: ledgertest.NewJournal(), Rules: ledger.Rules{Machine: machinetest.Build("1s1n4c")}})
	view, err := l.Update(t.Context(), func(d *ledger.Draft) error {
		for uid, ids := range pods {
			d.PutPod(&ledger.Pod{
				Pod:         workload.Pod{UID: uid, Namespace: "ns", Name: uid, Containers: []workload.Container{{Name: "main"}}},
				AdmissionID: uid, QoS: workload.BestEffort,
			})
			for i, id := range ids {
				d.Bind(ledger.Binding{ID: id, Owner: ledger.Owner{Pod: uid, Container: "main"}, Sequence: uint64(i + 1)})
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return view
}

// TestRead: the newest cgroup of a container counts, and containers beyond the bound are counted.
func TestRead(t *testing.T) {
	t.Parallel()
	pods := map[string][]string{"a": {"a1", "a2", "a-gone"}, "b": {"b-gone"}}
	for i := range MaxContainers + 2 {
		pods[fmt.Sprintf("p%05d", i)] = []string{fmt.Sprint("c", i)}
	}
	view := viewOf(t, pods)
	r := New(Sources{
		View: func() *ledger.View { return view }, Now: time.Now,
		Details: func(_ context.Context, b ledger.Binding) (cgroup.Details, bool) {
			return cgroup.Details{Usage: cgroup.Usage{MemoryBytes: 7}}, !strings.HasSuffix(b.ID, "gone")
		},
	})
	got, err := r.Read(t.Context())
	if err != nil || len(got.Containers) != MaxContainers || got.Omitted != 3 {
		t.Fatalf("%d containers and %d omitted, %v", len(got.Containers), got.Omitted, err)
	}
	if first := got.Containers[0]; first.ID != "a2" || first.MemoryBytes != 7 {
		t.Errorf("container a is %+v", first)
	}
}

// TestShared: callers share a reading under way and one that is fresh; a caller that leaves
// does not end it for others; an error is not kept.
func TestShared(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var reads atomic.Int32
		var fail atomic.Bool
		r := New(Sources{Now: time.Now, CPUs: func() (map[int]time.Duration, error) {
			time.Sleep(100 * time.Millisecond)
			reads.Add(1)
			if fail.Load() {
				return nil, errors.New("no file")
			}
			return map[int]time.Duration{0: time.Second}, nil
		}})
		leaving, leave := context.WithCancel(t.Context())
		left := make(chan error, 1)
		go func() { _, err := r.Read(leaving); left <- err }()
		synctest.Wait()
		done := make(chan error, 9)
		for range 9 {
			go func() { _, err := r.Read(t.Context()); done <- err }()
		}
		synctest.Wait()
		leave()
		if err := <-left; !errors.Is(err, context.Canceled) {
			t.Errorf("the caller that left got %v", err)
		}
		for range 9 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		if _, err := r.Read(t.Context()); err != nil || reads.Load() != 1 {
			t.Errorf("%d readings, %v", reads.Load(), err)
		}
		time.Sleep(Fresh)
		fail.Store(true)
		if _, err := r.Read(t.Context()); err == nil {
			t.Error("a reading failed, and there was no error")
		}
		fail.Store(false)
		if got, err := r.Read(t.Context()); err != nil || got.CPUs[0] != time.Second || reads.Load() != 3 {
			t.Errorf("after the failure: %v, %v, %d readings", got, err, reads.Load())
		}
	})
}

package policy

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
)

// TestRefusedPodCostsLittle: the kubelet tries a refused pod again and again. berthd decides once, until
// resources become free, the pod requests something else, or the refusal is old.
func TestRefusedPodCostsLittle(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	kubelet := &knows{pods: map[string]*typesv1.Pod{"large-uid": specOf("large", "6"), "wide-uid": specOf("wide", "4")}}
	reasons, repeats, now := map[string]int{}, 0, time.Unix(1000, 0)
	var log strings.Builder
	e := newEngine(t, Config{
		Client: d.Client, Kubelet: kubelet, Now: func() time.Time { return now }, Log: slog.New(slog.NewTextHandler(&log, nil)),
		Refused: func(reason string, repeated bool) {
			if repeated {
				repeats++
			} else {
				reasons[reason]++
			}
		},
	})
	if err := e.policy.RunPodSandbox(t.Context(), pod("large", "guaranteed")); err != nil {
		t.Fatal(err)
	}
	revision := func() uint64 {
		got, err := d.Allocation().GetRevision(t.Context(), &allocationv1.GetRevisionRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return got.GetRevision()
	}
	try := func() string {
		e.calls.Lock()
		defer e.calls.Unlock()
		p := pod("wide", "guaranteed")
		err := e.policy.RunPodSandbox(t.Context(), p)
		if err == nil {
			return ""
		}
		// containerd stops and removes a sandbox that was refused.
		if err := e.policy.StopPodSandbox(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		if err := e.policy.RemovePodSandbox(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		return err.Error()
	}
	first := try()
	if !strings.Contains(first, "berth: admit the pod: ") {
		t.Fatalf("the pod that does not fit: %q", first)
	}
	decided := revision()
	for range 50 {
		if again := try(); again != first {
			t.Fatalf("the refusal is %q, and was %q", again, first)
		}
	}
	if got := revision(); got != decided || repeats != 50 || len(reasons) != 1 {
		t.Errorf("50 further tries: revision %d after %d, %d repeated, reasons %v", got, decided, repeats, reasons)
	}
	if got := strings.Count(log.String(), "a pod was not admitted"); got != 1 {
		t.Errorf("the refusal is logged %d times", got)
	}

	now = now.Add(held)
	if again := try(); again != first || revision() == decided {
		t.Errorf("an old refusal was not decided again: %q", again)
	}
	decided = revision()
	kubelet.pods["wide-uid"] = specOf("wide", "5")
	if again := try(); again == "" || revision() == decided {
		t.Errorf("a pod that asks for something else was not decided again: %q", again)
	}
	kubelet.pods["wide-uid"] = specOf("wide", "4")
	try()

	e.follow()
	e.end(pod("large", "guaranteed"))
	eventually(t, "the refused pod starts when the other has gone", func() bool { return try() == "" })
}

// TestRefusalsAreForgotten: what is remembered of refused pods does not grow.
func TestRefusalsAreForgotten(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	kubelet, now := &knows{pods: map[string]*typesv1.Pod{}}, time.Unix(1000, 0)
	e := newEngine(t, Config{Client: d.Client, Kubelet: kubelet, Now: func() time.Time { return now }})
	refuse := func(n int) {
		name := fmt.Sprintf("p%d", n)
		kubelet.pods[name+"-uid"] = specOf(name, "100")
		if err := e.policy.RunPodSandbox(context.Background(), pod(name, "guaranteed")); err == nil {
			t.Fatal("a pod with 100 CPUs was admitted")
		}
	}
	for n := range 3 {
		refuse(n)
	}
	if got := len(e.policy.placer.admissions.refusals.stored); got != 3 {
		t.Errorf("%d refusals are remembered", got)
	}
	now = now.Add(held)
	refuse(3)
	if got := len(e.policy.placer.admissions.refusals.stored); got != 1 {
		t.Errorf("%d refusals are remembered after %s", got, held)
	}
	e.policy.placer.admissions.refusals.stored = map[string]refused{}
	for n := range maxRefusals {
		e.policy.placer.admissions.refusals.stored[fmt.Sprint(n)] = refused{until: now.Add(held)}
	}
	refuse(4)
	if got := len(e.policy.placer.admissions.refusals.stored); got != maxRefusals {
		t.Errorf("%d refusals are remembered, expected at most %d", got, maxRefusals)
	}
}

// TestRefusedContainerCostsLittle: the same for a container that is admitted by itself.
func TestRefusedContainerCostsLittle(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	repeats := 0
	e := newEngine(t, Config{Client: d.Client, Refused: func(_ string, repeated bool) {
		if repeated {
			repeats++
		}
	}})
	p := pod("wide", "guaranteed")
	var texts []string
	for n := range 5 {
		_, err := e.create(p, container(p, "main", fmt.Sprintf("c%d", n), 100_000, gib))
		texts = append(texts, fmt.Sprint(err))
	}
	if repeats != 4 || texts[0] != texts[4] {
		t.Errorf("%d of 4 tries were answered as before: %q", repeats, texts)
	}
}

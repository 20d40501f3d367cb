package lifecycle_test

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/berthd/berth/clients/berthlet/lifecycle"
)

// world plays berthd, the runtime and the containers for one pod.
type world struct {
	t     *rapid.T
	pod   lifecycle.Pod
	state lifecycle.State
	now   time.Time
	// created are the containers that there was an attempt of.
	created map[string]bool
}

func drawPod(t *rapid.T) lifecycle.Pod {
	p := lifecycle.Pod{Grace: time.Duration(rapid.IntRange(0, 60).Draw(t, "grace")) * time.Second}
	for i := range rapid.IntRange(0, 4).Draw(t, "inits") {
		if rapid.Bool().Draw(t, "sidecar") {
			p.Containers = append(p.Containers, sidecar(fmt.Sprintf("s%d", i)))
			continue
		}
		c := initial(fmt.Sprintf("i%d", i))
		if rapid.IntRange(0, 3).Draw(t, "strict") == 0 {
			c.Restart = lifecycle.Never
		}
		p.Containers = append(p.Containers, c)
	}
	for i := range rapid.IntRange(1, 3).Draw(t, "apps") {
		p.Containers = append(p.Containers, app(fmt.Sprintf("a%d", i), lifecycle.Restart(rapid.IntRange(0, 2).Draw(t, "restart"))))
	}
	return p
}

func (w *world) alive() (names []string) {
	for _, c := range w.pod.Containers {
		if phase := w.state.Containers[c.Name].Phase; phase == lifecycle.Created || phase == lifecycle.Running {
			names = append(names, c.Name)
		}
	}
	return names
}

// do carries a step out, or lets it fail, and checks that the step was allowed.
func (w *world) do(step lifecycle.Step) {
	seen := w.state.Containers[step.Container]
	fails := rapid.IntRange(0, 4).Draw(w.t, "fails") == 0
	trouble := lifecycle.Trouble{At: w.now, Delay: lifecycle.Retry.After(seen.Trouble.Delay)}
	switch step.Do {
	case lifecycle.Admit:
		if w.state.Verdict != lifecycle.Undecided || !w.state.Deleted.IsZero() {
			w.t.Fatalf("admit in %+v", w.state)
		}
		if w.state.Wait = (lifecycle.Trouble{}); fails {
			w.state.Wait = trouble
			return
		}
		w.state.Verdict = lifecycle.Admitted
		return
	case lifecycle.Release:
		if names := w.alive(); len(names) > 0 {
			w.t.Fatalf("release while %v are alive", names)
		}
		if w.state.Wait = (lifecycle.Trouble{}); fails {
			w.state.Wait = trouble
			return
		}
		w.state.Released = true
		return
	case lifecycle.Create:
		w.checkCreate(step, seen)
		if fails {
			seen.Trouble = trouble
			break
		}
		seen = lifecycle.Seen{Phase: lifecycle.Created, Attempt: step.Attempt, Pause: step.Pause}
	case lifecycle.Start:
		if seen.Phase != lifecycle.Created || !w.state.Deleted.IsZero() {
			w.t.Fatalf("start %s in %+v", step.Container, w.state)
		}
		if seen.Trouble = (lifecycle.Trouble{}); fails {
			seen.Trouble = trouble
			break
		}
		seen.Phase, seen.Started = lifecycle.Running, w.now
	case lifecycle.Terminate:
		if seen.Phase != lifecycle.Running || !seen.Told.IsZero() {
			w.t.Fatalf("terminate %s: %+v", step.Container, seen)
		}
		w.checkOrder(step.Container)
		if seen.Asked.IsZero() {
			seen.Asked = w.now
		}
		if !fails {
			seen.Told = w.now
		}
	case lifecycle.Kill:
		if seen.Phase == lifecycle.Running && w.now.Before(seen.Asked.Add(min(w.pod.Grace, 2*time.Second))) {
			w.t.Fatalf("kill %s, asked at %v, at %v", step.Container, seen.Asked, w.now)
		}
		seen.Phase, seen.ExitCode, seen.Finished = lifecycle.Exited, 137, w.now
	}
	w.state.Containers[step.Container] = seen
}

// checkCreate holds a new attempt against the order, the policy and the pauses.
func (w *world) checkCreate(step lifecycle.Step, seen lifecycle.Seen) {
	if w.state.Verdict != lifecycle.Admitted || !w.state.Deleted.IsZero() {
		w.t.Fatalf("create %s in %+v", step.Container, w.state)
	}
	begun := false
	for _, c := range w.pod.Containers {
		begun = begun || c.Role == lifecycle.App && w.created[c.Name]
	}
	for _, c := range w.pod.Containers {
		if c.Name == step.Container {
			if seen.Phase == lifecycle.Exited && (c.Restart == lifecycle.Never || c.Restart == lifecycle.OnFailure && seen.ExitCode == 0) {
				w.t.Fatalf("restart of %s, which ended with %d", c.Name, seen.ExitCode)
			}
			break
		}
		before := w.state.Containers[c.Name]
		switch {
		case c.Role == lifecycle.Init && (before.Phase != lifecycle.Exited || before.ExitCode != 0):
			w.t.Fatalf("create %s before %s succeeded: %+v", step.Container, c.Name, before)
		case c.Role == lifecycle.Sidecar && !begun && before.Phase != lifecycle.Running:
			w.t.Fatalf("create %s while %s does not run: %+v", step.Container, c.Name, before)
		}
	}
	switch {
	case seen.Phase == lifecycle.Absent && step.Attempt != 0, seen.Phase == lifecycle.Exited && step.Attempt != seen.Attempt+1:
		w.t.Fatalf("attempt %d after %+v", step.Attempt, seen)
	case seen.Phase == lifecycle.Exited && seen.Finished.Sub(seen.Started) < crash.Forget && w.now.Before(seen.Finished.Add(seen.Pause)):
		w.t.Fatalf("attempt %d at %v, before the pause of %+v is over", step.Attempt, w.now, seen)
	case seen.Phase != lifecycle.Absent && seen.Phase != lifecycle.Exited:
		w.t.Fatalf("create %s over %+v", step.Container, seen)
	}
	w.created[step.Container] = true
}

// checkOrder: a sidecar is signalled after everything behind it, unless the grace is over.
func (w *world) checkOrder(name string) {
	if !w.state.Deleted.IsZero() && !w.now.Before(w.state.Deleted.Add(w.pod.Grace)) {
		return
	}
	role, behind := lifecycle.App, false
	for _, c := range w.pod.Containers {
		if c.Name == name {
			role, behind = c.Role, true
			continue
		}
		phase := w.state.Containers[c.Name].Phase
		if behind && role == lifecycle.Sidecar && (phase == lifecycle.Running || phase == lifecycle.Created) {
			w.t.Fatalf("sidecar %s is told to end before %s has", name, c.Name)
		}
	}
}

// live lets containers end as they like.
func (w *world) live() {
	for _, name := range w.alive() {
		seen := w.state.Containers[name]
		if seen.Phase == lifecycle.Running && rapid.IntRange(0, 2).Draw(w.t, "ends") == 0 {
			seen.Phase, seen.ExitCode, seen.Finished = lifecycle.Exited, rapid.IntRange(0, 1).Draw(w.t, "code"), w.now
			w.state.Containers[name] = seen
		}
	}
}

// pass plans, checks that a container has one step, and carries the steps out.
func (w *world) pass() lifecycle.Plan {
	plan := lifecycle.Next(w.pod, w.state, crash, w.now)
	has := map[string]bool{}
	for _, step := range plan.Steps {
		if has[step.Container] {
			w.t.Fatalf("two steps for %q: %v", step.Container, plan.Steps)
		}
		has[step.Container] = true
		w.do(step)
	}
	return plan
}

// TestWalk leads pods through lives that are simulated, checks every step, and
// checks that a pod that is deleted is released within its grace.
func TestWalk(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := &world{t: t, pod: drawPod(t), now: epoch, created: map[string]bool{}}
		w.state.Containers = map[string]lifecycle.Seen{}
		for range rapid.IntRange(0, 60).Draw(t, "passes") {
			plan := w.pass()
			if plan.Phase == lifecycle.Succeeded || plan.Phase == lifecycle.Failed {
				for _, step := range plan.Steps {
					if step.Do == lifecycle.Create || step.Do == lifecycle.Start {
						t.Fatalf("%v for a pod that is over", step)
					}
				}
			}
			w.now = w.now.Add(time.Duration(rapid.IntRange(0, 15).Draw(t, "seconds")) * time.Second)
			w.live()
		}
		if w.state.Released {
			return
		}
		w.state.Deleted = w.now
		// In the worst case all containers are signalled and killed one after the other.
		limit := w.now.Add(w.pod.Grace + 10*time.Second)
		for !w.state.Released {
			plan := w.pass()
			if len(w.alive()) > 0 && w.now.After(limit) {
				t.Fatalf("%v are alive %v after the deletion", w.alive(), w.now.Sub(w.state.Deleted))
			}
			if len(plan.Steps) > 0 {
				continue
			}
			if plan.Wake.IsZero() || !plan.Wake.After(w.now) {
				t.Fatalf("nothing to do and no time to wake: %+v", w.state)
			}
			w.now = plan.Wake
		}
	})
}

package lifecycle

import "time"

// leastGrace is the minimum time between a container's SIGTERM and SIGKILL, even if the pod's
// grace is shorter. The kubelet has the same minimum.
const leastGrace = 2 * time.Second

// Next plans what to do for a pod, now.
func Next(p Pod, s State, crash Backoff, now time.Time) Plan {
	plan := Plan{Waiting: map[string]string{}}
	plan.Phase = phase(p, s)
	over := plan.Phase == Succeeded || plan.Phase == Failed
	switch {
	case s.Released:
	case !s.Deleted.IsZero(), over:
		end(p, s, now, &plan)
	case s.Verdict == Undecided:
		for _, c := range p.Containers {
			plan.Waiting[c.Name] = waitsAtFirst(p, c)
		}
		stepWhenDue(Step{Do: Admit}, s.Wait, now, &plan)
	default:
		advance(p, s, crash, now, &plan)
	}
	return plan
}

// stepWhenDue plans a step of the pod, unless it failed a moment ago.
func stepWhenDue(step Step, t Trouble, now time.Time, plan *Plan) {
	if due := t.due(); t != (Trouble{}) && now.Before(due) {
		plan.wakeAt(due)
		return
	}
	plan.Steps = append(plan.Steps, step)
}

// phase computes the pod's phase from its containers, whose states are kept after their removal.
func phase(p Pod, s State) PodPhase {
	if s.Verdict == Rejected {
		return Failed
	}
	apps, ended, failed, begun := 0, 0, false, false
	for _, c := range p.Containers {
		seen := s.Containers[c.Name]
		final := seen.Phase == Exited && !c.Restart.again(seen.ExitCode)
		switch c.Role {
		case Init:
			if final && seen.ExitCode != 0 {
				return Failed
			}
		case App:
			apps++
			if seen.Phase != Absent && (seen.Phase != Created || seen.Attempt > 0) {
				begun = true
			}
			if final {
				ended++
				failed = failed || seen.ExitCode != 0
			}
		}
	}
	switch {
	case apps > 0 && ended == apps && failed:
		return Failed
	case apps > 0 && ended == apps:
		return Succeeded
	case begun:
		return Active
	}
	return Pending
}

// waitsAtFirst is why a container waits that was never made.
func waitsAtFirst(p Pod, c Container) string {
	if c.Role == App {
		for _, other := range p.Containers {
			if other.Role != App {
				return WaitsForInit
			}
		}
	}
	return WaitsForCreation
}

// advance brings an admitted pod forward.
func advance(p Pod, s State, crash Backoff, now time.Time, plan *Plan) {
	begun := initialized(p, s)
	blocked := false
	for _, c := range p.Containers {
		seen := s.Containers[c.Name]
		if blocked {
			if seen.Phase == Absent {
				plan.Waiting[c.Name] = WaitsForInit
			}
			continue
		}
		switch {
		case seen.Phase == Running, seen.Phase == Exited && !c.Restart.again(seen.ExitCode):
		default:
			bring(c, seen, crash, now, plan)
		}
		// After the first app container has started, the order no longer matters: a restarting
		// sidecar does not block other containers.
		blocked = !begun && c.Role != App && !passed(c, seen)
	}
}

// initialized reports whether the pod has come to its app containers.
func initialized(p Pod, s State) bool {
	for _, c := range p.Containers {
		if c.Role == App && s.Containers[c.Name].Phase != Absent {
			return true
		}
	}
	return false
}

// passed reports whether an init container or sidecar lets the next one start.
func passed(c Container, seen Seen) bool {
	if c.Role == Sidecar {
		return seen.Phase == Running
	}
	return seen.Phase == Exited && seen.ExitCode == 0
}

// bring plans the next step towards a running container.
func bring(c Container, seen Seen, crash Backoff, now time.Time, plan *Plan) {
	plan.Waiting[c.Name] = WaitsForCreation
	due := seen.Trouble.due()
	step := Step{Do: Create, Container: c.Name, Attempt: seen.Attempt, Pause: seen.Pause}
	switch seen.Phase {
	case Created:
		step = Step{Do: Start, Container: c.Name, Attempt: seen.Attempt}
	case Exited:
		step.Attempt++
		var after time.Time
		after, step.Pause = crash.next(seen)
		if now.Before(after) {
			plan.Waiting[c.Name] = WaitsForPause
		}
		if after.After(due) {
			due = after
		}
	}
	if now.Before(due) {
		plan.wakeAt(due)
		return
	}
	plan.Steps = append(plan.Steps, step)
}

// end brings a pod to its end: app and init containers at once, then the sidecars
// from the last to the first, then the release.
func end(p Pod, s State, now time.Time, plan *Plan) {
	alive := false
	for _, c := range p.Containers {
		if c.Role != Sidecar && s.Containers[c.Name].Phase.alive() {
			alive = true
			finish(p, s, c, now, plan)
		}
	}
	// When the pod's time is up the sidecars do not wait for each other any more.
	timeout := !s.Deleted.IsZero() && !now.Before(s.Deleted.Add(p.Grace))
	for i := len(p.Containers) - 1; i >= 0; i-- {
		c := p.Containers[i]
		if c.Role != Sidecar || !s.Containers[c.Name].Phase.alive() {
			continue
		}
		if !alive || timeout {
			finish(p, s, c, now, plan)
		}
		alive = true
	}
	if alive && !timeout && !s.Deleted.IsZero() {
		plan.wakeAt(s.Deleted.Add(p.Grace))
	}
	if !alive {
		stepWhenDue(Step{Do: Release}, s.Wait, now, plan)
	}
}

// finish terminates a container, and kills it after its grace. A container that never ran is
// killed at once. SIGTERM is repeated until the runtime has answered, but the grace begins with the first call.
func finish(p Pod, s State, c Container, now time.Time, plan *Plan) {
	seen := s.Containers[c.Name]
	do := func(v Verb) {
		plan.Steps = append(plan.Steps, Step{Do: v, Container: c.Name, Attempt: seen.Attempt})
	}
	switch {
	case seen.Phase == Created:
		do(Kill)
	case seen.Asked.IsZero():
		do(Terminate)
	default:
		began := seen.Asked
		if !s.Deleted.IsZero() {
			began = s.Deleted
		}
		until := began.Add(p.Grace)
		if least := seen.Asked.Add(leastGrace); until.Before(least) {
			until = least
		}
		switch {
		case !now.Before(until):
			do(Kill)
		case seen.Told.IsZero():
			do(Terminate)
			plan.wakeAt(until)
		default:
			plan.wakeAt(until)
		}
	}
}

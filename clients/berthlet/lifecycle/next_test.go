package lifecycle_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berthd/berth/clients/berthlet/lifecycle"
)

var (
	epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	crash = lifecycle.Backoff{First: 10 * time.Second, Max: 40 * time.Second, Forget: 10 * time.Minute}
)

func at(seconds float64) time.Time { return epoch.Add(time.Duration(seconds * float64(time.Second))) }

func app(name string, r lifecycle.Restart) lifecycle.Container {
	return lifecycle.Container{Name: name, Restart: r}
}

func initial(name string) lifecycle.Container {
	return lifecycle.Container{Name: name, Role: lifecycle.Init, Restart: lifecycle.OnFailure}
}

func sidecar(name string) lifecycle.Container {
	return lifecycle.Container{Name: name, Role: lifecycle.Sidecar}
}

func running() lifecycle.Seen {
	return lifecycle.Seen{Phase: lifecycle.Running, Started: at(0)}
}

func exited(code int) lifecycle.Seen {
	return lifecycle.Seen{Phase: lifecycle.Exited, ExitCode: code, Started: at(0), Finished: at(1)}
}

// planText writes a plan in a line: phase, steps, why containers wait, when to wake.
func planText(p lifecycle.Plan) string {
	words := []string{string(p.Phase)}
	for _, s := range p.Steps {
		word := s.Do.String()
		if s.Container != "" {
			word += " " + s.Container
		}
		if s.Do == lifecycle.Create {
			word += fmt.Sprintf("#%d/%s", s.Attempt, s.Pause)
		}
		words = append(words, word)
	}
	for _, name := range slices.Sorted(maps.Keys(p.Waiting)) {
		words = append(words, name+" "+p.Waiting[name])
	}
	if !p.Wake.IsZero() {
		words = append(words, "at "+p.Wake.Sub(epoch).String())
	}
	return strings.Join(words, ", ")
}

type seen = map[string]lifecycle.Seen

func TestNext(t *testing.T) {
	t.Parallel()
	const grace = 30 * time.Second
	ordered := lifecycle.Pod{Grace: grace, Containers: []lifecycle.Container{
		initial("i1"), sidecar("s1"), initial("i2"), sidecar("s2"), app("a1", lifecycle.Always), app("a2", lifecycle.Always),
	}}
	job := lifecycle.Pod{Grace: grace, Containers: []lifecycle.Container{sidecar("s"), app("a", lifecycle.Never),
		app("b", lifecycle.OnFailure)}}
	always := lifecycle.Pod{Grace: grace, Containers: []lifecycle.Container{app("a", lifecycle.Always)}}
	doomed := lifecycle.Pod{Grace: grace, Containers: []lifecycle.Container{
		{Name: "i", Role: lifecycle.Init, Restart: lifecycle.Never}, sidecar("s"), app("a", lifecycle.Never),
	}}
	paused := func(pause, ran time.Duration) lifecycle.Seen {
		return lifecycle.Seen{Phase: lifecycle.Exited, Attempt: 3, ExitCode: 1, Started: at(0), Finished: at(ran.Seconds()), Pause: pause}
	}
	told := func(when float64) lifecycle.Seen {
		s := running()
		s.Asked, s.Told = at(when), at(when)
		return s
	}
	troubled := lifecycle.Trouble{At: at(1), Delay: 5 * time.Second}

	for _, row := range []struct {
		name  string
		pod   lifecycle.Pod
		state lifecycle.State
		now   float64
		want  string
	}{
		{"a new pod is admitted", always, lifecycle.State{}, 0, "Pending, admit, a ContainerCreating"},
		{"a deferred pod waits", always, lifecycle.State{Wait: troubled}, 2, "Pending, a ContainerCreating, at 6s"},
		{"and asks again", always, lifecycle.State{Wait: troubled}, 6, "Pending, admit, a ContainerCreating"},
		{"apps say that init comes first", job, lifecycle.State{}, 0,
			"Pending, admit, a PodInitializing, b PodInitializing, s ContainerCreating"},
		{"a rejected pod is over", always, lifecycle.State{Verdict: lifecycle.Rejected}, 0, "Failed, release"},
		{"a rejected pod that runs is ended", always, lifecycle.State{Verdict: lifecycle.Rejected, Containers: seen{"a": running()}}, 0,
			"Failed, terminate a"},
		{"a released pod needs nothing", always, lifecycle.State{Verdict: lifecycle.Rejected, Released: true}, 0, "Failed"},

		{"the first init container", ordered, lifecycle.State{Verdict: lifecycle.Admitted}, 0,
			"Pending, create i1#0/0s, a1 PodInitializing, a2 PodInitializing, i1 ContainerCreating, i2 PodInitializing, s1 PodInitializing, s2 PodInitializing"},
		{"is started", ordered, lifecycle.State{Verdict: lifecycle.Admitted, Containers: seen{"i1": {Phase: lifecycle.Created}}}, 0,
			"Pending, start i1, a1 PodInitializing, a2 PodInitializing, i1 ContainerCreating, i2 PodInitializing, s1 PodInitializing, s2 PodInitializing"},
		{"and runs", ordered, lifecycle.State{Verdict: lifecycle.Admitted, Containers: seen{"i1": running()}}, 0,
			"Pending, a1 PodInitializing, a2 PodInitializing, i2 PodInitializing, s1 PodInitializing, s2 PodInitializing"},
		{"then the sidecar", ordered, lifecycle.State{Verdict: lifecycle.Admitted, Containers: seen{"i1": exited(0)}}, 2,
			"Pending, create s1#0/0s, a1 PodInitializing, a2 PodInitializing, i2 PodInitializing, s1 ContainerCreating, s2 PodInitializing"},
		{"a sidecar that runs lets the next one start", ordered, lifecycle.State{Verdict: lifecycle.Admitted,
			Containers: seen{"i1": exited(0), "s1": running()}}, 2,
			"Pending, create i2#0/0s, a1 PodInitializing, a2 PodInitializing, i2 ContainerCreating, s2 PodInitializing"},
		{"a failed init container is restarted at once, once", ordered,
			lifecycle.State{Verdict: lifecycle.Admitted, Containers: seen{"i1": exited(1)}}, 1,
			"Pending, create i1#1/10s, a1 PodInitializing, a2 PodInitializing, i1 ContainerCreating, i2 PodInitializing, s1 PodInitializing, s2 PodInitializing"},
		{"all apps at once", ordered, lifecycle.State{Verdict: lifecycle.Admitted,
			Containers: seen{"i1": exited(0), "s1": running(), "i2": exited(0), "s2": running()}}, 2,
			"Pending, create a1#0/0s, create a2#0/0s, a1 ContainerCreating, a2 ContainerCreating"},
		{"a sidecar that is restarted holds nobody up", ordered, lifecycle.State{Verdict: lifecycle.Admitted,
			Containers: seen{"i1": exited(0), "s1": exited(0), "i2": exited(0), "s2": running(), "a1": running()}}, 2,
			"Running, create s1#1/10s, create a2#0/0s, a2 ContainerCreating, s1 ContainerCreating"},

		{"a crash waits", always, lifecycle.State{Verdict: lifecycle.Admitted,
			Containers: seen{"a": paused(10*time.Second, time.Second)}}, 5,
			"Running, a CrashLoopBackOff, at 11s"},
		{"and comes back with twice the pause", always, lifecycle.State{Verdict: lifecycle.Admitted,
			Containers: seen{"a": paused(10*time.Second, time.Second)}}, 11,
			"Running, create a#4/20s, a ContainerCreating"},
		{"up to the longest", always, lifecycle.State{Verdict: lifecycle.Admitted,
			Containers: seen{"a": paused(40*time.Second, time.Second)}}, 41,
			"Running, create a#4/40s, a ContainerCreating"},
		{"a long run is forgiven", always, lifecycle.State{Verdict: lifecycle.Admitted,
			Containers: seen{"a": paused(40*time.Second, 10*time.Minute)}}, 600,
			"Running, create a#4/10s, a ContainerCreating"},
		{"a container in trouble waits", always, lifecycle.State{Verdict: lifecycle.Admitted, Containers: seen{"a": {Trouble: troubled}}},
			2,
			"Pending, a ContainerCreating, at 6s"},
		{"and is tried again", always, lifecycle.State{Verdict: lifecycle.Admitted, Containers: seen{"a": {Trouble: troubled}}}, 6,
			"Pending, create a#0/0s, a ContainerCreating"},

		{"success ends a job when all are done", job, lifecycle.State{Verdict: lifecycle.Admitted,
			Containers: seen{"s": running(), "a": exited(0), "b": running()}}, 2, "Running"},
		{"a failure on the way is tried again", job, lifecycle.State{Verdict: lifecycle.Admitted,
			Containers: seen{"s": running(), "a": exited(0), "b": exited(3)}}, 2,
			"Running, create b#1/10s, b ContainerCreating"},
		{"the sidecar of a job that is done ends", job, lifecycle.State{Verdict: lifecycle.Admitted,
			Containers: seen{"s": running(), "a": exited(0), "b": exited(0)}}, 2,
			"Succeeded, terminate s"},
		{"a failed app makes a failed pod", job, lifecycle.State{Verdict: lifecycle.Admitted,
			Containers: seen{"s": told(2), "a": exited(7), "b": exited(0)}}, 3,
			"Failed, at 32s"},
		{"its sidecar is killed in the end", job, lifecycle.State{Verdict: lifecycle.Admitted,
			Containers: seen{"s": told(2), "a": exited(7), "b": exited(0)}}, 32,
			"Failed, kill s"},
		{"then it is released", job, lifecycle.State{Verdict: lifecycle.Admitted,
			Containers: seen{"s": exited(143), "a": exited(7), "b": exited(0)}}, 3, "Failed, release"},
		{"a failed init container that is not restarted fails the pod", doomed,
			lifecycle.State{Verdict: lifecycle.Admitted, Containers: seen{"i": exited(1)}}, 2, "Failed, release"},

		{"a deleted pod that never began", always, lifecycle.State{Deleted: at(1)}, 2, "Pending, release"},
		{"a release that failed waits", always, lifecycle.State{Deleted: at(1), Wait: troubled}, 2, "Pending, at 6s"},
		{"what was never started is killed", always, lifecycle.State{Verdict: lifecycle.Admitted, Deleted: at(1),
			Containers: seen{"a": {Phase: lifecycle.Created}}}, 2,
			"Pending, kill a, at 31s"},
		{"apps are told first", ordered, lifecycle.State{Verdict: lifecycle.Admitted, Deleted: at(1),
			Containers: seen{"i1": exited(0), "s1": running(), "i2": exited(0), "s2": running(), "a1": running(), "a2": running()}}, 1,
			"Running, terminate a1, terminate a2, at 31s"},
		{"nothing is restarted", ordered, lifecycle.State{Verdict: lifecycle.Admitted, Deleted: at(1),
			Containers: seen{"i1": exited(0), "s1": exited(1), "i2": exited(0), "s2": running(), "a1": told(1), "a2": exited(0)}}, 3,
			"Running, at 31s"},
		{"then sidecars from the last", ordered, lifecycle.State{Verdict: lifecycle.Admitted, Deleted: at(1),
			Containers: seen{"i1": exited(0), "s1": running(), "i2": exited(0), "s2": running(), "a1": exited(0), "a2": exited(0)}}, 3,
			"Running, terminate s2, at 31s"},
		{"to the first", ordered, lifecycle.State{Verdict: lifecycle.Admitted, Deleted: at(1),
			Containers: seen{"i1": exited(0), "s1": running(), "i2": exited(0), "s2": exited(0), "a1": exited(0), "a2": exited(0)}}, 3,
			"Running, terminate s1, at 31s"},
		{"when time is up the rest is killed or told", ordered, lifecycle.State{Verdict: lifecycle.Admitted, Deleted: at(1),
			Containers: seen{"i1": exited(0), "s1": running(), "i2": exited(0), "s2": running(), "a1": told(1), "a2": exited(0)}}, 31,
			"Running, kill a1, terminate s2, terminate s1"},
		{"two seconds are for everybody", ordered, lifecycle.State{Verdict: lifecycle.Admitted, Deleted: at(1),
			Containers: seen{"i1": exited(0), "s1": told(31), "i2": exited(0), "s2": exited(0), "a1": exited(0), "a2": exited(0)}}, 32,
			"Running, at 33s"},
		{"and no more", ordered, lifecycle.State{Verdict: lifecycle.Admitted, Deleted: at(1),
			Containers: seen{"i1": exited(0), "s1": told(31), "i2": exited(0), "s2": exited(0), "a1": exited(0), "a2": exited(0)}}, 33,
			"Running, kill s1"},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			if got := planText(lifecycle.Next(row.pod, row.state, crash, at(row.now))); got != row.want {
				t.Errorf("got  %s\nwant %s", got, row.want)
			}
		})
	}
}

func TestBackoff(t *testing.T) {
	t.Parallel()
	var got []time.Duration
	for pause := time.Duration(0); len(got) < 7; {
		pause = lifecycle.Crash.After(pause)
		got = append(got, pause)
	}
	if want := "[10s 20s 40s 1m20s 2m40s 5m0s 5m0s]"; fmt.Sprint(got) != want {
		t.Errorf("pauses %v, want %s", got, want)
	}
}

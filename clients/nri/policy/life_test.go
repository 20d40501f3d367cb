package policy

import (
	"errors"
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/api"
)

// lived is a container that goes through lives by events of the runtime.
type lived struct {
	*engine
	pod, other *api.PodSandbox
	c, beside  *api.Container
}

// tell sends an event.
func (l *lived) tell(event lifeEvent) {
	l.t.Helper()
	var err error
	switch event {
	case permit:
		err = l.policy.StartContainer(l.t.Context(), l.pod, l.c)
	case refuse:
		l.mu.Lock()
		l.blind = errors.New("no process can be read")
		l.mu.Unlock()
		if l.policy.StartContainer(l.t.Context(), l.pod, l.c) == nil {
			l.t.Fatal("the start was not refused")
		}
		l.mu.Lock()
		l.blind = nil
		l.mu.Unlock()
	case begin:
		l.mu.Lock()
		l.c.Pid, l.pids[1000] = 1000, l.c.GetId()
		l.mu.Unlock()
		err = l.policy.PostStartContainer(l.t.Context(), l.pod, l.c)
	case list:
		l.c.Pid = 0 // with a process, the event begin follows
		_, err = l.policy.Synchronize(l.t.Context(), []*api.PodSandbox{l.pod, l.other}, []*api.Container{l.beside, l.c})
	case lack:
		_, err = l.policy.Synchronize(l.t.Context(), []*api.PodSandbox{l.pod, l.other}, []*api.Container{l.beside})
	case finish:
		_, err = l.policy.StopContainer(l.t.Context(), l.pod, l.c)
	}
	if err != nil {
		l.t.Fatal(err)
	}
}

// now is the life; empty if the container was dropped.
func (l *lived) now() life {
	l.policy.mu.Lock()
	defer l.policy.mu.Unlock()
	if m := l.policy.node.members[l.c.GetId()]; m != nil {
		return m.life
	}
	return ""
}

// TestPassedContainerLives: a container that may start without an allocation has the life of any other one.
func TestPassedContainerLives(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	l := &lived{engine: newEngine(t, Config{Client: d.Client, Pass: true}), pod: pod("job", "guaranteed")}
	l.c = container(l.pod, "main", "job-1", 64_000, gib)
	if l.made(l.pod, l.c); len(d.uids()) > 0 {
		t.Fatalf("berthd has %v", d.uids())
	}
	if got := l.now(); got != made {
		t.Errorf("when it is made: %q", got)
	}
	for _, row := range []struct {
		event lifeEvent
		want  life
	}{{permit, permitted}, {begin, permitted}, {finish, stopped}} {
		if l.tell(row.event); l.now() != row.want {
			t.Errorf("after %q: %q, and not %q", row.event, l.now(), row.want)
		}
	}
}

// TestLives brings a container into each life, by what a runtime sends, and sends each event then: the table, cell by cell. A life that
// no events lead to does not exist.
func TestLives(t *testing.T) {
	t.Parallel()
	ways := map[life][]lifeEvent{made: {}, barred: {refuse}, permitted: {permit}, lacking: {permit, lack},
		stopped: {permit, begin, finish}, leftover: {permit, begin, finish, lack}, inherited: nil}
	lines := strings.Split(strings.TrimSpace(lives), "\n")
	columns := strings.Fields(lines[0])[1:]
	if len(columns) != len(ways) || len(lines) != 7 {
		t.Fatalf("%d lives, %d events", len(columns), len(lines)-1)
	}
	for _, line := range lines[1:] {
		for i, cell := range strings.Fields(line)[1:] {
			event, from, want := lifeEvent(strings.Fields(line)[0]), life(columns[i]), life(cell)
			switch cell {
			case ".":
				want = from
			case "-":
				want = ""
			}
			t.Run(string(event)+" "+string(from), func(t *testing.T) {
				t.Parallel()
				l := &lived{pod: pod("job", "guaranteed"), other: pod("web", "burstable")}
				l.c, l.beside = container(l.pod, "main", "job-1", 2000, gib), container(l.other, "main", "web-1", 100, 0)
				d := startBerthd(t)
				l.engine = newEngine(t, Config{Client: d.Client})
				l.run(l.other, l.beside)
				if _, err := l.create(l.pod, l.c); err != nil {
					t.Fatal(err)
				}
				if from == inherited {
					l.renew(Config{Client: d.Client})
					l.tell(list)
					l.pushes(2)
				}
				for _, e := range ways[from] {
					l.tell(e)
				}
				if got := l.now(); got != from {
					t.Fatalf("after %v: %q, and not %q", ways[from], got, from)
				}
				l.tell(event)
				if got := l.now(); got != want {
					t.Errorf("%q, and not %q", got, want)
				}
			})
		}
	}
}

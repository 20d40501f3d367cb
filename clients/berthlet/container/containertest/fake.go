package containertest

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/berthd/berth/clients/berthlet/container"
	"github.com/berthd/berth/managers/errdefs"
)

// Fake is a runtime without processes. It simulates the program Program: "exit N" exits at once,
// "wait" exits with 0 after SIGTERM, and every other argument runs until it is killed.
type Fake struct {
	now     func() time.Time
	changed func(uid string)

	mu    sync.Mutex // guards the fields below
	pods  map[string]container.Pod
	boxes map[string]*box
	pid   int
	fail  func(call, name string) error
	lose  func(call, name string) error
	calls []string
}

type box struct {
	spec   container.Spec
	status container.Status
}

var _ container.Runtime = (*Fake)(nil)

// NewFake returns a runtime that calls changed for every container that ends.
func NewFake(now func() time.Time, changed func(uid string)) *Fake {
	return &Fake{now: now, changed: changed, pods: map[string]container.Pod{}, boxes: map[string]*box{}, pid: 1000}
}

// FailWith makes calls fail. fail gets the method, and the container's name or the pod's uid.
func (f *Fake) FailWith(fail func(call, name string) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fail = fail
}

// LoseWith makes the answers of calls get lost: the call has its effect, and returns an error. lose gets what fail of FailWith gets.
func (f *Fake) LoseWith(lose func(call, name string) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lose = lose
}

// answer returns the error of a call that has had its effect, for callers that hold mu.
func (f *Fake) answer(method, name string) error {
	if f.lose == nil {
		return nil
	}
	return f.lose(method, name)
}

// Calls lists the calls so far, as "Create web#0".
func (f *Fake) Calls() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.calls)
}

// Spec gives what a container was made of.
func (f *Fake) Spec(id string) (container.Spec, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if b := f.boxes[id]; b != nil {
		return b.spec, true
	}
	return container.Spec{}, false
}

// Exit ends a running container.
func (f *Fake) Exit(id string, code int) {
	f.mu.Lock()
	b := f.boxes[id]
	f.end(b, code)
	f.mu.Unlock()
	f.changed(b.spec.PodUID)
}

// end is for callers that hold mu.
func (f *Fake) end(b *box, code int) {
	if b.status.Phase != container.Exited {
		b.status.Phase, b.status.PID, b.status.ExitCode, b.status.Finished = container.Exited, 0, code, f.now()
	}
}

// call notes a call, for callers that hold mu.
func (f *Fake) call(method, name string, attempt int) error {
	if f.fail != nil {
		if err := f.fail(method, name); err != nil {
			return err
		}
	}
	f.calls = append(f.calls, fmt.Sprintf("%s %s#%d", method, name, attempt))
	return nil
}

// Open implements container.Runtime.
func (f *Fake) Open(_ context.Context, p container.Pod) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pods[p.UID] = p
	return f.answer("Open", p.UID)
}

// Close implements container.Runtime.
func (f *Fake) Close(_ context.Context, uid string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fail != nil {
		if err := f.fail("Close", uid); err != nil {
			return err
		}
	}
	delete(f.pods, uid)
	return f.answer("Close", uid)
}

// Create implements container.Runtime.
func (f *Fake) Create(_ context.Context, s container.Spec) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.boxes[s.ID] != nil {
		return nil
	}
	if _, open := f.pods[s.PodUID]; !open {
		return errdefs.Preconditionf("create container %s: its pod is not open", s.ID)
	}
	if err := f.call("Create", s.Name, s.Attempt); err != nil {
		return err
	}
	f.pid++
	f.boxes[s.ID] = &box{spec: s, status: container.Status{
		ID: s.ID, PodUID: s.PodUID, Name: s.Name, Attempt: s.Attempt, Pause: s.Pause,
		Phase: container.Created, PID: f.pid, Created: f.now(),
	}}
	return f.answer("Create", s.Name)
}

// Start implements container.Runtime.
func (f *Fake) Start(_ context.Context, id string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	b := f.boxes[id]
	if b == nil {
		return errdefs.NotFoundf("start container %s: there is none", id)
	}
	switch b.status.Phase {
	case container.Exited:
		return errdefs.Preconditionf("start container %s: it has exited", id)
	case container.Running:
		return nil
	}
	if err := f.call("Start", b.spec.Name, b.spec.Attempt); err != nil {
		return err
	}
	b.status.Phase, b.status.Started = container.Running, f.now()
	if verb, code := program(b.spec); verb == "exit" {
		f.end(b, code)
		go f.changed(b.spec.PodUID)
	}
	return f.answer("Start", b.spec.Name)
}

// program reads what a container's program is to do.
func program(s container.Spec) (verb string, code int) {
	if len(s.Command) < 2 {
		return "", 0
	}
	if len(s.Command) > 2 {
		code, _ = strconv.Atoi(s.Command[2])
	}
	return s.Command[1], code
}

// Signal implements container.Runtime.
func (f *Fake) Signal(_ context.Context, id string, s syscall.Signal) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	b := f.boxes[id]
	if b == nil {
		return errdefs.NotFoundf("signal container %s: there is none", id)
	}
	if err := f.call("Signal "+s.String(), b.spec.Name, b.spec.Attempt); err != nil {
		return err
	}
	verb, _ := program(b.spec)
	switch {
	case s == syscall.SIGKILL:
		f.end(b, 137)
	case verb == "wait" && b.status.Phase == container.Running:
		f.end(b, 0)
	default:
		return f.answer("Signal "+s.String(), b.spec.Name)
	}
	go f.changed(b.spec.PodUID)
	return f.answer("Signal "+s.String(), b.spec.Name)
}

// Remove implements container.Runtime.
func (f *Fake) Remove(_ context.Context, id string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if b := f.boxes[id]; b != nil {
		if err := f.call("Remove", b.spec.Name, b.spec.Attempt); err != nil {
			return err
		}
		delete(f.boxes, id)
		return f.answer("Remove", b.spec.Name)
	}
	return nil
}

// List implements container.Runtime.
func (f *Fake) List(_ context.Context, uid string) ([]container.Status, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []container.Status
	for _, b := range f.boxes {
		if uid == "" || b.spec.PodUID == uid {
			out = append(out, b.status)
		}
	}
	slices.SortFunc(out, func(a, b container.Status) int { return cmp.Compare(a.ID, b.ID) })
	return out, nil
}

// Opened implements container.Runtime.
func (f *Fake) Opened(context.Context) ([]string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Sorted(maps.Keys(f.pods)), nil
}

// Pod gives a pod that is open as it was opened.
func (f *Fake) Pod(uid string) (container.Pod, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p, ok := f.pods[uid]
	return p, ok
}

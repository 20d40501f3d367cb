package policy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing/synctest"
	"time"

	"github.com/containerd/nri/pkg/api"

	"github.com/berthd/berth/clients/nri/amounts"
)

// This file has the calls between the runtime and the policy.

// updating is how the runtime handles the next request for updates.
type updating string

const (
	atOnce   updating = ""
	fails    updating = "fails the first one"
	waits    updating = "does not carry out"
	unspoken updating = "carries out, and does not answer"
)

// request is a request for updates that the runtime has not answered.
type request struct {
	updates []*api.ContainerUpdate
	done    bool // carried out
	answer  chan error
}

// following is a running Follow.
type following struct {
	cancel context.CancelFunc
	ended  chan struct{}
}

// newPolicy starts berth-nri, and has the runtime tell it what it is.
func (n *madeUpNode) newPolicy() *Policy {
	name, version := "containerd", "v2.3.0"
	if n.crio {
		name, version = "cri-o", "1.37.0"
	}
	p := New(n.config)
	if _, err := p.Configure(in(), "", name, version); err != nil {
		n.fail("configure: %v", err)
	}
	return p
}

// during begins an event, if none has begun. The returned function ends it: what was requested meanwhile is carried out now.
func (n *madeUpNode) during() (end func()) {
	if n.inEvent {
		return func() {}
	}
	n.busy <- struct{}{}
	n.inEvent = true
	return func() {
		n.inEvent = false
		<-n.busy
		synctest.Wait()
	}
}

// UpdateContainers implements Updater.
func (n *madeUpNode) UpdateContainers(updates []*api.ContainerUpdate) ([]*api.ContainerUpdate, error) {
	n.busy <- struct{}{}
	answer, failed, err := n.updateContainers(updates)
	<-n.busy
	if answer != nil {
		err = <-answer
	}
	return failed, err
}

// updateContainers carries out updates as n.updates says; one that is carried out later is answered then.
func (n *madeUpNode) updateContainers(updates []*api.ContainerUpdate) (later chan error, failed []*api.ContainerUpdate, err error) {
	n.publish()
	how := n.updates
	if !n.link.prompt() && (how == waits || how == unspoken) {
		how = atOnce // the next one waits
	} else if n.updates = atOnce; how == atOnce && len(n.queue) > 0 {
		how = waits // one after another
	}
	switch how {
	case fails:
		n.note("  the runtime fails to update %s", updates[0].GetContainerId())
		n.apply(updates[1:])
		return nil, updates[:1], errors.New("update of some containers failed")
	case waits, unspoken:
		r := &request{updates: updates, answer: make(chan error, 1)}
		n.note("  the runtime %s the update of %s", how, ids(updates))
		if how == unspoken {
			n.apply(updates)
			r.done = true
		}
		n.queue = append(n.queue, r)
		return r.answer, nil, nil
	}
	n.apply(updates)
	return nil, nil, nil
}

func ids(updates []*api.ContainerUpdate) (out []string) {
	for _, u := range updates {
		out = append(out, u.GetContainerId())
	}
	return out
}

// answer has the runtime carry out and answer the oldest request, or all connections end with it.
func (n *madeUpNode) answer(lost, carried bool) {
	r := n.queue[0]
	n.queue = n.queue[1:]
	if !r.done && carried {
		n.note("the runtime carries out the update of %s", ids(r.updates))
		n.late = true
		n.apply(r.updates)
		n.late = false
	}
	err := error(nil)
	if lost {
		err = errors.New("ttrpc: closed")
	}
	n.note("the runtime has answered the update of %s: %v", ids(r.updates), err)
	r.answer <- err
	synctest.Wait()
}

// pass has the policy follow berthd for some time. Each move of berthd's goes on by one step.
func (n *madeUpNode) pass(d time.Duration) {
	if !n.link.is(away) {
		n.done(n.link.Advance(in()))
	}
	if n.following == nil {
		ctx, cancel := context.WithCancel(context.Background())
		f := &following{cancel, make(chan struct{})}
		n.following = f
		p := n.policy
		go func() {
			defer close(f.ended)
			p.Follow(ctx, n)
		}()
	}
	synctest.Wait()
	n.elapse(d)
	if len(n.queue) == 0 {
		n.unfollow()
	}
}

// elapse lets time pass. No start takes longer than the kubelet and the runtime give it.
func (n *madeUpNode) elapse(d time.Duration) {
	if d == 0 {
		return
	}
	for _, c := range n.containers(func(c *nodeContainer) bool { return c.phase == begun || c.phase == shows }) {
		n.proceed(c)
	}
	n.publish()
	time.Sleep(d)
	synctest.Wait()
}

// publish makes what was written visible to whom a timer wakes: only the race detector needs it, because in synctest a timer fires
// when all others are blocked. A reader that Follow calls publishes, too.
func (n *madeUpNode) publish() {
	n.written.Lock()
	defer n.written.Unlock()
}

// unfollow ends Follow.
func (n *madeUpNode) unfollow() {
	f := n.following
	if f == nil {
		return
	}
	n.following = nil
	f.cancel()
	synctest.Wait()
	select {
	case <-f.ended:
	default:
		n.fail("Follow has not ended with its context; %d requests are not answered", len(n.queue))
		for len(n.queue) > 0 {
			n.answer(true, false)
		}
	}
}

// runSandbox has a sandbox made for a pod.
func (n *madeUpNode) runSandbox(p *nodePod, told bool) bool {
	p.attempts++
	s := &nodeSandbox{id: fmt.Sprintf("%s-%d", p.title(), p.attempts)}
	n.serial++
	s.pid = 1<<20 + n.serial
	n.pauses[s.pid] = true
	defer n.during()()
	err := n.policy.RunPodSandbox(in(), n.describe(p, s))
	n.note("sandbox %s is made: %v", s.id, err)
	n.crashedWait()
	if err != nil {
		delete(n.pauses, s.pid)
		if s.stopped = true; told {
			n.done(n.policy.RemovePodSandbox(in(), n.describe(p, s)))
		}
		return false
	}
	p.sandbox, p.prepared = s, map[string]bool{}
	return true
}

// done fails after an error that the runtime would only log.
func (n *madeUpNode) done(err error) {
	if err != nil {
		n.fail("an event failed: %v", err)
	}
}

// create has a container made. If late, the runtime stores it later.
func (n *madeUpNode) create(p *nodePod, name string, late bool) bool {
	n.serial++
	c := &nodeContainer{id: fmt.Sprintf("%s-%s-%d", p.title(), name, n.serial), pod: p, sandbox: p.sandbox, name: name, phase: making,
		createdAt: n.now()}
	memory := int64(0)
	if p.qos == "guaranteed" {
		memory = memoryEach
	}
	first := container(n.describe(p, p.sandbox), name, c.id, p.wanted(name).milli, memory)
	c.resources = first.GetLinux().GetResources()
	defer n.during()()
	adjust, updates, err := n.policy.CreateContainer(in(), n.describe(p, p.sandbox), c.describe())
	n.note("container %s is made (%dm): CPUs %q %v", c.id, p.wanted(name).milli, adjust.GetLinux().GetResources().GetCpu().GetCpus(), err)
	if err != nil {
		for _, before := range p.containers {
			if before.name != name {
				before.made = -1 // its place was free for this one
			}
		}
		n.crashedWait()
		return false
	}
	p.sandbox.made++
	c.made, c.passed = p.sandbox.made, n.refused(c)
	n.crashedWait()
	n.apply(updates)
	n.returns(c, adjust.GetLinux().GetResources().GetCpu().GetCpus())
	p.wanted(name).accepted = p.wanted(name).milli
	n.update(c, adjust.GetLinux().GetResources())
	c.nowhere = c.passed && c.resources.GetCpu().GetCpus() == ""
	p.containers = append(p.containers, c)
	if !late {
		n.store(c)
	}
	return true
}

// store has the runtime store a container.
func (n *madeUpNode) store(c *nodeContainer) {
	defer n.during()()
	c.phase = created
	n.done(n.policy.PostCreateContainer(in(), n.describe(c.pod, c.sandbox), c.describe()))
}

// start has the runtime start a container. If late, the start goes on later.
func (n *madeUpNode) start(c *nodeContainer, late bool) bool {
	if !n.starts(c) {
		return false
	}
	for !late && c.phase != running {
		n.proceed(c)
	}
	return true
}

// starts has the runtime begin to start a container; false if the policy refuses that.
func (n *madeUpNode) starts(c *nodeContainer) bool {
	defer n.during()()
	err := n.policy.StartContainer(in(), n.describe(c.pod, c.sandbox), c.describe())
	n.note("container %s is started: %v", c.id, err)
	c.anyway = err != nil && n.crio
	c.nowhere = c.nowhere || n.config.Pass && c.anyway
	if err != nil && !c.anyway {
		c.givenUp = true
		return false
	}
	c.phase, c.read, c.since = begun, c.resources.GetCpu().GetCpus(), time.Now()
	return true
}

// proceed makes the next step of what the runtime does with a container, when Follow has done what an earlier step has woken it for.
func (n *madeUpNode) proceed(c *nodeContainer) {
	synctest.Wait()
	switch c.phase {
	case making:
		n.note("container %s is stored", c.id)
		n.store(c)
	case begun:
		n.serial++
		c.pid, c.alive, c.phase, c.cpus = n.serial, true, shows, n.parse(c.read)
		n.pids[c.pid] = c
		n.note("container %s runs on CPUs %s", c.id, c.cpus)
		if c.whole() && !n.refused(c) && (!c.passed || c.cpus == n.holds(c) && c.resources.GetCpu().GetQuota().GetValue() <= 0) {
			c.own = c.cpus
			if milli := amounts.Request(c.resources); int64(c.own.Len())*amounts.MilliPerCPU < milli && !n.lost && !c.wanted().resized {
				n.fail("%s was to have %dm of CPUs for itself, and starts on CPUs %s", c.id, milli, c.own)
			}
		}
		n.compareAll()
	case shows:
		defer n.during()()
		c.phase = running
		n.done(n.policy.PostStartContainer(in(), n.describe(c.pod, c.sandbox), c.describe()))
	}
}

// kill ends the process of a container. If told, the runtime sends an event; without, it has been restarted meanwhile.
func (n *madeUpNode) kill(c *nodeContainer, told bool) {
	c.alive = false
	n.ends(c, told)
}

// ends has the runtime take a container for ended.
func (n *madeUpNode) ends(c *nodeContainer, told bool) {
	c.phase = exited
	if told {
		defer n.during()()
		updates, err := n.policy.StopContainer(in(), n.describe(c.pod, c.sandbox), c.describe())
		n.done(err)
		n.apply(updates)
	}
}

// remove has a container removed.
func (n *madeUpNode) remove(c *nodeContainer) {
	defer n.during()()
	n.done(n.policy.RemoveContainer(in(), n.describe(c.pod, c.sandbox), c.describe()))
	n.forget(c)
}

// forget deletes a container that the runtime does not have any more. Its process may still run.
func (n *madeUpNode) forget(c *nodeContainer) {
	if c.phase = exited; c.alive {
		return
	}
	c.pod.containers = slices.DeleteFunc(c.pod.containers, func(o *nodeContainer) bool { return o == c })
}

// leaves is what an ended sandbox leaves behind.
type leaves string

const (
	leavesNothing   leaves = "nothing"
	leavesProcesses leaves = "processes that hang"
	leavesStarts    leaves = "starts that go on"
)

// stopSandbox ends a sandbox and its containers. What it leaves ends later. If told, the runtime sends events.
func (n *madeUpNode) stopSandbox(p *nodePod, s *nodeSandbox, left leaves, told bool) {
	n.note("sandbox %s ends, and leaves %s; events: %v", s.id, left, told)
	for _, c := range n.containers(func(c *nodeContainer) bool { return c.sandbox == s && c.phase != exited }) {
		if left == leavesStarts && c.phase == begun {
			continue
		}
		for left == leavesProcesses && (c.phase == begun || c.phase == shows) {
			n.proceed(c)
		}
		c.alive = c.alive && left == leavesProcesses
		n.ends(c, told && c.pid != 0)
	}
	delete(n.pauses, s.pid)
	s.stopped = true
	if p.sandbox == s {
		p.sandbox, p.old = nil, append(p.old, s)
	}
	if told {
		defer n.during()()
		n.done(n.policy.StopPodSandbox(in(), n.describe(p, s)))
	}
}

// removeSandbox removes an ended sandbox and its containers, if none is starting.
func (n *madeUpNode) removeSandbox(p *nodePod, s *nodeSandbox) {
	if len(n.containers(func(c *nodeContainer) bool { return c.sandbox == s && (c.phase == begun || c.phase == shows) })) > 0 {
		return
	}
	for _, c := range n.containers(func(c *nodeContainer) bool { return c.sandbox == s && c.phase == running }) {
		n.kill(c, true)
	}
	n.note("sandbox %s is removed", s.id)
	for _, c := range n.containers(func(c *nodeContainer) bool { return c.sandbox == s }) {
		n.remove(c)
	}
	defer n.during()()
	n.done(n.policy.RemovePodSandbox(in(), n.describe(p, s)))
	p.old = slices.DeleteFunc(p.old, func(o *nodeSandbox) bool { return o == s })
}

// returns checks that a container which has crashed returns to its CPUs, and notes that those before it are replaced.
func (n *madeUpNode) returns(c *nodeContainer, now string) {
	for _, before := range c.pod.containers {
		if before.name != c.name || before.sandbox != c.sandbox || before.phase != exited || before.alive || before.own.IsEmpty() {
			continue
		}
		if cpus := n.parse(now); before.made == c.made-1 && cpus != before.own && !n.lost && !before.wanted().resized && c.whole() &&
			!c.passed {
			n.fail("%s has crashed on its CPUs %s, and gets %s now", before.id, before.own, cpus)
		}
	}
}

// resize has the runtime resize a container to what the kubelet requests for a container.
func (n *madeUpNode) resize(c *nodeContainer, fails bool) bool {
	w := c.wanted()
	r := size(w.milli, 0, 0)
	if c.pod.qos == "guaranteed" {
		r = size(w.milli, w.milli, 0)
	}
	w.resized = true
	defer n.during()()
	updates, err := n.policy.UpdateContainer(in(), n.describe(c.pod, c.sandbox), c.describe(), r)
	n.note("container %s is resized to %dm: %v; fails: %v", c.id, w.milli, err, fails)
	if c.declined = err != nil; c.declined {
		return false
	}
	size, known := n.counted(c)
	if !n.config.Pass && (known && size != w.milli || !known && !n.refused(c)) {
		n.fail("%s was resized to %dm without berthd's consent, which has %dm (known: %v)", c.id, w.milli, size, known)
	}
	if known && size == w.milli || !n.config.Pass {
		w.accepted = w.milli
	}
	own := resourcesOf(updates, c.id)
	n.apply(slices.DeleteFunc(updates, func(u *api.ContainerUpdate) bool { return u.GetContainerId() == c.id })) // these come first
	if c.unapplied = fails; !fails {
		n.update(c, append([]*api.LinuxResources{r}, own...)...)
		n.done(n.policy.PostUpdateContainer(in(), n.describe(c.pod, c.sandbox), c.describe()))
	}
	return !fails
}

// resourcesOf returns the updates of a container.
func resourcesOf(updates []*api.ContainerUpdate, id string) (out []*api.LinuxResources) {
	for _, u := range updates {
		if u.GetContainerId() == id {
			out = append(out, u.GetLinux().GetResources())
		}
	}
	return out
}

// counted returns the CPUs that berthd counts for a container, in milli-CPU.
func (n *madeUpNode) counted(c *nodeContainer) (milli int64, known bool) {
	for _, uid := range []string{c.pod.uid(), c.pod.uid() + "." + c.name} {
		if p, ok := n.link.Ledger.View().Pod(uid); ok {
			if of := p.Pod.Container(c.name); of != nil {
				return of.Requests["cpu"], true
			}
		}
	}
	return 0, false
}

// refused means that berthd has refused the container, or its size.
func (n *madeUpNode) refused(c *nodeContainer) bool {
	m := n.policy.node.members[c.id]
	return m != nil && m.match == denied
}

// connect has the runtime list what it has. Partial lists lack some of that.
func (n *madeUpNode) connect(lacks func(id string) bool) {
	var pods []*api.PodSandbox
	var containers []*api.Container
	for _, p := range n.pods {
		sandboxes := slices.Clone(p.old)
		if p.sandbox != nil {
			sandboxes = append(sandboxes, p.sandbox)
		}
		for _, s := range sandboxes {
			if !lacks(s.id) {
				pods = append(pods, n.describe(p, s))
			}
		}
		for _, c := range p.containers {
			if c.phase != making && !lacks(c.id) {
				containers = append(containers, c.describe())
			}
		}
	}
	defer n.during()()
	updates, err := n.policy.Synchronize(in(), pods, containers)
	n.done(err)
	n.apply(updates)
	for _, c := range n.containers((*nodeContainer).waits) {
		c.endedBefore = c.endedBefore || n.holds(c) == c.own && !lacks(c.id)
	}
}

package policy

import (
	"slices"
	"strings"
	"time"

	"github.com/berthd/berth/clients/nri/amounts"
	"github.com/berthd/berth/managers/ledger/check"
)

// This file has what is to be true.

// compareAll checks that no process runs on CPUs that a running container has for itself, and that no quota limits such a container.
func (n *madeUpNode) compareAll() {
	alive := n.containers(func(c *nodeContainer) bool { return c.alive })
	for _, c := range alive {
		// What berthd has refused after the loss is about to leave them.
		if c.own.IsEmpty() || n.config.Pass && c.shrunk() || n.lost && n.refused(c) {
			continue
		}
		// A resize that was let pass has one until berthd answers.
		if quota := c.resources.GetCpu().GetQuota().GetValue(); quota > 0 && !(n.config.Pass && c.wanted().resized) {
			n.fail("%s has CPUs %s for itself, and the quota %d", c.id, c.own, quota)
		}
		for _, o := range alive {
			if o != c && o.cpus.Overlaps(c.own) && !c.shares(o) && !slices.Contains(c.beside, o) && !(c.anyway && o.left()) &&
				!o.nowhere {
				n.fail("%s runs on CPUs %s, and %s has %s for itself", o.id, o.cpus, c.id, c.own)
			}
		}
	}
}

// shrunk returns whether a container has more CPUs for itself than it requests: they do not show it to a new berth-nri.
func (c *nodeContainer) shrunk() bool {
	return int64(c.own.Len())*amounts.MilliPerCPU > amounts.Request(c.resources)
}

// crashedWait checks that berthd keeps the CPUs of containers that have crashed. Others get them only if there is not enough room, because
// something is left of ended containers or the kubelet has admitted too much. They do not get them from a container that had ended before
// the runtime connected: it may be starting again.
func (n *madeUpNode) crashedWait() {
	left := len(n.containers(func(c *nodeContainer) bool { return c.left() || c.phase == begun && c.sandbox.stopped })) > 0 ||
		slices.ContainsFunc(n.pods, n.lingers)
	for _, c := range n.containers((*nodeContainer).waits) {
		switch holds := n.holds(c); {
		case n.lost || holds == c.own:
		case c.endedBefore:
			n.fail("%s had ended on its CPUs %s when the runtime connected, and berthd has %s for it", c.id, c.own, holds)
		case left || n.most > most:
			c.made = -1
		default:
			n.fail("%s has ended on its CPUs %s, and berthd has %s for it", c.id, c.own, holds)
		}
	}
}

// lingers returns whether berthd has a pod that was deleted: the runtime still lists an earlier sandbox of it, of which nothing shows that
// it has ended.
func (n *madeUpNode) lingers(p *nodePod) bool {
	return p.deleted && len(p.old) > 1 && slices.ContainsFunc(n.link.ledgerPods(), func(uid string) bool {
		of, _ := owner(uid)
		return of == p.uid()
	})
}

// shares returns whether two containers may have the same CPUs: those of the same name, and init containers with those that follow.
func (c *nodeContainer) shares(o *nodeContainer) bool {
	return c.pod == o.pod && (c.name == o.name || c.wanted().init || o.wanted().init)
}

// kubeletStep is what the kubelet does next for a pod; false if there is nothing to do, or if all of it has failed.
func (n *madeUpNode) kubeletStep(p *nodePod, late bool) (some bool) {
	if p.deleted {
		return false
	}
	if p.sandbox == nil {
		return n.runSandbox(p, true)
	}
	for _, w := range p.template.containers {
		if w.init && p.prepared[w.name] {
			continue
		}
		if some = n.containerStep(p, w, late) || some; some || w.init {
			return some
		}
	}
	return some
}

// containerStep is what the kubelet does next for a container.
func (n *madeUpNode) containerStep(p *nodePod, w wanted, late bool) bool {
	var now *nodeContainer
	for _, c := range p.containers {
		if c.name == w.name && c.sandbox == p.sandbox && !c.givenUp {
			now = c
		}
	}
	switch {
	case now == nil || now.phase == exited:
		return n.create(p, w.name, late)
	case now.phase == making || now.phase == begun || now.phase == shows:
		n.proceed(now)
		return true
	case now.phase == created:
		return n.start(now, late)
	case w.init:
		n.note("container %s has ended well", now.id)
		p.prepared[w.name] = true
		n.kill(now, true)
		return true
	}
	return false
}

// Bounds of the time in which everything heals.
const (
	healRounds = 12
	// Before this round each resize was confirmed, or berth-nri counts the size from before it.
	undoneRound = 9
	healTime    = 15 * time.Second
	settleTime  = 65 * time.Second
)

// heal makes everything reachable, and checks that then everything has its place.
func (n *madeUpNode) heal() {
	n.note("everything is reachable")
	n.kubelet.away, n.kubelet.early, n.updates = false, false, atOnce
	if n.link.is(away) {
		n.restartBerthd()
	}
	n.link.become(answers)
	for len(n.queue) > 0 {
		n.answer(false, true)
	}
	if n.partial {
		n.note("the runtime connects again")
		n.connect(nothing)
	}
	n.evict()
	for round := range healRounds {
		for _, p := range n.pods {
			p.shown, p.hidden = p.shown || p.hidden, false
			n.endHanging(p)
			for range 20 {
				if !n.kubeletStep(p, false) {
					break
				}
			}
			n.collect(p)
			n.repeatResizes(p, round == undoneRound)
		}
		if n.answers && round%2 == 1 {
			n.oneMore()
		}
		n.pass(healTime)
	}
	n.pass(settleTime)
	if n.failure.kind == "" {
		n.healed()
	}
}

// evict deletes the newest pods for which berthd has no room.
func (n *madeUpNode) evict() {
	n.crashedWait() // until here there was too much
	n.most = most
	for _, p := range slices.Backward(n.pods) {
		if n.requested() <= n.most {
			return
		}
		if p.deleted {
			continue
		}
		n.note("pod %s is deleted", p.title())
		if p.deleted = true; p.sandbox != nil {
			n.stopSandbox(p, p.sandbox, leavesNothing, true)
		}
	}
}

// oneMore has a pod come and go: answers to its events carry what others wait for.
func (n *madeUpNode) oneMore() {
	p := n.newPod(templates[0], true)
	n.note("pod %s comes and goes", p.title())
	n.pods = append(n.pods, p)
	for range 20 {
		if !n.kubeletStep(p, false) {
			break
		}
	}
	if p.deleted = true; p.sandbox != nil {
		n.stopSandbox(p, p.sandbox, leavesNothing, true)
	}
	n.collect(p)
}

// endHanging ends the processes that hang.
func (n *madeUpNode) endHanging(p *nodePod) {
	for _, c := range n.containers(func(c *nodeContainer) bool { return c.pod == p && c.left() }) {
		n.endProcess(c)
	}
}

// endProcess ends a process that was left behind.
func (n *madeUpNode) endProcess(c *nodeContainer) {
	n.note("the process of %s ends", c.id)
	if c.alive = false; c.phase == running {
		n.ends(c, true)
	}
}

// collect removes the containers that the kubelet does not need any more.
func (n *madeUpNode) collect(p *nodePod) {
	for _, c := range n.containers(func(c *nodeContainer) bool { return c.pod == p }) {
		if c.phase == exited && !c.alive || c.givenUp && c.phase == created {
			n.remove(c)
		}
	}
	for _, s := range slices.Clone(p.old) {
		n.removeSandbox(p, s)
	}
}

// repeatResizes has the kubelet resize what has not the size that it requests. If undone, it requests what was accepted last. Of a
// container whose shrinking was taken back, while berthd has given its CPUs to another pod, or whose resize was let pass although berthd
// has refused it, it requests what berthd has.
func (n *madeUpNode) repeatResizes(p *nodePod, undone bool) {
	for i := range p.template.containers {
		if w := &p.template.containers[i]; undone && w.accepted > 0 {
			w.milli = w.accepted
		}
	}
	for _, c := range p.containers {
		if undone && c.serves() {
			c.wanted().milli = amounts.Request(c.resources)
			if size, known := n.counted(c); known && (c.takenBack || n.config.Pass) && n.refused(c) {
				c.wanted().milli = size
			}
		}
		if c.serves() && !sameShares(c.wanted().milli, c) {
			n.resize(c, false)
		}
	}
}

// sameShares reports whether a container has a request in the runtime.
func sameShares(milli int64, c *nodeContainer) bool { return amounts.Request(c.resources) == milli }

// healed checks that everything that runs has what it requests, and that nothing else is in the ledger.
func (n *madeUpNode) healed() {
	view := n.link.Ledger.View()
	shared := view.CommonCPUs()
	for _, c := range n.containers(func(c *nodeContainer) bool { return c.alive }) {
		holds, w := n.holds(c), c.wanted()
		size, known := n.counted(c)
		_, bound := view.Binding(c.id)
		switch {
		case !known:
			n.fail("everything is reachable, and berthd does not have %s", c.id)
		case c.givenUp && c.cpus.IsSubsetOf(holds) && !holds.IsEmpty(): // the kubelet does not resize it
		case c.whole() && (c.cpus != holds || int64(holds.Len())*amounts.MilliPerCPU != amounts.Request(c.resources)):
			n.fail("everything is reachable, and %s runs on CPUs %s; berthd has %s for it", c.id, c.cpus, holds)
		case !c.whole() && c.cpus != shared:
			n.fail("everything is reachable, and %s runs on CPUs %s; shared are %s", c.id, c.cpus, shared)
		case c.whole() && c.resources.GetCpu().GetQuota().GetValue() > 0:
			n.fail("everything is reachable, and %s has CPUs %s for itself, and a quota", c.id, holds)
		case !bound && !c.givenUp && !n.lost: // Follow, which notices the loss, does not always run here
			n.fail("everything is reachable, and berthd does not have the id of %s", c.id)
		case size != amounts.Request(c.resources) && !c.givenUp:
			n.fail("everything is reachable, and berthd counts %dm for %s, which has %dm", size, c.id, amounts.Request(c.resources))
		}
		if c.serves() && size != w.milli {
			n.fail("everything is reachable, and %s was not resized from %dm to %dm", c.id, size, w.milli)
		}
	}
	for _, p := range n.pods {
		if n.kubeletStep(p, false) || !p.deleted && (p.sandbox == nil || n.waiting(p)) {
			n.fail("everything is reachable, and pod %s does not run", p.title())
		}
	}
	for _, uid := range n.link.ledgerPods() {
		n.belongs(uid)
	}
	for _, f := range check.View(view) {
		n.fail("check of the ledger: %s", f)
	}
}

// waiting returns whether a container of a pod does not run.
func (n *madeUpNode) waiting(p *nodePod) bool {
	for _, w := range p.template.containers {
		if !w.init && !slices.ContainsFunc(p.containers, func(c *nodeContainer) bool { return c.name == w.name && c.serves() }) {
			return true
		}
	}
	return false
}

// belongs checks that a pod of berthd's is of one of the kubelet's, and that it is there once.
func (n *madeUpNode) belongs(uid string) {
	of, name := owner(uid)
	i := slices.IndexFunc(n.pods, func(p *nodePod) bool { return p.uid() == of })
	switch {
	case i < 0 || n.pods[i].deleted:
		n.fail("berthd has %s, which has ended; it has %s", uid, strings.Join(n.link.ledgerPods(), " "))
	case name != "" && slices.Contains(n.link.ledgerPods(), of):
		n.fail("berthd has %s as a whole and the container %s", of, uid)
	}
}

// finish ends all pods, after which nothing is left.
func (n *madeUpNode) finish() {
	n.note("all pods end")
	for _, p := range n.pods {
		if p.deleted = true; p.sandbox != nil {
			n.stopSandbox(p, p.sandbox, leavesNothing, true)
		}
		n.endHanging(p)
		n.collect(p)
	}
	n.pass(settleTime)
	if left := n.link.ledgerPods(); len(left) > 0 {
		n.fail("all pods have ended, and berthd has %s", strings.Join(left, " "))
	}
	members := 0
	for _, m := range n.policy.node.all() {
		if !m.life.over() || n.policy.tracks.may(m) {
			members++
		}
	}
	if sandboxes := len(n.policy.node.sandboxes); members > 0 || sandboxes > 0 {
		n.fail("all pods have ended, and berth-nri has %d sandboxes and %d containers", sandboxes, members)
	}
}

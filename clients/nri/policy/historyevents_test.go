package policy

import (
	"slices"
	"time"

	"github.com/berthd/berth/clients/nri/amounts"
)

// happening is something that happens on a node. What it is about depends on the state: a chooses among what there is, and n is how it
// happens.
type happening struct {
	kind kind
	a, n int
}

// kind is a kind of happenings, with its share of them.
type kind struct {
	name  string
	share int
	do    func(n *madeUpNode, a, how int)
}

// kinds are the kinds of happenings. A full node has the first one several times at first.
var kinds = []kind{
	{"a pod comes", 8, (*madeUpNode).addPod},
	{"the kubelet works", 14, (*madeUpNode).works},
	{"the kubelet works slowly", 5, (*madeUpNode).worksSlowly},
	{"the runtime goes on", 8, (*madeUpNode).goesOn},
	{"the kubelet gives up", 3, (*madeUpNode).givesUp},
	{"a container crashes", 5, (*madeUpNode).crashes},
	{"a container is removed", 3, (*madeUpNode).isRemoved},
	{"a pod is deleted", 4, (*madeUpNode).isDeleted},
	{"a sandbox ends", 2, (*madeUpNode).sandboxEnds},
	{"a process ends", 3, (*madeUpNode).processEnds},
	{"a container is resized", 4, (*madeUpNode).isResized},
	{"a resize is taken back", 2, (*madeUpNode).isTakenBack},
	{"the runtime connects", 4, (*madeUpNode).reconnects},
	{"berth-nri starts again", 4, (*madeUpNode).startsAgain},
	{"berthd", 7, (*madeUpNode).changesBerthd},
	{"an answer is lost", 4, (*madeUpNode).losesAnswer},
	{"the ledger is lost", 2, (*madeUpNode).losesLedger},
	{"the kubelet's API", 4, (*madeUpNode).changesKubelet},
	{"updates", 4, (*madeUpNode).changesUpdates},
	{"time passes", 16, (*madeUpNode).passes},
}

// newPod returns a pod of a template. Its containers are its own: what the kubelet has accepted for them changes.
func (n *madeUpNode) newPod(t template, shown bool) *nodePod {
	t.containers = slices.Clone(t.containers)
	return &nodePod{template: t, number: len(n.pods), shown: shown}
}

// addPod has the kubelet get a pod that fits.
func (n *madeUpNode) addPod(a, how int) {
	p := n.newPod(templates[a%len(templates)], how%3 != 0)
	if n.requested()+p.request() > n.most {
		return
	}
	n.note("pod %s comes; its specification is shown: %v", p.title(), p.shown)
	n.pods = append(n.pods, p)
	for range how % 7 {
		n.kubeletStep(p, false)
	}
}

// most is what the kubelet has for pods, in milli-CPU. Berthd has 7 CPUs for them, and at least one is to be shared. A kubelet that
// counts tooMany admits pods for which berthd has no room.
const (
	most    = 6000
	tooMany = 9000
)

func (n *madeUpNode) requested() (all int64) {
	for _, p := range n.pods {
		if p.counts() {
			all += p.request()
		}
	}
	return all
}

// active picks a pod that was not deleted.
func (n *madeUpNode) active(a int) *nodePod {
	return pick(slices.DeleteFunc(slices.Clone(n.pods), func(p *nodePod) bool { return p.deleted }), a)
}

func (n *madeUpNode) works(a, how int) {
	if p := n.active(a); p != nil {
		for range 1 + how%6 {
			n.kubeletStep(p, false)
		}
	}
}

func (n *madeUpNode) worksSlowly(a, how int) {
	if p := n.active(a); p != nil {
		for range how % 3 {
			n.kubeletStep(p, false)
		}
		n.kubeletStep(p, true)
	}
}

// inProgress picks a container with which the runtime has not finished.
func (n *madeUpNode) inProgress(a int) *nodeContainer {
	return pick(n.containers(func(c *nodeContainer) bool { return c.phase == making || c.phase == begun || c.phase == shows }), a)
}

func (n *madeUpNode) goesOn(a, _ int) {
	if c := n.inProgress(a); c != nil {
		n.proceed(c)
	}
}

// givesUp has the kubelet make another container in place of one that does not start.
func (n *madeUpNode) givesUp(a, how int) {
	c := pick(n.containers(func(c *nodeContainer) bool {
		return (c.phase == begun || c.phase == created || c.phase == making) && !c.givenUp
	}), a)
	if c == nil {
		return
	}
	n.note("the kubelet gives up %s", c.id)
	c.givenUp = true
	for range how % 3 {
		n.kubeletStep(c.pod, false)
	}
	// The next one ends, and another pod wants its CPUs, while the start of the first may go on.
	next := pick(n.containers(func(o *nodeContainer) bool { return o.pod == c.pod && o.name == c.name && o.serves() }), 0)
	if next != nil && how/3%2 == 0 {
		n.note("container %s ends", next.id)
		n.kill(next, true)
		n.addPod(a/2, 6+7*(how/6))
	}
}

func (n *madeUpNode) crashes(a, how int) {
	c := pick(n.containers(func(c *nodeContainer) bool { return c.phase == running }), a)
	if c == nil {
		return
	}
	told := how%4 != 0
	n.note("container %s ends; event: %v", c.id, told)
	n.kill(c, told)
}

func (n *madeUpNode) isRemoved(a, _ int) {
	c := pick(n.containers(func(c *nodeContainer) bool { return c.phase == exited && !c.alive || c.givenUp && c.phase == created }), a)
	if c != nil {
		n.note("container %s is removed", c.id)
		n.remove(c)
	}
}

var leavings = []leaves{leavesProcesses, leavesStarts, leavesStarts, leavesNothing, leavesNothing}

// endsWith begins a start in a pod whose sandbox is going to leave it.
func (n *madeUpNode) endsWith(p *nodePod, how int) {
	if leavings[how%len(leavings)] == leavesStarts && p.sandbox != nil {
		for range how / len(leavings) % 3 {
			n.kubeletStep(p, true)
		}
	}
}

func (n *madeUpNode) isDeleted(a, how int) {
	p := n.active(a)
	if p == nil {
		return
	}
	n.note("pod %s is deleted", p.title())
	n.endsWith(p, how/2)
	p.deleted = true
	if p.sandbox != nil {
		n.stopSandbox(p, p.sandbox, leavings[how/2%len(leavings)], how%4 != 0)
	}
	if how%2 == 0 {
		for _, s := range slices.Clone(p.old) {
			n.removeSandbox(p, s)
		}
	}
}

func (n *madeUpNode) sandboxEnds(a, how int) {
	p := n.active(a)
	if p == nil || p.sandbox == nil {
		return
	}
	n.endsWith(p, how/8)
	n.stopSandbox(p, p.sandbox, leavings[how/8%len(leavings)], how%3 != 0)
	for range how % 5 {
		n.kubeletStep(p, false)
	}
}

func (n *madeUpNode) processEnds(a, _ int) {
	if c := pick(n.containers((*nodeContainer).left), a); c != nil {
		n.endProcess(c)
	}
}

// isResized has the kubelet resize a container, or repeat a resize that was refused.
func (n *madeUpNode) isResized(a, how int) {
	c := pick(n.containers(func(c *nodeContainer) bool { return c.serves() && !c.pod.deleted && !c.wanted().init }), a)
	if c == nil {
		return
	}
	w := c.wanted()
	if before := w.milli; how%3 != 0 && !c.unapplied {
		w.milli = []int64{1000, 2000, 3000}[how%7%3]
		if before%1000 != 0 {
			w.milli = []int64{200, 300, 500}[how%7%3]
		}
		if n.requested() > n.most {
			w.milli = before
		}
	}
	if sameShares(w.milli, c) {
		return
	}
	if how/32%3 == 0 {
		n.link.misses(pick([]int{2, 2, 1, 3}, how/96), pick([]reach{refuses, refuses, drops}, how/8))
	}
	if n.resize(c, how%5 == 0); c.declined && how%2 == 0 {
		n.takeBack(c)
	}
}

// isTakenBack has the kubelet take back a resize that was refused, or that the runtime has failed to carry out: no event tells of that.
func (n *madeUpNode) isTakenBack(a, _ int) {
	c := pick(n.containers(func(c *nodeContainer) bool { return c.serves() && (c.unapplied || c.declined) }), a)
	if c != nil {
		n.takeBack(c)
	}
}

func (n *madeUpNode) takeBack(c *nodeContainer) {
	w := c.wanted()
	before := w.milli
	if w.milli = amounts.Request(c.resources); n.requested() > n.most {
		w.milli = before // another pod has come meanwhile
		return
	}
	c.unapplied, c.declined, c.takenBack = false, false, true
	w.accepted = w.milli
	n.note("the kubelet takes back the resize of %s: it has %dm", c.id, w.milli)
}

// reconnects has the runtime lose and make its connection. Its list may lack something.
func (n *madeUpNode) reconnects(a, how int) {
	for len(n.queue) > 0 {
		n.answer(true, how%2 == 0)
	}
	lacks := nothing
	n.partial = false
	if how%4 == 0 && !n.crio {
		var all []string
		for _, p := range n.pods {
			if p.sandbox != nil {
				all = append(all, p.sandbox.id)
			}
		}
		for _, c := range n.containers(func(c *nodeContainer) bool { return c.phase != making }) {
			all = append(all, c.id)
		}
		without := pick(all, a)
		n.partial = true
		lacks = func(id string) bool { return id == without }
		n.note("the runtime connects again; its list lacks %s", without)
	} else {
		n.note("the runtime connects again")
	}
	n.connect(lacks)
}

// startsAgain has berth-nri end and start. Meanwhile a container may have ended.
func (n *madeUpNode) startsAgain(a, how int) {
	n.unfollow()
	for len(n.queue) > 0 {
		n.answer(true, how%2 == 0)
	}
	n.note("berth-nri starts again")
	for _, p := range n.pods {
		n.endHanging(p) // a later berth-nri does not know a process of a container that the runtime takes for ended
	}
	n.policy = n.newPolicy()
	p := n.active(a)
	if p != nil && how/4%4 == 0 && p.shown {
		n.note("the kubelet's API does not show pod %s", p.title())
		p.shown, p.hidden = false, true
	}
	if how/16%3 == 0 {
		n.link.misses(1+how/64%4, refuses)
	}
	if c := pick(n.containers(func(c *nodeContainer) bool { return c.phase == running }), a); c != nil && how%5 == 0 && !n.crio {
		n.note("meanwhile container %s has ended", c.id)
		n.kill(c, false)
	}
	n.partial = false
	n.connect(nothing)
	if p != nil {
		for range how / 128 % 3 {
			n.kubeletStep(p, false)
		}
	}
}

// restartBerthd starts berthd with the ledger that it had.
func (n *madeUpNode) restartBerthd() {
	n.done(n.link.renew(n.link.Restart(in())))
}

// changesBerthd has berthd end, start, or answer in another way.
func (n *madeUpNode) changesBerthd(_, how int) {
	to := pick([]reach{away, away, answers, answers, slow, slow, stuck, mute}, how)
	if to != away && to != answers { // see link.prompt
		if len(n.queue) > 0 {
			return
		}
		n.unfollow()
	}
	if n.link.is(away) || to == answers {
		n.note("berthd starts again")
		n.restartBerthd()
	}
	if to != answers {
		n.note("berthd %s", to)
		n.link.become(to)
	}
}

// losesAnswer has berthd end after a call, or not answer it.
func (n *madeUpNode) losesAnswer(a, how int) {
	after, next := 1+a%8, pick([]reach{away, away, refuses, drops}, how)
	n.note("berthd misses a call after %d calls: %s", after, next)
	n.link.misses(after, next)
}

// losesLedger has berthd start with an empty ledger, and with all, some or none of the claim records.
func (n *madeUpNode) losesLedger(a, how int) {
	uncertain := ""
	if how%2 == 0 {
		uncertain = "the ledger was lost"
	}
	uids := n.link.ledgerPods()
	for p := range n.link.Ledger.View().UnknownLivePods() {
		uids = append(uids, p.UID)
	}
	keeps := func(uid string) bool {
		return how/2%3 == 0 || how/2%3 == 1 && slices.Index(uids, uid)%3 != a%3
	}
	kept := slices.DeleteFunc(slices.Clone(uids), func(uid string) bool { return !keeps(uid) })
	n.note("berthd starts with an empty ledger; it knows that: %v; claim records are left of %q", uncertain != "", kept)
	n.lost = n.lost || len(kept) < len(uids)
	n.done(n.link.renew(n.link.Lose(in(), uncertain, keeps)))
}

func (n *madeUpNode) changesKubelet(a, how int) {
	k := n.kubelet
	switch how % 5 {
	case 0, 1:
		k.away = !k.away
		n.note("the kubelet's API is away: %v", k.away)
	case 2:
		k.early = !k.early
		n.note("the kubelet's API has no pods yet: %v", k.early)
	default:
		if p := n.active(a); p != nil {
			p.shown = true
			n.note("the kubelet's API shows pod %s", p.title())
		}
	}
}

func (n *madeUpNode) changesUpdates(_, how int) {
	if len(n.queue) > 0 {
		n.answer(false, true)
		return
	}
	n.updates = pick([]updating{fails, waits, unspoken}, how)
}

func (n *madeUpNode) passes(_, how int) {
	d := pick([]time.Duration{0, 0, 0, 0, 1500 * time.Millisecond, 3 * time.Second, 35 * time.Second, 90 * time.Second}, how)
	n.note("berth-nri follows berthd for %s", d)
	n.pass(d)
}

// nothing is what a whole list lacks.
func nothing(string) bool { return false }

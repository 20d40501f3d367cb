package policy

import (
	"context"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/clients/nri/amounts"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/workload"
	"github.com/berthd/berth/server/servertest"
)

// madeUpNode is a node with its kubelet, its runtime, its kernel and berthd, of which a policy is a part.
type madeUpNode struct {
	written sync.Mutex // guards log; see publish
	t       *testing.T
	local   *servertest.Local
	link    *link
	kubelet *fakeKubelet
	config  Config
	policy  *Policy
	pods    []*nodePod
	// crio means that the runtime does not report the processes of sandboxes, and starts containers whose start was refused.
	crio bool
	// answers means that containers change only in answers to events.
	answers bool
	// most is what the kubelet has for pods.
	most int64
	pids map[int]*nodeContainer
	// pauses are the processes of sandboxes.
	pauses map[int]bool
	serial int
	// looks is how often the clock was read.
	looks atomic.Int64
	// lost means that the ledger was lost: what is admitted again may have other CPUs than before.
	lost bool
	// partial means that the runtime's last list lacked something.
	partial   bool
	following *following
	updates   updating
	// late means that the runtime carries out a request that it has left undone.
	late bool
	// busy is full while the runtime sends an event and carries out its answer, or carries out what was requested of it: one after the
	// other. inEvent means that the first of these fills it.
	busy    chan struct{}
	inEvent bool
	queue   []*request
	log     []string
	failure failure
}

// failure is what went wrong first, and what kind of failure that is.
type failure struct{ kind, text string }

// template is a pod of the kubelet's.
type template struct {
	name, qos  string
	containers []wanted
}

// wanted is a container of a pod.
type wanted struct {
	name  string
	milli int64
	init  bool
	// resized means that berthd may have another size of it, since a resize. accepted is the size with which a container was last
	// created or resized; 0 for none.
	resized  bool
	accepted int64
}

var templates = []template{
	{"web", "burstable", []wanted{{name: "main", milli: 200}}},
	{"job", "guaranteed", []wanted{{name: "main", milli: 2000}}},
	{"one", "guaranteed", []wanted{{name: "main", milli: 1000}}},
	{"duo", "guaranteed", []wanted{{name: "main", milli: 1000}, {name: "second", milli: 1000}}},
	{"mix", "guaranteed", []wanted{{name: "main", milli: 1000}, {name: "side", milli: 300}}},
	{"ini", "guaranteed", []wanted{{name: "prepare", milli: 1000, init: true}, {name: "main", milli: 1000}}},
	{"big", "guaranteed", []wanted{{name: "main", milli: 3000}}},
}

// nodePod is a pod of the kubelet.
type nodePod struct {
	template
	number int
	// shown means that the kubelet's API has the specification.
	shown bool
	// hidden means that it has not any more, until everything is reachable.
	hidden  bool
	deleted bool
	// sandbox is the newest one; nil if the kubelet has to make one. old are others that the runtime still has.
	sandbox  *nodeSandbox
	old      []*nodeSandbox
	attempts int
	// prepared are the init containers that have ended well in the sandbox.
	prepared map[string]bool
	// containers are those that the runtime has, or whose process runs.
	containers []*nodeContainer
}

type nodeSandbox struct {
	id      string
	pid     int
	stopped bool
	// made is how many containers were made in it.
	made int
}

func (p *nodePod) title() string { return p.name + strconv.Itoa(p.number) }
func (p *nodePod) uid() string   { return p.title() + "-uid" }

// specification is what the kubelet has of the pod.
func (p *nodePod) specification() *typesv1.Pod {
	spec := &typesv1.Pod{Metadata: &typesv1.PodMetadata{Name: p.title(), Namespace: "default", Uid: p.uid()}, Spec: &typesv1.PodSpec{}}
	for _, w := range p.template.containers {
		cpu := strconv.FormatInt(w.milli, 10) + "m"
		c := &typesv1.Container{Name: w.name, Resources: &typesv1.ResourceRequirements{Requests: map[string]string{"cpu": cpu}}}
		if p.qos == "guaranteed" {
			c.Resources.Limits = map[string]string{"cpu": cpu, "memory": strconv.Itoa(memoryEach)}
		}
		if w.init {
			spec.Spec.InitContainers = append(spec.Spec.InitContainers, c)
		} else {
			spec.Spec.Containers = append(spec.Spec.Containers, c)
		}
	}
	return spec
}

const memoryEach = 64 << 20

// request returns the CPUs that the kubelet counts for a pod, in milli-CPU.
func (p *nodePod) request() int64 {
	var all, most int64
	for _, w := range p.template.containers {
		if w.init {
			most = max(most, w.milli)
		} else {
			all += w.milli
		}
	}
	return max(all, most)
}

// ended means that nothing of a deleted pod runs any more.
func (p *nodePod) ended() bool {
	return p.deleted && p.sandbox == nil && !slices.ContainsFunc(p.containers,
		func(c *nodeContainer) bool { return c.alive || c.phase == begun })
}

// counts returns whether the kubelet counts what a pod requests. Processes that hang do not count.
func (p *nodePod) counts() bool { return !p.deleted || p.sandbox != nil }

// describe returns what NRI has of a sandbox.
func (n *madeUpNode) describe(p *nodePod, s *nodeSandbox) *api.PodSandbox {
	out := pod(p.title(), p.qos)
	out.Id, out.Pid = s.id, uint32(s.pid)
	if p.number%2 == 0 {
		out.Annotations = map[string]string{workload.SourceAnnotation: workload.FromAPIServer} // the others are static
	}
	if n.crio || s.stopped {
		out.Pid = 0
	}
	return out
}

// phase is how far a container is at the runtime.
type phase string

const (
	making  phase = "making"  // CreateContainer was answered, and the runtime does not store it yet
	created phase = "created" // it is stored
	begun   phase = "begun"   // StartContainer was answered
	shows   phase = "shows"   // its process runs, and PostStartContainer was not sent yet
	running phase = "running"
	exited  phase = "exited"
)

type nodeContainer struct {
	// anyway means that CRI-O has started it, although its start was refused: a process that CRI-O does not know any more may be on its
	// CPUs.
	anyway  bool
	id      string
	pod     *nodePod
	sandbox *nodeSandbox
	name    string
	phase   phase
	// made is the number of the container in its sandbox.
	made int
	// resources are those that the runtime has stored. read are the CPUs that the start in progress has read.
	resources *api.LinuxResources
	read      string
	since     time.Time
	createdAt time.Time
	pid       int
	alive     bool
	cpus      cpuset.Set
	// own are the CPUs of a container that has some for itself. It may have shared them with others before: then those beside it leave them
	// next.
	own    cpuset.Set
	beside []*nodeContainer
	// unapplied means that the runtime has failed to resize it, and the kubelet tries again. takenBack means that it did not: berthd
	// may have given CPUs to another pod meanwhile that the container needs.
	unapplied, takenBack bool
	// declined means that the last resize was refused.
	declined bool
	// endedBefore means that it had ended when the runtime connected.
	endedBefore bool
	// given up: the kubelet makes another container of this name.
	givenUp bool
	// passed means that it was made without a place: it gets one later. nowhere means that no CPUs were known for it either, or that
	// CRI-O has started it anyway: it may be on those of others until it is moved.
	passed, nowhere bool
}

// whole returns whether the container is to have CPUs for itself.
func (c *nodeContainer) whole() bool {
	milli := amounts.Request(c.resources)
	return c.pod.qos == "guaranteed" && milli%amounts.MilliPerCPU == 0 && milli > 0
}

// serves returns whether a container runs that the kubelet takes for its pod's.
func (c *nodeContainer) serves() bool {
	return c.phase == running && !c.givenUp && c.sandbox == c.pod.sandbox
}

// left returns whether a process runs that the kubelet and the runtime have ended, or will.
func (c *nodeContainer) left() bool {
	return c.alive && (c.phase == exited || c.phase == running && c.sandbox.stopped)
}

// waits returns whether a container has crashed that had CPUs for itself, and was the last one that was made in its sandbox.
func (c *nodeContainer) waits() bool {
	return c.phase == exited && !c.alive && !c.own.IsEmpty() && c.whole() && c.made == c.sandbox.made && c.sandbox == c.pod.sandbox &&
		!c.wanted().resized
}

// wanted returns the container in its pod's specification.
func (c *nodeContainer) wanted() *wanted { return c.pod.wanted(c.name) }

func (p *nodePod) wanted(name string) *wanted {
	return &p.template.containers[slices.IndexFunc(p.template.containers, func(w wanted) bool { return w.name == name })]
}

// describe returns what NRI has of a container.
func (c *nodeContainer) describe() *api.Container {
	out := &api.Container{Id: c.id, Name: c.name, PodSandboxId: c.sandbox.id, State: api.ContainerState_CONTAINER_CREATED,
		CreatedAt: c.createdAt.UnixNano(),
		Linux:     &api.LinuxContainer{Resources: c.resources.Copy(), CgroupsPath: "/" + c.id}}
	switch c.phase {
	case shows, running:
		out.State, out.Pid = api.ContainerState_CONTAINER_RUNNING, uint32(c.pid)
	case exited:
		out.State = api.ContainerState_CONTAINER_STOPPED
	}
	return out
}

// note adds a line to what has happened. With the log of berth-nri, Follow adds lines during events.
func (n *madeUpNode) note(format string, args ...any) {
	n.written.Lock()
	defer n.written.Unlock()
	n.log = append(n.log, fmt.Sprintf(format, args...))
}

// fail notes the first failure.
func (n *madeUpNode) fail(format string, args ...any) {
	if n.failure.kind == "" {
		n.failure = failure{format, fmt.Sprintf(format, args...)}
		n.note("FAILURE: %s", n.failure.text)
	}
}

// containers returns all containers.
func (n *madeUpNode) containers(chosen func(*nodeContainer) bool) (out []*nodeContainer) {
	for _, p := range n.pods {
		for _, c := range p.containers {
			if chosen(c) {
				out = append(out, c)
			}
		}
	}
	return out
}

// now is a clock that goes on whenever it is read, as a real one: that of synctest stands still while something works.
func (n *madeUpNode) now() time.Time { return time.Now().Add(time.Duration(n.looks.Add(1))) }

// pick chooses one of several; the zero value if there are none.
func pick[T any](from []T, i int) (out T) {
	if len(from) == 0 {
		return out
	}
	return from[i%len(from)]
}

// cpusOf implements Host.CPUsOf.
func (n *madeUpNode) cpusOf(pid int) (cpuset.Set, error) {
	n.publish()
	if n.pauses[pid] {
		return allCPUs, nil
	}
	if c := n.pids[pid]; c != nil && c.alive {
		return c.cpus, nil
	}
	return cpuset.Set{}, fs.ErrNotExist
}

// podQuota implements Host.PodQuota. The kubelet removes the cgroup of a pod that has ended.
func (n *madeUpNode) podQuota(cgroup string, _ int64) (int64, error) {
	n.publish()
	for _, p := range n.pods {
		if pod(p.title(), p.qos).GetLinux().GetCgroupParent() == cgroup && !p.ended() {
			return -1, nil
		}
	}
	return 0, fs.ErrNotExist
}

var allCPUs = cpuset.Range(0, 7)

// in gives a context of the runtime's calls.
func in() context.Context { return context.Background() }

// find returns a container that the runtime stores.
func (n *madeUpNode) find(id string) *nodeContainer {
	return pick(n.containers(func(c *nodeContainer) bool { return c.id == id && c.phase != making }), 0)
}

// apply has the runtime carry out updates, one after another. A container that it does not store is skipped.
func (n *madeUpNode) apply(updates []*api.ContainerUpdate) {
	for _, u := range updates {
		if c := n.find(u.GetContainerId()); c != nil {
			n.note("  %s gets CPUs %q", c.id, u.GetLinux().GetResources().GetCpu().GetCpus())
			n.update(c, u.GetLinux().GetResources())
		}
	}
}

// update changes the resources of a container. A start in progress has read the CPUs already; in CRI-O the process is in its cgroup since
// the container was made.
func (n *madeUpNode) update(c *nodeContainer, by ...*api.LinuxResources) {
	for _, r := range by {
		cpus := c.resources.GetCpu().GetCpus()
		if now := r.GetCpu().GetCpus(); now != "" {
			cpus = now
		}
		c.resources = changed(c.resources, r)
		c.resources.Cpu.Cpus = cpus
	}
	if n.crio {
		c.read = c.resources.GetCpu().GetCpus()
	}
	if now := n.parse(c.resources.GetCpu().GetCpus()); (c.phase == shows || c.phase == running) && c.alive {
		n.moves(c, now)
	}
	n.compareAll()
}

func (n *madeUpNode) parse(cpus string) cpuset.Set {
	if cpus == "" {
		return allCPUs
	}
	out, err := cpuset.Parse(cpus)
	if err != nil {
		n.fail("CPUs %q: %v", cpus, err)
	}
	return out
}

// moves puts a process on CPUs.
func (n *madeUpNode) moves(c *nodeContainer, to cpuset.Set) {
	before, others := c.cpus, n.containers(func(o *nodeContainer) bool { return o != c && (o.alive || o.phase == begun) })
	if c.cpus = to; to != before || c.own.IsEmpty() {
		c.beside = nil
	}
	for _, o := range others {
		on := o.cpus
		if o.phase == begun {
			on = n.parse(o.read)
		}
		o.beside = slices.DeleteFunc(o.beside, func(b *nodeContainer) bool { return b == c })
		if both := on.Intersect(to); !both.IsEmpty() && (to != before || c.own.IsEmpty()) && both.IsSubsetOf(before) {
			c.beside = append(c.beside, o)
		}
	}
	c.nowhere = c.nowhere && slices.ContainsFunc(others, func(o *nodeContainer) bool { return o.own.Overlaps(to) })
	holds := n.holds(c)
	switch {
	case to == c.own || c.own.IsEmpty() && (!c.whole() || !to.IsSubsetOf(holds)):
	case to.IsSubsetOf(holds) && (n.lost || c.wanted().resized || c.sandbox.stopped || c.passed): // what is left of a pod is admitted again
		c.own = to
	case n.late && c.wanted().resized: // what was requested before the resize comes after it
		c.own = to
	case n.lost || c.wanted().resized && !c.whole():
		c.own = cpuset.Set{}
	default:
		n.fail("%s runs on CPUs %s for itself, and is moved to %s; berthd has %s for it", c.id, c.own, to, holds)
	}
}

// holds returns the CPUs that berthd has for a container alone.
func (n *madeUpNode) holds(c *nodeContainer) (out cpuset.Set) {
	view := n.link.Ledger.View()
	for _, uid := range []string{c.pod.uid(), c.pod.uid() + "." + c.name} {
		var claims []ledger.Claim
		if p, ok := view.Pod(uid); ok {
			claims = p.Claims
		} else if u, ok := view.UnknownLivePod(uid); ok {
			claims = u.Claims
		}
		for _, claim := range claims {
			if claim.CPUs != nil && claim.Owner.Container == c.name && claim.CPUs.Use == ledger.CPUExclusive {
				out = out.Union(claim.CPUs.Set)
			}
		}
	}
	return out
}

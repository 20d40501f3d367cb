package policy

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/nri/pkg/api"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	nodev1 "github.com/berthd/berth/api/berth/node/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/clients/berth"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/placement"
	"github.com/berthd/berth/managers/workload"
)

// Scheduler connects a policy with the API server's view of the node.
type Scheduler struct {
	// Allocatable returns what the scheduler counts as allocatable on the node; empty if that is
	// unknown, nil if there is no API server. Excess is called with berthd's sentences about it, each
	// time that berthd gets the list of living pods.
	Allocatable func() map[string]string
	Excess      func(sentences []string)
	// Started is called when a container has started for the first time, and does not wait; nil if nobody reads Pending.
	Started func()
}

// Config has the parts and settings of a policy.
type Config struct {
	Client *berth.Client
	// Kubelet is the first source of a pod's specification; nil if not configured.
	Kubelet Source
	// Devices has the devices that the kubelet has allocated to pods; nil for none.
	Devices DeviceSource
	// Prepared returns the CPUs of the prepared claims that known does not have; nil if there are no claims. With an
	// error the CPUs are valid, but there may be more.
	Prepared func(known func(uid string) bool) (cpuset.Set, error)
	// NodeName is the node's name at the API server; the kubelet adds it to the names of static pods.
	NodeName string
	// Manifests is a folder of pod manifests, such as that of a kubelet's static
	// pods; empty for none. It is read for each pod.
	Manifests string
	// Annotation is the key under which pods carry their specification as JSON; empty if
	// annotations are ignored.
	Annotation string
	// Pass lets containers start on the shared CPUs if berthd refuses them or is unavailable.
	// PassNamespaces does so for some namespaces only.
	Pass           bool
	PassNamespaces []string
	// Established reports whether berthd has been ready on this node once. Before, containers start as with Pass. nil if it has.
	Established func() bool
	// Tell sends an event about a pod, and does not wait for it; nil if nobody reads them.
	Tell func(PodEvent)
	// Timeout returns how long the runtime waits for a response; nil for no deadline except the
	// caller's context.
	Timeout func() time.Duration
	// CPUsOf reads the CPUs that a process may run on; fs.ErrNotExist or ESRCH if it has
	// ended.
	CPUsOf func(pid int) (cpuset.Set, error)
	// BornAt reads when a process began, as a number that differs for another process with the
	// same pid; nil if pids are not used again.
	BornAt func(pid int) (uint64, error)
	// Move sets the CPUs of a sandbox's own process; nil if those processes are not moved. id is the
	// sandbox's, cgroup the pod's according to the runtime, which may be empty. Class PermissionDenied
	// means that the process is in another cgroup.
	Move func(pid int, id, cgroup string, cpus cpuset.Set) error
	// PodQuota sets the CPU quota of a pod's cgroup in microseconds of each period, -1 for none, and
	// returns the one before. With 0 it changes nothing. nil if pods keep their quotas; fs.ErrNotExist if the cgroup has gone.
	PodQuota func(cgroup string, quota int64) (before int64, err error)
	// Memory reads where the memory of a container is. cgroup is its cgroup as NRI names it, and pid a process that must be in
	// it, 0 for none. nil if cgroups are not read. An error is why the memory cannot move, or cannot be seen.
	Memory func(cgroup string, pid int) (Memory, error)
	Scheduler
	// Refused is called for each refusal of a pod, with the reason of the verdict. Repeated means
	// that a refused pod was tried again and nothing had become free; reason is empty then. nil if
	// refusals are not counted.
	Refused func(reason string, repeated bool)
	// Unsolicited is whether updates may be sent to the runtime without an event; empty for UnsolicitedAuto. NRIVersion returns the
	// version of NRI that the runtime reports, and nil if it reports none.
	Unsolicited Unsolicited
	NRIVersion  func() string
	// Now is the clock; nil for the system's.
	Now func() time.Time
	Log *slog.Logger
}

// Policy handles a runtime's events. Its exported methods are the event handlers of package stub
// of NRI, and Follow.
type Policy struct {
	Config
	kicked chan struct{} // compare and write
	room   atomic.Uint64 // grows when resources may have become free
	// followed means that changes of berthd's ledger arrive.
	followed atomic.Bool
	// stalled is why a requested update has no effect yet; nil if the runtime answers.
	stalled atomic.Pointer[error]
	// established means that berthd has been ready on this node once.
	established atomic.Bool

	mu           sync.Mutex // guards the fields below; held over calls of berthd
	sandboxes    map[string]*sandbox
	members      map[string]*member
	refusals     map[string]refused // by the uid of berthd's pod
	tracker      placement.Tracker  // of the members, by their ids
	shared       cpuset.Set         // the last known value; before the first one, see estimateShared
	forgotten    cpuset.Set         // of prepared claims and running members that berthd has lost
	unread       string             // the problem with files of claims that is in the log
	synchronized bool               // synchronized with the runtime; nothing is released before
	unreconciled bool               // berthd has not got the list of living pods
	incomplete   bool               // reconcile has members left
	searchAt     time.Time          // when reconcile may search for specifications again
	deniedAt     time.Time          // when denied members may be due again
	retry        *time.Timer        // kicks after a failure
	confirming   *time.Timer        // kicks when a resize was to be confirmed
	reporting    *time.Timer        // kicks for the next report of a move; a failure does not delay it
	failing      string             // the failure that is in the log
	quotaFailing failures           // the same for the quotas of pods
	unfound      failures           // and for their specifications
	standby      error              // another program assigns the CPUs of the node
	barred       error              // berthd manages the containers of a runtime itself
	runtime      string             // the name and the version of the runtime
	nri          release            // its version of NRI
	requests     bool               // updates may be requested from it at any time
	processes    bool               // it is known to report the process of each sandbox that has not ended
	seesCgroups  bool               // the cgroup of a pod was seen
	told         int                // how many sandboxes events have told of
	reportsCDI   bool               // it is known to report the CDI devices of containers
	released     bool               // nothing is placed any more
	warned       bool               // devices that no plugin would give are in the log
	awaited      map[string]awaited // berthd's pods without a sandbox, by their uids
	connecting   *hearing           // during Synchronize: the kubelet's pods
	unheard      bool               // it is in the log that the kubelet does not list its pods
	ledger       listing            // berthd's last list
	askAt        time.Time          // when the kubelet may be called about the awaited pods again
}

// New returns a policy without pods.
func New(c Config) *Policy {
	if c.Now == nil {
		c.Now = time.Now
	}
	return &Policy{
		Config: c, kicked: make(chan struct{}, 1), sandboxes: map[string]*sandbox{}, members: map[string]*member{},
		refusals: map[string]refused{}, awaited: map[string]awaited{},
		requests: c.Unsolicited == UnsolicitedAlways,
	}
}

// Alone refuses a berthd that moves a runtime's containers itself, with an error of class
// Precondition. Two programs would move them. There would also be a deadlock: berthd calls the
// runtime, the runtime waits for this plugin, and the plugin waits for berthd. Another error
// means that berthd's configuration could not be read.
func Alone(ctx context.Context, client *berth.Client) error {
	c, err := client.Node().GetConfig(ctx, &nodev1.GetConfigRequest{})
	if err != nil {
		return err
	}
	if e := c.GetRuntimeEndpoint(); e != "" {
		return errdefs.Preconditionf("berthd at %s runs with --runtime-endpoint %s and would move the same containers as berth-nri: start berthd without --runtime-endpoint, or do not use berth-nri", client.Endpoint(), e)
	}
	return nil
}

// Ready returns an error if berthd is not followed, so that new pods cannot be placed, or if the runtime does not move containers.
func (p *Policy) Ready() error {
	if err := p.Stalled(); err != nil {
		return err
	}
	if !p.followed.Load() {
		return errdefs.Unavailablef("berthd at %s is not followed: it does not run, or is not ready", p.Client.Endpoint())
	}
	return nil
}

// everywhere in a configuration's devices.elsewhere means every extended resource that is unknown
// to berthd.
const everywhere = "*"

// warnOfDevices logs a warning if berthd rejects pods with devices of the kubelet's plugins.
// Without specifications berthd gets no request for devices.
func (p *Policy) warnOfDevices(ctx context.Context) error {
	if !p.hasSource() || p.warned {
		return nil
	}
	c, err := p.Client.Node().GetConfig(ctx, &nodev1.GetConfigRequest{})
	if err != nil {
		return err
	}
	if c.GetDevicesUnknown() == nodev1.UnknownDevicePolicy_UNKNOWN_DEVICE_POLICY_IGNORE ||
		slices.Contains(c.GetDevicesElsewhere(), everywhere) {
		return nil
	}
	p.warned = true
	p.Log.Warn("pods that request devices of the kubelet's plugins are rejected: start berthd with --devices-elsewhere '*'",
		"devices.unknown", convert.Word(c.GetDevicesUnknown()), "devices.elsewhere", c.GetDevicesElsewhere())
	return nil
}

// sandbox is a pod as the runtime has it.
type sandbox struct {
	id, uid, namespace, name string
	annotations              map[string]string
	// maxMove limits the moves of a kubelet's resize to other NUMA nodes.
	maxMove admissionv1.Disruption
	// cgroup is the pod's.
	cgroup string
	// qos is empty if the cgroup's name does not contain it.
	qos string
	// resources has the limits of the pod's cgroup; nil if the runtime does not report them.
	resources *api.LinuxResources
	// quota is the quota of the pod's cgroup that was removed; 0 if none was. hasQuota means that the
	// cgroup has its quota.
	quota    int64
	hasQuota bool
	// told is the number of the event that was the first to tell of the sandbox; 0 if the runtime's first list had it.
	told int
	found
	// form is how berthd has the pod. unread means that the ledger, which may have the pod from before, was not read yet.
	form   form
	unread bool
	// held is what berthd knew of the pod that it had lost as a whole: its containers, which are admitted apart since, return to it.
	held *typesv1.PodAllocation
	// unfound means that the search for the specification has failed, or is still to come. searches counts the failures.
	unfound  bool
	searches int
	// leaving means that the pod has ended according to the runtime, but one of its processes
	// still exists.
	leaving bool
	// process is the sandbox's own, which runs on cpus. Not all runtimes report it.
	process
	cpus cpuset.Set
	// unmoved is the failure to move the process that is in the log.
	unmoved string
	// names has the containers that were admitted apart.
	names map[string]part
	// made has the names of all containers that there are, or were: true if the container has started once.
	made map[string]bool
}

// process is a process of a container or a sandbox.
type process struct {
	pid  int    // 0 if there is none, or it is not known
	born uint64 // when it began, 0 before that was read
}

// found is what a source has told of a pod.
type found struct {
	// spec is the pod's specification, nil if unknown.
	spec *typesv1.Pod
	// dynamic means that the pod may have claims of dynamic resource allocation. claiming has the names of its containers that
	// use one according to the specification.
	dynamic  bool
	claiming []string
}

// openResize is what is open about resizes of a member.
type openResize struct {
	// asked is one that the runtime has not confirmed. unsure means that berthd may have carried out one without an answer.
	asked  *asked
	unsure bool
}

// member is a container at the runtime.
type member struct {
	id, name string
	pod      *sandbox
	// resources are the container's resources that were sent to the runtime.
	resources *api.LinuxResources
	openResize
	// created is when it was created, in nanoseconds; 0 if the runtime does not say it.
	created int64
	// key is the uid of the container's pod in berthd, empty for an unmanaged one.
	key string
	// parts are the parts of claims that the kubelet has given to the container. cdi means that the runtime reports CDI devices of it.
	parts []claimPart
	cdi   bool
	// claims are parts, or nil if the container does not have their CPUs. With claims, its CPUs and memory nodes are those
	// of all of them, and its size still counts in its pod.
	claims []claimPart
	// added are the amounts that the kubelet adds to the container's own limits for its claims.
	added map[workload.Resource]int64
	// match is whether reconcile has compared the member with the ledger. room is Policy.room when berthd
	// decided that it is denied. tries counts the failures to place it.
	match match
	room  uint64
	tries int
	// own are the exclusive CPUs. free means that the container must have no quota. former are exclusive CPUs, of this allocation or an
	// earlier one, on which the member may still run: nobody else gets them before it has left them.
	own, former cpuset.Set
	free        bool
	// mems are the memory nodes that were sent to the runtime last. cgroup is the container's, as NRI names it.
	mems, cgroup string
	// reportAt is when the memory is reported to berthd again. step is the pod after the last step of its move that a report
	// followed, at the time steppedAt.
	reportAt, steppedAt time.Time
	step                *typesv1.PodAllocation
	sentCPUs
	process
	bound bool
	// ofPod means that its resources are the pod's; see sharesPod.
	ofPod bool
	// life is its start and its end, which was reported at the time ended.
	life  life
	ended time.Time
	// refused is the refusal, or the failure to place the member, that is in the log.
	refused string
	// moved means that the runtime does not have its memory nodes, or has a quota on its own
	// CPUs.
	moved bool
	// held are the NUMA nodes of all memory that berthd holds for it: while its pod moves, these are more than it may use.
	held numa.Mask
	// stays is since when all reports say that memory stays on held nodes, or when the kernel has last tried again to move it. wide
	// are the nodes for another attempt that is due. See tryAgain.
	stays time.Time
	wide  numa.Mask
	// back means that the runtime has confirmed an update to all CPUs.
	back bool
}

// sentCPUs are CPUs of a member whose result is not known yet.
type sentCPUs struct {
	// answered are the CPUs in a response to the runtime that it may still be applying. pushed
	// are the CPUs in a requested update that has not returned. behind means that the response
	// was sent while that update was in progress.
	answered, pushed cpuset.Set
	behind           bool
	// missed means that the update was requested before the process was seen: its start may have read the CPUs of before.
	missed bool
}

// match is the progress of reconcile with a member.
type match int

const (
	compared match = iota // nothing is to be done
	denied                // berthd has refused its admission or its size: due when resources have become free
	due                   // its allocation is known, and is to be compared with the ledger
	unplaced              // it runs, and it is not known yet whether it has an allocation: it is not moved
)

// title names a member in messages.
func (m *member) title() string { return m.name + " of " + m.pod.namespace + "/" + m.pod.name }

// at is the key of a member in the tracker.
func (m *member) at() placement.Key { return placement.Key{ID: m.id} }

// key names a container in berthd that is admitted apart.
func (s *sandbox) key(name string) string {
	uid, _ := workload.Apart(s.uid, s.name, name)
	return uid
}

// lists reports whether the pod's specification has a container.
func (s *sandbox) lists(name string) bool {
	if s.spec == nil {
		return false
	}
	has := func(c *typesv1.Container) bool { return c.GetName() == name }
	return slices.ContainsFunc(s.spec.GetSpec().GetContainers(), has) || slices.ContainsFunc(s.spec.GetSpec().GetInitContainers(), has)
}

// newSandbox converts the pod of an event.
func newSandbox(pod *api.PodSandbox) *sandbox {
	most, _ := maxMove(pod)
	return &sandbox{
		maxMove: most,
		id:      pod.GetId(), uid: pod.GetUid(), namespace: pod.GetNamespace(), name: pod.GetName(), annotations: pod.GetAnnotations(),
		cgroup: cmp.Or(pod.GetLinux().GetCgroupParent(), pod.GetLinux().GetCgroupsPath()), qos: qosOf(pod.GetLinux().GetCgroupParent()),
		resources: pod.GetLinux().GetPodResources(), names: map[string]part{}, made: map[string]bool{},
	}
}

// sandbox gives the pod of an event; the caller holds mu.
func (p *Policy) sandbox(pod *api.PodSandbox) *sandbox {
	s := p.sandboxes[pod.GetId()]
	if s == nil {
		s = newSandbox(pod)
		p.told++
		s.told = p.told
		s.unread = p.ledger.pods == nil || p.unreconciled || p.ledger.loose[s.uid]
		for _, other := range p.sandboxes {
			if other.uid == s.uid {
				s.form, s.unread = other.form, s.unread || other.unread
			}
		}
		p.sandboxes[s.id] = s
		_, err := maxMove(pod)
		if text := s.annotations[workload.MovableAnnotation]; err == nil {
			if _, valid := workload.ParseMovable(text); !valid {
				err = fmt.Errorf("annotation %s is %.40q: expected never, within-node or anywhere; the pod is not moved",
					workload.MovableAnnotation, text)
			}
		}
		if err != nil {
			p.Log.Warn("an annotation of a pod is not valid", "pod", s.namespace+"/"+s.name, "error", err)
		}
	}
	if pid := int(pod.GetPid()); pid != 0 && pid != s.pid {
		s.pid, s.born = pid, 0
		p.runs(s) // it is this process from now on
	}
	return s
}

// passes reports whether a pod's containers may start without an allocation.
func (p *Policy) passes(s *sandbox) bool {
	return p.Pass || p.standby != nil || !p.EverReady() || slices.Contains(p.PassNamespaces, s.namespace)
}

// An event may use eventShare percent of the runtime's deadline. A pass of Follow, for which an
// event may have to wait, may use followShare percent.
const (
	eventShare  = 60
	followShare = 25
)

// within limits a context to a part of the runtime's deadline. A runtime disconnects a plugin
// that exceeds the deadline, and continues without it.
func (p *Policy) within(ctx context.Context, percent time.Duration) (context.Context, context.CancelFunc) {
	if p.Timeout == nil {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, p.Timeout()*percent/100)
}

// begin starts the handling of an event. It locks mu, and records that earlier responses have
// been applied. Call end after the event.
func (p *Policy) begin(ctx context.Context) (within context.Context, end func()) {
	within, cancel := p.within(ctx, eventShare)
	p.mu.Lock()
	p.arrived()
	return within, func() {
		p.mu.Unlock()
		cancel()
	}
}

// kick lets Follow compare.
func (p *Policy) kick() {
	select {
	case p.kicked <- struct{}{}:
	default: // a pass is due already
	}
}

// syncPods sends the list of living pods, and what the scheduler counts as allocatable. The caller
// holds mu.
func (p *Policy) syncPods(ctx context.Context) error {
	living := func(ctx context.Context) ([]string, error) {
		l, err := p.list(ctx)
		if err != nil {
			return nil, err
		}
		uids, _, err := p.living(l.known())
		return uids, err
	}
	answer, err := p.Client.SyncPods(ctx, living, func(req *admissionv1.SyncPodsRequest) {
		if p.Allocatable != nil {
			req.SchedulerAllocatable = p.Allocatable()
		}
	})
	if err == nil && p.Excess != nil {
		p.Excess(answer.GetSchedulerExcess())
	}
	return err
}

// Recount sends again what the scheduler counts as allocatable, because it has changed.
func (p *Policy) Recount() {
	p.mu.Lock()
	p.unreconciled = true
	p.mu.Unlock()
	p.kick()
}

// living returns the uids of the living pods: the runtime's pods, and the pods of berthd's ledger that the
// kubelet may still start. missing are all pods of the ledger that the runtime does not have. It fails until the runtime has
// listed the running pods, because an empty list would remove all pods. The caller holds mu.
func (p *Policy) living(known map[string]*typesv1.PodAllocation) (uids, missing []string, err error) {
	if !p.synchronized {
		return nil, nil, errdefs.Unavailablef("the runtime has not listed its pods yet")
	}
	started := map[string]bool{}
	for _, s := range p.sandboxes {
		if started[s.uid] = true; s.form != apart {
			uids = append(uids, s.uid)
		}
		for name := range s.names {
			uids = append(uids, s.key(name))
		}
	}
	// Berthd admits no pod of a uid that no kubelet gives, and would refuse the whole list.
	uids = slices.DeleteFunc(uids, func(uid string) bool { return len(convert.UIDs("uid", []string{uid})) > 0 })
	slices.Sort(uids)
	uids = slices.Compact(uids)
	for uid, pod := range known {
		if _, lives := slices.BinarySearch(uids, uid); !lives && p.owns(pod) {
			missing = append(missing, uid)
		}
	}
	slices.Sort(missing)
	waiting := slices.DeleteFunc(slices.Clone(missing), func(uid string) bool { return started[podOf(uid)] })
	uids = append(uids, p.restarting(waiting)...)
	slices.Sort(uids)
	return uids, missing, nil
}

// owns reports whether a pod of berthd's ledger was admitted by this policy.
func (p *Policy) owns(pod *typesv1.PodAllocation) bool {
	return pod.GetOwner() == cmp.Or(p.Client.Owner(), ledger.DefaultOwner)
}

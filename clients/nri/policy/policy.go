package policy

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/containerd/nri/pkg/api"

	nodev1 "github.com/berthd/berth/api/berth/node/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/clients/berth"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/placement"
)

// Config is what a policy is made of.
type Config struct {
	Client *berth.Client
	// Kubelet is asked first for the specification of a pod; nil for nobody.
	Kubelet Source
	// Devices has the devices that the kubelet has allocated to pods; nil for none.
	Devices DeviceSource
	// NodeName is the node's name at the API server; the kubelet adds it to the names of static pods.
	NodeName string
	// Manifests is a folder of pod manifests, such as that of a kubelet's static
	// pods; empty for none. It is read for each pod.
	Manifests string
	// Annotation is the key under which pods carry their specification as JSON;
	// empty means that annotations are not believed.
	Annotation string
	// Pass lets containers start on the shared CPUs where berthd refuses or does not
	// answer; PassNamespaces only those of some namespaces.
	Pass           bool
	PassNamespaces []string
	// Timeout tells how long the runtime waits for an answer; nil for as long as the
	// caller's context lives.
	Timeout func() time.Duration
	// CPUsOf reads the CPUs that a process may run on; fs.ErrNotExist or ESRCH if it has
	// ended.
	CPUsOf func(pid int) (cpuset.Set, error)
	// BornAt reads when a process began, as a number that differs for another process with the
	// same pid; nil if pids are not used again.
	BornAt func(pid int) (uint64, error)
	// Move puts a sandbox's own process on some CPUs; nil where that is nobody's job. The
	// runtime says that the process is in the pod's cgroup, which may be empty; class
	// PermissionDenied means that it is not.
	Move func(pid int, cgroup string, cpus cpuset.Set) error
	// Now is the clock; nil for the system's.
	Now func() time.Time
	Log *slog.Logger
}

// Policy answers a runtime's events. Its methods are the handlers that package
// stub of NRI looks for, and Follow.
type Policy struct {
	Config
	kicked chan struct{} // compare and write

	mu           sync.Mutex // guards what is below; held over calls of berthd
	sandboxes    map[string]*sandbox
	members      map[string]*member
	tracker      placement.Tracker // of the members, by their ids
	shared       cpuset.Set        // as last known
	synchronized bool              // synchronized with the runtime; nothing is released before
	unreconciled bool              // berthd has not heard it
	retry        *time.Timer       // kicks after updates have failed
	failing      string            // the failure that is in the log
	barred       error             // berthd has the containers of a runtime itself
	warned       bool              // devices that no plugin would give are in the log
}

// New makes a policy that knows nothing yet.
func New(c Config) *Policy {
	if c.Now == nil {
		c.Now = time.Now
	}
	return &Policy{Config: c, kicked: make(chan struct{}, 1), sandboxes: map[string]*sandbox{}, members: map[string]*member{}}
}

// Alone refuses a berthd that has a container runtime's containers itself, with an
// error of class Precondition: both would move them, and a runtime that berthd asks
// for something while it waits for this plugin, which waits for berthd, waits for
// itself. An error of the client's means that nobody knows.
func Alone(ctx context.Context, client *berth.Client) error {
	c, err := client.Node().GetConfig(ctx, &nodev1.GetConfigRequest{})
	if err != nil {
		return err
	}
	if e := c.GetRuntimeEndpoint(); e != "" {
		return errdefs.Preconditionf("berthd at %s moves the containers of a runtime itself (--runtime-endpoint %s) and cannot stand beside berth-nri: start berthd without it, or leave berth-nri out", client.Endpoint(), e)
	}
	return nil
}

// everywhere in a configuration's devices.elsewhere means all extended resources that
// berthd does not know.
const everywhere = "*"

// warnOfDevices tells of a berthd that does not leave to the kubelet what the kubelet's
// device plugins serve: pods whose specification asks for that get no place. It only
// matters where specifications are known.
func (p *Policy) warnOfDevices(ctx context.Context) error {
	if p.Kubelet == nil && p.Manifests == "" && p.Annotation == "" || p.warned {
		return nil
	}
	c, err := p.Client.Node().GetConfig(ctx, &nodev1.GetConfigRequest{})
	if err != nil {
		return err
	}
	if c.GetDevicesUnknown() == nodev1.UnknownDevicePolicy_UNKNOWN_DEVICE_POLICY_IGNORE || slices.Contains(c.GetDevicesElsewhere(), everywhere) {
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
	// cgroup is the pod's.
	cgroup string
	// qos is empty where the cgroup's name does not tell it.
	qos string
	// resources are those of the pod's cgroup, nil if the runtime does not report them.
	resources *api.LinuxResources
	// spec is what the pod is made of, nil if nobody knows; whole says that berthd
	// has it under its uid.
	spec  *typesv1.Pod
	whole bool
	// apart says that berthd has containers of the pod one by one: they stay so until the pod ends,
	// also if its specification becomes known.
	apart   bool
	stopped bool
	// leaving says that it has ended as far as the runtime tells, and that a process of it
	// is still there.
	leaving bool
	// pid is the sandbox's own process, 0 if the runtime does not tell; it is on cpus. born is
	// when it began, 0 before that was read.
	pid  int
	born uint64
	cpus cpuset.Set
	// names has the containers that are, or were, admitted apart; true for those
	// that have ended.
	names map[string]bool
	// made has the names of all containers that there are, or were.
	made map[string]bool
}

// member is a container at the runtime.
type member struct {
	id, name string
	pod      *sandbox
	// asked is what the runtime has been told that the container asks for.
	asked *api.LinuxResources
	// key is the uid of the container's pod in berthd, empty for an unmanaged one.
	key string
	// own are the CPUs that it has for itself; free says that it has no quota on them.
	own  cpuset.Set
	free bool
	// mems is what the runtime was given last.
	mems string
	// answered are the CPUs in an answer to the runtime that it may still be carrying out;
	// pushed are those in an update that was requested and has not returned.
	// behind says that the answer was given while that update was under way.
	answered, pushed cpuset.Set
	behind           bool
	pid              int
	born             uint64 // when the process began, 0 before that was read
	bound            bool
	// ofPod means that its resources are those of the pod as a whole; see sharesPod.
	ofPod bool
	// allowed says that it has CPUs of its own and was let start on them.
	allowed bool
	// stopped says that the runtime has told of its end, at the time ended. It stays known
	// as long as its process is there.
	stopped bool
	ended   time.Time
	// refused is the resize, with the reason, that was refused last.
	refused string
	// moved means that the runtime does not have its memory nodes, or has a quota on its own
	// CPUs.
	moved bool
	// unlisted says that the runtime's last list did not have it.
	unlisted bool
}

// title is what people call a member.
func (m *member) title() string { return m.name + " of " + m.pod.namespace + "/" + m.pod.name }

// key names a container in berthd that is admitted apart.
func (s *sandbox) key(name string) string { return s.uid + "." + name }

// lists tells whether the pod's specification has a container.
func (s *sandbox) lists(name string) bool {
	if s.spec == nil {
		return false
	}
	has := func(c *typesv1.Container) bool { return c.GetName() == name }
	return slices.ContainsFunc(s.spec.GetSpec().GetContainers(), has) || slices.ContainsFunc(s.spec.GetSpec().GetInitContainers(), has)
}

// newSandbox takes over what an event says of a pod.
func newSandbox(pod *api.PodSandbox) *sandbox {
	return &sandbox{
		id: pod.GetId(), uid: pod.GetUid(), namespace: pod.GetNamespace(), name: pod.GetName(), annotations: pod.GetAnnotations(),
		cgroup: cmp.Or(pod.GetLinux().GetCgroupParent(), pod.GetLinux().GetCgroupsPath()), qos: qosOf(pod.GetLinux().GetCgroupParent()),
		resources: pod.GetLinux().GetPodResources(), names: map[string]bool{}, made: map[string]bool{},
	}
}

// sandbox gives the pod of an event; the caller holds mu.
func (p *Policy) sandbox(pod *api.PodSandbox) *sandbox {
	s := p.sandboxes[pod.GetId()]
	if s == nil {
		s = newSandbox(pod)
		p.sandboxes[s.id] = s
	}
	if pid := int(pod.GetPid()); pid != 0 && pid != s.pid {
		s.pid, s.born = pid, 0
		p.runs(s) // it is this process from now on
	}
	return s
}

// passes tells whether a pod's containers may start without a place.
func (p *Policy) passes(s *sandbox) bool {
	return p.Pass || slices.Contains(p.PassNamespaces, s.namespace)
}

// What part of the runtime's deadline, in percent, is for an event and what part for
// a look by Follow, for which an event may have to wait.
const (
	eventShare  = 60
	followShare = 25
)

// within limits a context to a part of the runtime's deadline: it drops a plugin
// that does not answer, and goes on without.
func (p *Policy) within(ctx context.Context, percent time.Duration) (context.Context, context.CancelFunc) {
	if p.Timeout == nil {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, p.Timeout()*percent/100)
}

// begin starts an event of the runtime: it waits for mu, and notes that earlier answers have
// been carried out. end has to be called after the event.
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
	default: // it will look anyway
	}
}

// living lists the pods of berthd that are alive. The error is that the runtime has not said yet what runs: an empty list
// then would be the end of all pods. The caller holds mu.
func (p *Policy) living(context.Context) (uids []string, err error) {
	if !p.synchronized {
		return nil, errdefs.Unavailablef("the runtime has not said yet which pods run")
	}
	for _, s := range p.sandboxes {
		if s.stopped {
			continue
		}
		uids = append(uids, s.uid)
		for name := range s.names {
			uids = append(uids, s.key(name))
		}
	}
	slices.Sort(uids)
	return slices.Compact(uids), nil
}

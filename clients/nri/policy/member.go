package policy

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/containerd/nri/pkg/api"
	"google.golang.org/protobuf/proto"

	lifecyclev1 "github.com/berthd/berth/api/berth/lifecycle/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/api/protocol"
	"github.com/berthd/berth/clients/berth"
	"github.com/berthd/berth/clients/nri/amounts"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/placement"
	"github.com/berthd/berth/managers/workload"
)

// member is a container at the runtime. Each group of fields is of one job.
type member struct {
	id, name string
	pod      *sandbox
	cgroup   string // as NRI names it
	created  int64  // in nanoseconds; 0 if the runtime does not say it
	// resources are the container's resources that were sent to the runtime.
	resources *api.LinuxResources
	openResize
	// life is its start and its end, which was reported at the time ended.
	life  life
	ended time.Time
	process
	sentCPUs
	allocated
	claimUse
	comparison
	// mems are the memory nodes that were sent to the runtime last. moved means that the runtime does not have them, or has a quota on
	// the member's own CPUs.
	mems  string
	moved bool
	memoryReport
	// back means that the runtime has confirmed an update to all CPUs.
	back bool
}

// allocated is what berthd has allocated to a member.
type allocated struct {
	// key is the uid of the container's pod in berthd, empty for an unmanaged one. bound means that berthd has the container's id.
	key   string
	bound bool
	// own are the exclusive CPUs. free means that the container must have no quota. former are exclusive CPUs, of this allocation or an
	// earlier one, on which the member may still run: nobody else gets them before it has left them.
	own, former cpuset.Set
	free        bool
	// ofPod means that its resources are the pod's; see sharesPod.
	ofPod bool
}

// claimUse is what a member has of claims.
type claimUse struct {
	// parts are the parts of claims that the kubelet has given to the container. cdi means that the runtime reports CDI devices of it.
	parts []claimPart
	cdi   bool
	// claims are parts, or nil if the container does not have their CPUs. With claims, its CPUs and memory nodes are those
	// of all of them, and its size still counts in its pod.
	claims []claimPart
	// added are the amounts that the kubelet adds to the container's own limits for its claims.
	added map[workload.Resource]int64
}

// comparison is the progress of the placer with a member.
type comparison struct {
	// match is whether it was compared with the ledger. room is agenda.room when berthd decided that it is denied. tries counts the
	// failures to place it.
	match match
	room  uint64
	tries int
	// refused is the refusal, or the failure to place the member, that is in the log.
	refused string
}

// match is the progress of reconcile with a member.
type match int

const (
	compared match = iota // nothing is to be done
	denied                // berthd has refused its admission or its size: due when resources have become free
	due                   // its allocation is known, and is to be compared with the ledger
	unplaced              // it runs, and it is not known yet whether it has an allocation: it is not moved
)

// memoryReport is what the reporter has reported of a member.
type memoryReport struct {
	// reportAt is when the memory is reported to berthd again. step is the pod after the last step of its move that a report
	// followed, at the time steppedAt.
	reportAt, steppedAt time.Time
	step                *typesv1.PodAllocation
	// held are the NUMA nodes of all memory that berthd holds for it: while its pod moves, these are more than it may use.
	held numa.Mask
	// stays is since when all reports say that memory stays on held nodes, or when the kernel has last tried again to move it. wide
	// are the nodes for another attempt that is due. See tryAgain.
	stays time.Time
	wide  numa.Mask
}

// openResize is what is open about resizes of a member.
type openResize struct {
	// asked is one that the runtime has not confirmed. unsure means that berthd may have carried out one without an answer.
	asked  *asked
	unsure bool
}

// asked is a resize that the runtime was let carry out, and has not confirmed.
type asked struct {
	before *api.LinuxResources // what the runtime had
	at     time.Time
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

// title names a member in messages.
func (m *member) title() string { return m.name + " of " + m.pod.namespace + "/" + m.pod.name }

// at is the key of a member in the tracker.
func (m *member) at() placement.Key { return placement.Key{ID: m.id} }

// bind reports the container's id to berthd, which calls PreStartContainer of its device plugins.
func (m *member) bind(ctx context.Context, client *berth.Client) error {
	if m.key == "" || m.bound {
		return nil
	}
	answer, err := client.PreStartContainer(ctx, m.key, m.name, m.id, 0)
	if err != nil {
		return err
	}
	m.bindTo(answer)
	return nil
}

// claimPart is a part of a claim: a container of the claim in berthd.
type claimPart struct{ uid, container string }

// readParts adds the parts of claims of berth-dra that a container uses to a member. They are the CDI devices of the kubelet's call to
// the runtime. The kubelet names those of the requests that the container uses, also for an init container, and only of claims that it
// has prepared. Names in annotations, which the author of a pod can write, are not among them. The runtime stores them
// with the container, so they do not depend on what the kubelet has later.
func (m *member) readParts(c *api.Container) {
	m.cdi = len(c.GetCDIDevices()) > 0
	for _, d := range c.GetCDIDevices() {
		id, ours := strings.CutPrefix(d.GetName(), protocol.ClaimResource+"=")
		uid, container, _ := strings.Cut(id, ":")
		if part := (claimPart{uid, container}); ours && !slices.Contains(m.parts, part) {
			m.parts = append(m.parts, part)
		}
	}
}

// requested returns the amounts that a member requests by itself, if the runtime has these resources for it.
func (m *member) requested(r *api.LinuxResources) amounts.Amounts {
	return amounts.Of(m.without(r), m.even())
}

// without returns a member's resources without what the kubelet adds to its limits for claims. The kubelet adds CPUs and memory only
// where the container has a limit.
func (m *member) without(r *api.LinuxResources) *api.LinuxResources {
	if len(m.added) == 0 {
		return r
	}
	out := changed(r, nil)
	quota, added := r.GetCpu().GetQuota().GetValue(), m.added[workload.CPU]*int64(r.GetCpu().GetPeriod().GetValue())/amounts.MilliPerCPU
	if quota > added {
		out.Cpu.Quota = api.Int64(quota - added)
	}
	if limit, added := r.GetMemory().GetLimit().GetValue(), m.added[workload.Memory]; limit > added && limit < amounts.NoCap {
		out.Memory.Limit = api.Int64(limit - added)
	}
	for _, h := range out.GetHugepageLimits() {
		if size, err := amounts.PageSize(h.GetPageSize()); err == nil {
			h.Limit -= min(h.Limit, uint64(m.added[workload.HugePagesOf(size)]))
		}
	}
	return out
}

// bindTo takes the memory nodes that are in force from the answer to PreStartContainer.
func (m *member) bindTo(answer *lifecyclev1.PreStartContainerResponse) {
	m.bound, m.reportAt = true, time.Time{}
	if now := convert.Nodes(answer.GetCpusetMems()).Commas(); len(m.claims) == 0 && now != "" && now != m.mems {
		m.mems, m.moved = now, true
	}
}

// bounded reports whether only the quota of its pod limits what a container uses. With pod-level resources
// (KEP-2837) the kubelet writes the pod's amount on a container without a limit of its own.
func (m *member) bounded() bool {
	if m.ofPod {
		return true
	}
	spec := m.pod.spec.GetSpec()
	return slices.ContainsFunc(slices.Concat(spec.GetInitContainers(), spec.GetContainers()), func(c *typesv1.Container) bool {
		return c.GetName() == m.name && c.GetResources().GetLimits()["cpu"] == ""
	})
}

// lostQuota returns the quota of a container that an earlier berth-nri has removed; 0 if none was. The
// runtime reports a removed quota as negative, and a quota that the kubelet has never set as zero. The limit of an even container equals
// its request.
func (m *member) lostQuota() int64 {
	if !m.even() || m.resources.GetCpu().GetQuota().GetValue() >= 0 {
		return 0
	}
	return (amounts.Of(m.resources, true).CPULimit + m.added[workload.CPU]) * amounts.Period / amounts.MilliPerCPU
}

// logOnce logs a failure of a member as a warning, unless it was the last one already. It reports whether it was another one.
func (m *member) logOnce(ctx context.Context, log *slog.Logger, what string, err error) (other bool) {
	level, text := slog.LevelDebug, what+err.Error()
	if text != m.refused {
		level, m.refused, other = slog.LevelWarn, text, true
	}
	log.Log(ctx, level, what, "pod", m.pod.namespace+"/"+m.pod.name, "container", m.name, "error", err)
	return other
}

// even reports whether a container's limits equal its requests, independent of its quota. CPUs of claims are
// not part of the requests.
func (m *member) even() bool {
	return m.pod.qos == string(workload.Guaranteed) || !m.own.IsEmpty() && len(m.claims) == 0
}

// apart describes a container as a pod of its own. A container that shares the resources of its pod
// gets shared CPUs.
func (m *member) apart() (*typesv1.Pod, error) {
	s, qos := m.pod, m.pod.qos
	resources, err := amounts.Rebuilt(m.without(m.resources), m.even())
	if err != nil {
		return nil, fmt.Errorf("rebuild the requests of container %s: %w", m.name, err)
	}
	if m.ofPod {
		resources, qos = nil, string(workload.BestEffort)
	}
	uid, name := workload.Apart(s.uid, s.name, m.name)
	return &typesv1.Pod{
		Metadata: &typesv1.PodMetadata{
			Name: name, Namespace: s.namespace, Uid: uid,
			Annotations: s.annotationsFor("container"),
		},
		Spec:   &typesv1.PodSpec{Containers: []*typesv1.Container{{Name: m.name, Resources: resources}}},
		Status: &typesv1.PodStatus{QosClass: qos},
	}, nil
}

// changed returns the resources after an update. Zero values of the update change nothing.
func changed(have, by *api.LinuxResources) *api.LinuxResources {
	out := have.Copy()
	if out == nil {
		out = &api.LinuxResources{}
	}
	if out.Cpu == nil {
		out.Cpu = &api.LinuxCPU{}
	}
	if out.Memory == nil {
		out.Memory = &api.LinuxMemory{}
	}
	if v := by.GetCpu().GetShares().GetValue(); v != 0 {
		out.Cpu.Shares = api.UInt64(v)
	}
	if v := by.GetCpu().GetQuota().GetValue(); v != 0 {
		out.Cpu.Quota = api.Int64(v)
	}
	if v := by.GetCpu().GetPeriod().GetValue(); v != 0 {
		out.Cpu.Period = api.UInt64(v)
	}
	if v := by.GetMemory().GetLimit().GetValue(); v != 0 {
		out.Memory.Limit = api.Int64(v)
	}
	return out
}

// resized reports whether berthd counts a container with another size than the runtime. If not, the
// pod's specification gets that size, too, because its source may have only the first size.
func (m *member) resized(counted *typesv1.ContainerAllocation) bool {
	c := &typesv1.Container{Name: m.name, Resources: proto.CloneOf(counted.GetResources())}
	if m.key == m.pod.uid {
		before := proto.CloneOf(c)
		if m.writeTo(c) != nil || !proto.Equal(before, c) {
			return true
		}
		for _, c := range slices.Concat(m.pod.spec.GetSpec().GetInitContainers(), m.pod.spec.GetSpec().GetContainers()) {
			if c.GetName() == m.name && m.writeTo(c) != nil {
				return true
			}
		}
		return false
	}
	pod, err := m.apart()
	if err != nil {
		return true
	}
	has, err := amounts.Declared(pod.GetSpec().GetContainers()[0])
	was, otherErr := amounts.Declared(c)
	if m.free && has.CPULimit == 0 {
		has.CPULimit = was.CPULimit // the runtime has no quota, whatever the limit is
	}
	return err != nil || otherErr != nil || has != was
}

// writeTo changes a specification's requests and limits to the runtime's values. Equal values
// keep their text. The runtime has no memory request. The specification's request stays if
// the limit allows it. A request that equalled the limit follows the limit.
func (m *member) writeTo(c *typesv1.Container) error {
	old, err := amounts.Declared(c)
	if err != nil {
		return err
	}
	limit, err := amounts.OfPod(m.pod.spec, c)
	if err != nil {
		return err
	}
	now, next := m.requested(m.resources), old
	if limit == 0 && !amounts.SameRequest(old.CPURequest, now.CPURequest) {
		next.CPURequest = max(now.CPURequest, amounts.LeastShares)
	}
	// A limit in the runtime without one in the container's specification is the pod's
	// (KEP-2837), or has no known origin.
	if now.CPULimit > 0 && old.CPULimit > 0 && max(old.CPULimit, amounts.LeastLimit) != now.CPULimit {
		next.CPULimit = now.CPULimit
	}
	if !amounts.SameMemory(old.MemoryLimit, now.MemoryLimit) {
		next.MemoryLimit = now.MemoryLimit
		next.MemoryRequest = min(old.MemoryRequest, now.MemoryLimit)
		if old.MemoryRequest == old.MemoryLimit {
			next.MemoryRequest = now.MemoryLimit
		}
	}
	if next == old {
		return nil
	}
	if c.Resources == nil {
		c.Resources = &typesv1.ResourceRequirements{}
	}
	r := c.Resources
	if r.Requests == nil {
		r.Requests = map[string]string{}
	}
	if r.Limits == nil {
		r.Limits = map[string]string{}
	}
	amounts.Put(r.Requests, "cpu", next.CPURequest, "m")
	amounts.Put(r.Limits, "cpu", next.CPULimit, "m")
	amounts.Put(r.Requests, "memory", next.MemoryRequest, "")
	amounts.Put(r.Limits, "memory", next.MemoryLimit, "")
	return nil
}

// limited reports whether a specification has another CPU limit than the runtime. agree does not compare it, because with pod-level
// resources (KEP-2837) and exclusive CPUs the runtime has another one.
func (m *member) limited(spec *typesv1.Pod) bool {
	for _, c := range slices.Concat(spec.GetSpec().GetInitContainers(), spec.GetSpec().GetContainers()) {
		if next := proto.CloneOf(c); c.GetName() == m.name {
			return m.writeTo(next) == nil && !proto.Equal(next, c)
		}
	}
	return false
}

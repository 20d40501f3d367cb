package policy

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/containerd/nri/pkg/api"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/workload"
)

// sandbox is a pod as the runtime has it. Each group of fields is of one job.
type sandbox struct {
	id, uid, namespace, name string
	annotations              map[string]string
	// maxMove limits the moves of a kubelet's resize to other NUMA nodes.
	maxMove admissionv1.Disruption
	cgroup  string // the pod's
	qos     string // empty if the cgroup's name does not contain it
	// resources has the limits of the pod's cgroup; nil if the runtime does not report them.
	resources *api.LinuxResources
	removedQuota
	// told is the number of the event that was the first to tell of the sandbox; 0 if the runtime's first list had it.
	told int
	found
	searched
	admission
	// leaving means that the pod has ended according to the runtime, but one of its processes
	// still exists.
	leaving bool
	// process is the sandbox's own, which runs on cpus. Not all runtimes report it. unmoved is the failure to move it that is in the log.
	process
	cpus    cpuset.Set
	unmoved string
	// made has the names of all containers that there are, or were: true if the container has started once.
	made map[string]bool
}

// newSandbox converts the pod of an event.
func newSandbox(pod *api.PodSandbox) *sandbox {
	most, _ := maxMove(pod)
	return &sandbox{
		maxMove: most,
		id:      pod.GetId(), uid: pod.GetUid(), namespace: pod.GetNamespace(), name: pod.GetName(), annotations: pod.GetAnnotations(),
		cgroup: cmp.Or(pod.GetLinux().GetCgroupParent(), pod.GetLinux().GetCgroupsPath()), qos: qosOf(pod.GetLinux().GetCgroupParent()),
		resources: pod.GetLinux().GetPodResources(), admission: admission{names: map[string]part{}}, made: map[string]bool{},
	}
}

// removedQuota is the quota of a pod's cgroup that was removed; 0 if none was. hasQuota means that the cgroup has its quota.
type removedQuota struct {
	quota    int64
	hasQuota bool
}

// searched is the progress of the finder with a pod: unfound means that the search for the specification has failed, or is still to come.
// searches counts the failures.
type searched struct {
	unfound  bool
	searches int
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

// admission is how berthd has a pod.
type admission struct {
	form form
	// unread means that the ledger, which may have the pod from before, was not read yet.
	unread bool
	// held is what berthd knew of the pod that it had lost as a whole: its containers, which are admitted apart since, return to it.
	held *typesv1.PodAllocation
	// names has the containers that were admitted apart.
	names map[string]part
}

// form is how berthd has a pod.
type form int

const (
	unadmitted form = iota // not at all, as far as this policy knows
	whole                  // under its uid
	apart                  // container by container. It stays so until the pod ends, even if its specification becomes known
)

// part is the state of the allocation of a container that is admitted apart.
type part int

const (
	inUse      part = iota // a container has it
	kept                   // its container has ended: it is kept for the next one of the name, unless another pod needs it
	keptBefore             // its container had ended when the runtime connected. It may have crashed a moment ago, so no other pod gets it
)

// process is a process of a container or a sandbox.
type process struct {
	pid  int    // 0 if there is none, or it is not known
	born uint64 // when it began, 0 before that was read
}

// inherit moves berthd's allocations from another sandbox of the same pod, whose containers have
// ended.
func (s *sandbox) inherit(from *sandbox) {
	for name := range from.names {
		if _, known := s.names[name]; !known {
			s.names[name] = kept
		}
	}
	if s.form == unadmitted {
		s.form = from.form
	}
	from.form, s.unread = unadmitted, s.unread || from.unread
	if s.spec == nil {
		s.found = from.found
	}
	from.names = map[string]part{}
}

// nearClaims returns the devices of a container, with the NUMA nodes to which its claims on CPUs bind what the container requests
// besides: only a guaranteed container has memory of certain NUMA nodes. It is bound to the nodes of all parts together, so any of these
// is near.
func (s *sandbox) nearClaims(list []*typesv1.ExternalDevice) []*typesv1.ExternalDevice {
	var nodes numa.Mask
	for _, d := range list {
		if isClaim(d) && s.qos == string(workload.Guaranteed) {
			nodes = nodes.Union(convert.Nodes(d.GetNumaNodes()))
		}
	}
	out := slices.Clone(list)
	for i, d := range out {
		if isClaim(d) {
			out[i] = &typesv1.ExternalDevice{Resource: d.GetResource(), Id: d.GetId(), NumaNodes: convert.SomeNodes(nodes),
				Claim: d.GetClaim(), Unlisted: d.GetUnlisted()}
		}
	}
	return out
}

// newer reports whether a pod is known to be newer than another one of its name. Events have told of sandboxes in the order in which they
// were made. Those of the runtime's first list have the time at which the kubelet has first seen their pod.
func (s *sandbox) newer(other *sandbox) bool {
	if s.told != other.told {
		return s.told > other.told
	}
	seen, err := time.Parse(time.RFC3339Nano, s.annotations[workload.SeenAnnotation])
	before, otherErr := time.Parse(time.RFC3339Nano, other.annotations[workload.SeenAnnotation])
	return err == nil && otherErr == nil && seen.After(before)
}

// podOf returns the uid of the pod that a pod of berthd is, or is a container of: the uids of Kubernetes and the names of containers
// have no dots.
func podOf(uid string) string {
	if i := strings.LastIndexByte(uid, '.'); i > 0 {
		return uid[:i]
	}
	return uid
}

// admittedApart notes that berthd has a container of a pod by itself.
func (s *sandbox) admittedApart(all map[string]*sandbox, name string) {
	if s.names[name] = inUse; s.form == unadmitted {
		s.admitted(all, apart)
	}
}

// admitted notes how berthd has a pod, for all of its sandboxes.
func (s *sandbox) admitted(all map[string]*sandbox, f form) {
	s.form = f
	for _, other := range all {
		if other.uid == s.uid && other.form == unadmitted {
			other.form = f
		}
	}
}

// carry keeps what is known of a pod over a new connection of the runtime. The ledger and the sources may have changed meanwhile.
func (s *sandbox) carry(was *sandbox) {
	s.form, s.made = was.form, was.made
	s.found = was.found
	s.removedQuota = was.removedQuota
	s.unmoved, s.told = was.unmoved, was.told
	if was.pid == s.pid && was.born != 0 {
		s.born = was.born
	}
}

// movesAnnotation of a pod limits how much its containers may be disturbed by moves to other NUMA
// nodes, where a kubelet's resize is not possible on the nodes that they have. Without it, they do not move.
const movesAnnotation = "nri.berthd.github.io/max-move-disruption"

// moveLimits are the values of movesAnnotation.
var moveLimits = map[string]admissionv1.Disruption{
	"none":        admissionv1.Disruption_DISRUPTION_NONE,
	"move-cpus":   admissionv1.Disruption_DISRUPTION_MOVE_CPUS,
	"move-memory": admissionv1.Disruption_DISRUPTION_MOVE_MEMORY,
}

// maxMove reads movesAnnotation. A value that is not valid allows no move.
func maxMove(pod *api.PodSandbox) (admissionv1.Disruption, error) {
	text, given := pod.GetAnnotations()[movesAnnotation]
	if !given {
		return admissionv1.Disruption_DISRUPTION_NONE, nil
	}
	d, known := moveLimits[text]
	if !known {
		return admissionv1.Disruption_DISRUPTION_NONE,
			fmt.Errorf("annotation %s is %.40q: expected none, move-cpus or move-memory; the containers do not move to other NUMA nodes",
				movesAnnotation, text)
	}
	return d, nil
}

// make notes that there is a container.
func (s *sandbox) make(name string) {
	if !s.hasMade(name) {
		s.made[name] = false
	}
}

func (s *sandbox) hasMade(name string) bool {
	_, made := s.made[name]
	return made
}

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

// qosOf reads the QoS class from the name that the kubelet gives a pod's cgroup:
// kubepods/burstable/podUID, or kubepods-burstable-podUID.slice. It is empty for
// cgroups that are not a kubelet's.
func qosOf(cgroupParent string) string {
	base := path.Base(cgroupParent)
	tier := path.Base(path.Dir(cgroupParent))
	names := func(class string) bool { return tier == class || strings.Contains(base, "-"+class+"-pod") }
	switch {
	case !strings.Contains(cgroupParent, "kubepods"):
		return ""
	case names("burstable"):
		return string(workload.Burstable)
	case names("besteffort"):
		return string(workload.BestEffort)
	default:
		return string(workload.Guaranteed)
	}
}

// is reports whether a manifest is the pod's. Manifests of static pods have no uid, and the
// kubelet appends the node's name to theirs.
func (s *sandbox) is(m *typesv1.PodMetadata, node string) bool {
	if m.GetUid() == s.uid {
		return true
	}
	if m.GetNamespace() != s.namespace {
		return false
	}
	return m.GetName() == s.name || s.annotations[workload.SourceAnnotation] != "" && s.name == m.GetName()+"-"+node
}

// claim gives a specification the pod's identity. Dynamic resources are removed from it,
// because the kubelet, which runs the pod, allocates them itself.
func (s *sandbox) claim(pod *typesv1.Pod, source string) *typesv1.Pod {
	// The author of an annotation may have left the claims out.
	s.dynamic = len(pod.Spec.ResourceClaims) > 0 || source == "annotation"
	pod.Spec.ResourceClaims, s.claiming = nil, nil
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		if len(c.GetResources().GetClaims()) > 0 {
			s.claiming = append(s.claiming, c.GetName())
			c.Resources.Claims = nil
		}
	}
	pod.Metadata = &typesv1.PodMetadata{Name: s.name, Namespace: s.namespace, Uid: s.uid, Annotations: s.annotationsFor(source)}
	if s.qos != "" {
		pod.Status = &typesv1.PodStatus{QosClass: s.qos}
	}
	return pod
}

// annotationsFor returns the annotations of a pod in berthd: the source of its specification, and the permitted
// moves. Without a valid value, berthd does not move the pod.
func (s *sandbox) annotationsFor(source string) map[string]string {
	out := map[string]string{specificationAnnotation: source}
	if text := s.annotations[workload.MovableAnnotation]; text != "" {
		if _, valid := workload.ParseMovable(text); valid {
			out[workload.MovableAnnotation] = text
		}
	}
	return out
}

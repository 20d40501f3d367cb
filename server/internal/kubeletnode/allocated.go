package kubeletnode

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/api/podspec"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger/kubelet"
	"github.com/berthd/berth/managers/workload"
)

// UnknownNamespace is that of pods of which only the amounts are known. Their name is their uid.
const UnknownNamespace = "unknown"

// amounts are the resources of a container, or of a pod.
type amounts struct {
	Requests map[string]string `json:"requests"`
	Limits   map[string]string `json:"limits"`
}

func (a *amounts) message() *typesv1.ResourceRequirements {
	if a == nil {
		return nil
	}
	return &typesv1.ResourceRequirements{Requests: a.Requests, Limits: a.Limits}
}

// allocatedPod is a pod of allocated_pods_state.
type allocatedPod struct {
	Containers map[string]*amounts `json:"ContainerResources"`
	Pod        *amounts            `json:"PodLevelResources"`
	// whole is the pod with its name and the roles of its containers; nil up to Kubernetes 1.37, and for a pod of that time.
	whole *podspec.NodePod
}

// allocatedFiles have the pods that the kubelet has admitted, and the amounts of their containers: those that it has allocated, and
// those that it has set. They have the same form.
var allocatedFiles = []struct {
	kind kubelet.Kind
	name string
}{{kubelet.Allocated, "allocated_pods_state"}, {kubelet.Actuated, "actuated_pods_state"}}

// readAllocated reads the pods that the kubelet has admitted from the first file that can be read, and checks both files.
func (r *reader) readAllocated(dir string) {
	r.Damaged = map[kubelet.Kind]error{}
	for _, of := range allocatedFiles {
		file := path.Join(dir, of.name)
		data, err := r.file(file)
		if err == nil {
			if damage := kubelet.CheckAmounts(data); damage != nil {
				r.Damaged[of.kind] = damage
			}
			if r.allocatedText != nil {
				continue // read
			}
			r.allocated, err = parseAllocated(data)
		}
		switch {
		case err == nil:
			r.found("amounts of pods", file, nil)
			r.allocatedText, r.unallocated = data, nil
		case r.allocatedText == nil && r.unallocated == nil:
			r.unallocated = err
		}
	}
}

// UnmarshalJSON reads an entry. In Kubernetes 1.33 it has the containers by their names.
func (p *allocatedPod) UnmarshalJSON(text []byte) error {
	type entry allocatedPod // without this method
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if d.Decode((*entry)(p)) == nil {
		return nil
	}
	*p = allocatedPod{}
	return json.Unmarshal(text, &p.Containers)
}

// parseAllocated reads such a file. Without a version it has the amounts of containers. Version v2 (Kubernetes 1.38) has whole pods, and
// the amounts for an older kubelet.
func parseAllocated(data []byte) (map[string]allocatedPod, error) {
	var outer struct {
		Version string `json:"version"`
		Data    string `json:"data"`
	}
	var inner struct {
		Pods    []byte                  `json:"podList"`
		Entries map[string]allocatedPod `json:"entries"`
	}
	if err := json.Unmarshal(data, &outer); err != nil {
		return nil, errdefs.Invalidf("expected JSON with data: %w", err)
	}
	if outer.Version != "" && outer.Version != "v2" {
		return nil, errdefs.Unsupportedf("version is %s, expected none or v2", kubelet.Printable(outer.Version))
	}
	if err := json.Unmarshal([]byte(outer.Data), &inner); err != nil {
		return nil, errdefs.Invalidf("data: expected JSON with entries: %w", err)
	}
	if outer.Version == "" {
		return inner.Entries, nil
	}
	pods, err := podspec.UnmarshalNode(inner.Pods)
	if err != nil {
		return nil, errdefs.Invalidf("data: podList: %w", err)
	}
	out := map[string]allocatedPod{}
	for i := range pods {
		uid := pods[i].Pod.GetMetadata().GetUid()
		if _, there := out[uid]; there {
			return nil, errdefs.Invalidf("data: podList: pod %s: metadata.uid: %s is that of another pod, too", title(pods[i].Pod),
				kubelet.Printable(uid))
		}
		if out[uid] = (allocatedPod{whole: &pods[i]}); pods[i].Pod.GetMetadata().GetName() == "" {
			out[uid] = inner.Entries[uid] // the kubelet has made it of an older file: the roles of its containers are not known
		}
	}
	return out, nil
}

// Reconstruct returns the pods that the kubelet has allocated resources to, as far as their amounts, the state files and the manifests of
// static pods tell. problems name the pods of which these do not tell which container is an init container, and how names were found; named
// means that the file had the name of each pod. None of them is known to have ended.
func (n *Node) Reconstruct() (pods []podspec.NodePod, problems []string, named bool) {
	if n.unallocated != nil {
		return nil, []string{fmt.Sprintf("amounts of pods: %s: %v", allocatedFiles[0].name, reason(n.unallocated))}, false
	}
	amounts, problems := n.fromAmounts()
	for _, uid := range slices.Sorted(maps.Keys(n.allocated)) {
		if whole := n.allocated[uid].whole; whole != nil {
			p := *whole
			if p.Pod = proto.CloneOf(p.Pod); generated.MatchString(uid) {
				asStatic(p.Pod)
			}
			pods = append(pods, p)
		}
	}
	named = len(pods) == len(n.allocated)
	for _, p := range amounts {
		pods = append(pods, podspec.NodePod{Pod: p})
	}
	return pods, problems, named
}

// fromAmounts returns the pods of which only the amounts are known.
func (n *Node) fromAmounts() (pods []*typesv1.Pod, problems []string) {
	state := kubelet.CPUState{}
	if data, ok := n.States[kubelet.CPU]; ok {
		if read, err := kubelet.ParseCPU(data, nil); err == nil {
			state = read // otherwise the import says so
		}
	}
	memory := n.blocks()
	named, notes := n.named()
	problems = slices.Concat(n.unmanifest, notes)
	for _, uid := range slices.Sorted(maps.Keys(n.allocated)) {
		from := n.allocated[uid]
		if from.whole != nil {
			continue
		}
		pod := &typesv1.Pod{Metadata: &typesv1.PodMetadata{Name: uid, Namespace: UnknownNamespace}}
		if named[uid] != nil {
			pod = proto.CloneOf(named[uid])
		}
		pod.Metadata.Uid = uid
		if named[uid] != nil || generated.MatchString(uid) {
			asStatic(pod)
		}
		if named[uid] != nil && fits(from, pod) { // its manifest has the roles of its containers, too
			pods = append(pods, pod)
			continue
		}
		inits, err := initContainers(state.Containers[uid], memory[uid])
		if err != nil {
			problems = append(problems, fmt.Sprintf("pod %s: %v", uid, err))
			continue
		}
		if len(from.Containers) == 0 {
			problems = append(problems, fmt.Sprintf("pod %s: allocated_pods_state has no containers of it", uid))
			continue
		}
		spec := &typesv1.PodSpec{Resources: from.Pod.message()}
		for _, name := range slices.Sorted(maps.Keys(from.Containers)) {
			c := &typesv1.Container{Name: name, Resources: from.Containers[name].message()}
			if inits[name] {
				spec.InitContainers = append(spec.InitContainers, c)
			} else {
				spec.Containers = append(spec.Containers, c)
			}
		}
		pod.Spec = spec
		pods = append(pods, pod)
	}
	return pods, problems
}

// blocks are the containers with memory in the memory manager's state, by pod.
func (n *Node) blocks() map[string]map[string]bool {
	out := map[string]map[string]bool{}
	data, ok := n.States[kubelet.Memory]
	if !ok {
		return out
	}
	state, err := kubelet.ParseMemory(data)
	if err != nil {
		return out
	}
	for uid, containers := range state.Containers {
		out[uid] = map[string]bool{}
		for name := range containers {
			out[uid][name] = true
		}
	}
	return out
}

// initContainers finds the init containers of a pod. They have CPUs in common with other ones, and the memory manager has taken their
// memory for those that follow.
func initContainers(cpus map[string]cpuset.Set, memory map[string]bool) (map[string]bool, error) {
	inits := map[string]bool{}
	shares := func(name string, among func(other string) bool) bool {
		for other, set := range cpus {
			if other != name && among(other) && set.Overlaps(cpus[name]) {
				return true
			}
		}
		return false
	}
	for name := range cpus {
		if shares(name, func(string) bool { return true }) && len(memory) > 0 && !memory[name] {
			inits[name] = true
		}
	}
	for name := range cpus {
		if !inits[name] && shares(name, func(other string) bool { return !inits[other] }) {
			return nil, errdefs.NotFoundf("its containers share CPUs, and no file tells which of them are init containers")
		}
	}
	return inits, nil
}

// generated is the form of the uids that the kubelet makes for static pods. Those of the API server have hyphens.
var generated = regexp.MustCompile(`^[0-9a-f]{32}$`)

// named finds the static pods among those that the kubelet has allocated resources to, by uid. A pod whose manifest has no uid is one if
// its containers and amounts are those of one manifest, and of no other uid. notes say so.
func (n *Node) named() (pods map[string]*typesv1.Pod, notes []string) {
	pods = map[string]*typesv1.Pod{}
	uids, fitting := map[int][]string{}, map[string][]int{}
	for _, uid := range slices.Sorted(maps.Keys(n.allocated)) {
		for i, m := range n.manifests {
			switch {
			case n.allocated[uid].whole != nil, m.given && m.pod.GetMetadata().GetUid() != uid, !m.given && !generated.MatchString(uid),
				!m.given && !fits(n.allocated[uid], m.pod):
			default:
				uids[i], fitting[uid] = append(uids[i], uid), append(fitting[uid], i)
			}
		}
	}
	for _, uid := range slices.Sorted(maps.Keys(fitting)) {
		list := fitting[uid]
		m := n.manifests[list[0]]
		var names []string
		for _, i := range list {
			names = append(names, title(n.manifests[i].pod))
		}
		switch {
		case len(list) > 1:
			notes = append(notes, fmt.Sprintf("name of pod %s: several manifests of static pods fit: %s", uid, strings.Join(names, ", ")))
		case len(uids[list[0]]) > 1:
			notes = append(notes, fmt.Sprintf("name of pod %s: the static pod %s fits to %d pods", uid, names[0], len(uids[list[0]])))
		default:
			if pods[uid] = m.pod; !m.given {
				notes = append(notes, fmt.Sprintf("the name %s of pod %s is that of the only static pod with its containers "+
					"and amounts", names[0], uid))
			}
		}
	}
	return pods, notes
}

// title names a pod in notes.
func title(p *typesv1.Pod) string {
	return kubelet.Printable(p.GetMetadata().GetNamespace()) + "/" + kubelet.Printable(p.GetMetadata().GetName())
}

// fits reports whether a pod may be that of a manifest: it has the same containers with the same amounts. Some kubelets leave out
// ordinary init containers.
func fits(from allocatedPod, p *typesv1.Pod) bool {
	seen, inits, unseen := 0, 0, 0
	for i, list := range [][]*typesv1.Container{p.GetSpec().GetInitContainers(), p.GetSpec().GetContainers()} {
		for _, c := range list {
			of, ok := from.Containers[c.GetName()]
			ordinary := i == 0 && c.GetRestartPolicy() != "Always"
			if ordinary {
				inits++
			}
			switch {
			case !ok && ordinary:
				unseen++
			case !ok, !same(of, c.GetResources()):
				return false
			default:
				seen++
			}
		}
	}
	return seen == len(from.Containers) && (unseen == 0 || unseen == inits) &&
		(from.Pod == nil) == (p.GetSpec().GetResources() == nil) &&
		(from.Pod == nil || equal(from.Pod.Limits, p.GetSpec().GetResources().GetLimits())) // the kubelet completes the requests of a pod
}

// same reports whether amounts are those of a manifest, in which requests may be left out that are the limits.
func same(a *amounts, m *typesv1.ResourceRequirements) bool {
	a = cmp.Or(a, &amounts{})
	requests := maps.Clone(m.GetLimits())
	if requests == nil {
		requests = map[string]string{}
	}
	maps.Copy(requests, m.GetRequests())
	return equal(a.Limits, m.GetLimits()) && equal(a.Requests, requests)
}

func equal(a, b map[string]string) bool {
	x, _, bad := convert.Amounts("", a)
	y, _, also := convert.Amounts("", b)
	return len(bad) == 0 && len(also) == 0 && maps.Equal(x, y)
}

// asStatic marks a pod as one that the API server has not made.
func asStatic(p *typesv1.Pod) {
	if p.Metadata.Annotations == nil {
		p.Metadata.Annotations = map[string]string{}
	}
	p.Metadata.Annotations[workload.SourceAnnotation] = "file"
}

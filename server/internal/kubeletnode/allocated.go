package kubeletnode

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger/kubelet"
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
}

// readAllocated reads the amounts that the kubelet has allocated to pods. They have no names, and no roles of containers.
func (r *reader) readAllocated(dir string) {
	const what = "amounts of pods, without their names"
	file := path.Join(dir, "allocated_pods_state")
	data, err := r.file(file)
	if err == nil {
		r.allocated, err = parseAllocated(data)
	}
	r.unallocated = err
	if err == nil {
		r.found(what, file, nil)
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

// parseAllocated reads the file.
func parseAllocated(data []byte) (map[string]allocatedPod, error) {
	var outer struct {
		Data string `json:"data"`
	}
	var inner struct {
		Entries map[string]allocatedPod `json:"entries"`
	}
	if err := json.Unmarshal(data, &outer); err != nil {
		return nil, errdefs.Invalidf("expected JSON with data: %w", err)
	}
	if err := json.Unmarshal([]byte(outer.Data), &inner); err != nil {
		return nil, errdefs.Invalidf("data: expected JSON with entries: %w", err)
	}
	return inner.Entries, nil
}

// Reconstruct returns the pods that the kubelet has allocated resources to, as far as their amounts and the state files tell. problems name
// the pods of which these do not tell which container is an init container.
func (n *Node) Reconstruct() (pods []*typesv1.Pod, problems []string) {
	if n.unallocated != nil {
		return nil, []string{fmt.Sprintf("amounts of pods: allocated_pods_state: %v", reason(n.unallocated))}
	}
	state := kubelet.CPUState{}
	if data, ok := n.States[kubelet.CPU]; ok {
		if read, err := kubelet.ParseCPU(data, nil); err == nil {
			state = read // otherwise the import says so
		}
	}
	memory := n.blocks()
	for _, uid := range slices.Sorted(maps.Keys(n.allocated)) {
		from := n.allocated[uid]
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
		pods = append(pods, &typesv1.Pod{
			Metadata: &typesv1.PodMetadata{Name: uid, Namespace: UnknownNamespace, Uid: uid}, Spec: spec,
		})
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

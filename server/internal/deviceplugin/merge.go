package deviceplugin

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
)

// Answer is the merged request of plugins to a runtime for a container.
type Answer struct {
	Env         map[string]string
	Annotations map[string]string
	Mounts      []Mount
	Devices     []Node
	// CDI are fully qualified CDI names, vendor/class=name.
	CDI []string
}

// Mount is a bind mount.
type Mount struct {
	ContainerPath, HostPath string
	ReadOnly                bool
}

// Node is a device node.
type Node struct {
	ContainerPath, HostPath string
	// Permissions are letters of r, w and m.
	Permissions string
}

// Merge merges the responses in a container's device claims. If several set the same variable,
// annotation, mount or device node (by its path in the container), the first resource in the
// order of names wins. The kubelet uses the random order of a map. Each contradiction becomes a
// note. Equal CDI names are merged. A response that cannot be read is an error of class Corrupt.
func Merge(claims []ledger.Claim) (Answer, []string, error) {
	m := merge{said: map[string]statement{}}
	ordered := slices.SortedStableFunc(slices.Values(claims), func(a, b ledger.Claim) int { return cmp.Compare(a.Resource, b.Resource) })
	for _, c := range ordered {
		if c.Devices == nil {
			continue
		}
		var r pluginapi.ContainerAllocateResponse
		if err := proto.Unmarshal(c.Devices.Response, &r); err != nil {
			return Answer{}, nil, errdefs.Corruptf("read the device plugin's answer for %s of %s: %w", c.Resource, c.Owner, err)
		}
		m.resource = c.Resource
		m.add(&r)
	}
	return m.answer, m.notes, nil
}

// merge is the state of Merge.
type merge struct {
	answer   Answer
	notes    []string
	resource string
	said     map[string]statement // by subject
}

// statement is a value, and the resource whose plugin set it.
type statement struct{ value, resource string }

func (m *merge) add(r *pluginapi.ContainerAllocateResponse) {
	for _, name := range slices.Sorted(maps.Keys(r.Envs)) {
		if m.first("environment variable "+name, r.Envs[name]) {
			put(&m.answer.Env, name, r.Envs[name])
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.Annotations)) {
		if m.first("annotation "+name, r.Annotations[name]) {
			put(&m.answer.Annotations, name, r.Annotations[name])
		}
	}
	for _, v := range r.Mounts {
		if m.first("mount at "+v.GetContainerPath(), v.GetHostPath()) {
			m.answer.Mounts = append(m.answer.Mounts, Mount{v.GetContainerPath(), v.GetHostPath(), v.GetReadOnly()})
		}
	}
	for _, d := range r.Devices {
		if m.first("device node at "+d.GetContainerPath(), d.GetHostPath()) {
			m.answer.Devices = append(m.answer.Devices, Node{d.GetContainerPath(), d.GetHostPath(), d.GetPermissions()})
		}
	}
	for _, c := range r.CdiDevices {
		if m.first("CDI device "+c.GetName(), "") {
			m.answer.CDI = append(m.answer.CDI, c.GetName())
		}
	}
}

// first reports whether a subject is spoken of for the first time, and notes a
// contradiction.
func (m *merge) first(subject, value string) bool {
	before, known := m.said[subject]
	if !known {
		m.said[subject] = statement{value, m.resource}
		return true
	}
	if before.value != value {
		m.notes = append(m.notes, fmt.Sprintf("%s: %q of %s is used, not %q of %s",
			subject, before.value, before.resource, value, m.resource))
	}
	return false
}

func put(m *map[string]string, key, value string) {
	if *m == nil {
		*m = map[string]string{}
	}
	(*m)[key] = value
}

package criclient

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/kubelet/pkg/types"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/server/internal/runtime"
)

func phase(s criv1.ContainerState) runtime.Phase {
	switch s {
	case criv1.ContainerState_CONTAINER_CREATED:
		return runtime.Created
	case criv1.ContainerState_CONTAINER_EXITED:
		return runtime.Exited
	default:
		return runtime.Running
	}
}

// Sandboxes lists the sandboxes of all pods, or of some, by their labels.
func (c *Client) Sandboxes(ctx context.Context, pods ...string) (out []runtime.Sandbox, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	filters := []*criv1.PodSandboxFilter{nil}
	if len(pods) > 0 {
		filters = nil
	}
	for _, uid := range pods {
		filters = append(filters, &criv1.PodSandboxFilter{LabelSelector: map[string]string{types.KubernetesPodUIDLabel: uid}})
	}
	for _, filter := range filters {
		answer, err := c.cri.ListPodSandbox(ctx, &criv1.ListPodSandboxRequest{Filter: filter})
		if err != nil {
			return nil, c.failed("list the sandboxes", err)
		}
		for _, s := range answer.GetItems() {
			out = append(out, runtime.Sandbox{ID: s.GetId(), Pod: s.GetMetadata().GetUid(),
				Ready: s.GetState() == criv1.PodSandboxState_SANDBOX_READY})
		}
	}
	return out, nil
}

// List lists the containers with the labels of a pod, including exited ones, each once and in
// order of their ids. With ids, it lists only those. A problem with one container does not hide
// the others.
func (c *Client) List(ctx context.Context, ids ...string) ([]runtime.Container, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	var filters []*criv1.ContainerFilter
	for _, id := range ids {
		filters = append(filters, &criv1.ContainerFilter{Id: id})
	}
	if len(ids) == 0 {
		filters = append(filters, nil)
	}
	var out []runtime.Container
	for _, filter := range filters {
		answer, err := c.cri.ListContainers(ctx, &criv1.ListContainersRequest{Filter: filter})
		if err != nil {
			return nil, c.failed("list the containers", err)
		}
		for _, m := range answer.GetContainers() {
			owner := ledger.Owner{Pod: m.GetLabels()[types.KubernetesPodUIDLabel],
				Container: m.GetLabels()[types.KubernetesContainerNameLabel]}
			if owner.Pod == "" || owner.Container == "" || m.GetId() == "" {
				continue
			}
			found := runtime.Container{ID: m.GetId(), Owner: owner, Attempt: m.GetMetadata().GetAttempt(), Phase: phase(m.GetState())}
			if found.Phase != runtime.Exited {
				if found.Cgroup, err = c.cgroupOfContainer(ctx, found.ID); err != nil {
					return nil, err
				}
			}
			out = append(out, found)
		}
	}
	slices.SortFunc(out, func(a, b runtime.Container) int {
		return cmp.Or(strings.Compare(a.ID, b.ID), lives(b)-lives(a))
	})
	out = slices.CompactFunc(out, func(a, b runtime.Container) bool { return a.ID == b.ID })
	if len(ids) == 0 {
		c.forget(out)
	}
	return out, nil
}

// lives is 0 for an exited container, and 1 for others.
func lives(c runtime.Container) int {
	if c.Phase == runtime.Exited {
		return 0
	}
	return 1
}

// cgroupOfContainer returns a container's cgroup, which never changes.
func (c *Client) cgroupOfContainer(ctx context.Context, id string) (cgroup.Name, error) {
	c.mu.Lock()
	name, known := c.cgroups[id]
	c.mu.Unlock()
	if known {
		return name, nil
	}
	answer, err := c.cri.ContainerStatus(ctx, &criv1.ContainerStatusRequest{ContainerId: id, Verbose: true})
	switch status.Code(err) {
	case codes.OK:
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled:
		return nil, c.failed("inspect container "+id, err)
	default:
		return nil, nil // it was removed since it was listed, or its status is unavailable
	}
	name = cgroupOf(answer.GetInfo())
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cgroups[id] = name
	return name, nil
}

// forget removes the cached cgroups of containers that are not listed.
func (c *Client) forget(listed []runtime.Container) {
	there := make(map[string]bool, len(listed))
	for i := range listed {
		there[listed[i].ID] = listed[i].Phase != runtime.Exited
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.cgroups, func(id string, _ cgroup.Name) bool { return !there[id] })
}

// cgroupOf parses the cgroup from the verbose information of a runtime. CRI does not define this
// information. Runtimes that use the OCI runtime specification include that specification under
// this name.
func cgroupOf(info map[string]string) cgroup.Name {
	var about struct {
		RuntimeSpec struct {
			Linux struct {
				CgroupsPath string `json:"cgroupsPath"`
			} `json:"linux"`
		} `json:"runtimeSpec"`
	}
	if err := json.Unmarshal([]byte(info["info"]), &about); err != nil {
		return nil
	}
	return ParseCgroupsPath(about.RuntimeSpec.Linux.CgroupsPath)
}

// ParseCgroupsPath parses linux.cgroupsPath of the OCI runtime specification, in runc's format: a
// path, or for systemd SLICE:PREFIX:NAME, which is the unit PREFIX-NAME.scope in that slice. It
// returns nil for other texts.
func ParseCgroupsPath(text string) cgroup.Name {
	var name cgroup.Name
	switch parts := strings.Split(text, ":"); {
	case len(parts) == 3 && cgroup.IsSystemdStyle(parts[0]):
		unit := parts[2]
		if !cgroup.IsSystemdStyle(unit) {
			unit = strings.TrimPrefix(parts[1]+"-"+unit, "-") + ".scope"
		}
		name = append(cgroup.ParseSystemd(parts[0]), unit)
	case len(parts) == 1 && strings.HasPrefix(text, "/") && text != "/":
		name = cgroup.ParseCgroupfs(text)
	default:
		return nil
	}
	if name.Check() != nil {
		return nil
	}
	return name
}

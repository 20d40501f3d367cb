package runtime

import (
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
)

// Phase is how far a container is.
type Phase string

const (
	// Created containers have no process yet.
	Created Phase = "created"
	// Running containers have one. So may those of which the runtime does not know
	// how far they are, as after it was killed: they count as running.
	Running Phase = "running"
	// Exited containers have none any more, and will not get another.
	Exited Phase = "exited"
)

var phases = map[criv1.ContainerState]Phase{
	criv1.ContainerState_CONTAINER_CREATED: Created,
	criv1.ContainerState_CONTAINER_RUNNING: Running,
	criv1.ContainerState_CONTAINER_UNKNOWN: Running,
	criv1.ContainerState_CONTAINER_EXITED:  Exited,
}

// Container is a container as the runtime has it.
type Container struct {
	ID string
	// Owner is whose it is, by its labels.
	Owner   ledger.Owner
	Attempt uint32
	Phase   Phase
	// Cgroup is where it runs or will run; nil for an exited container, and where
	// the runtime does not tell.
	Cgroup cgroup.Name
}

// List lists the containers that have labels, those that have exited included, in
// order of their ids.
func (c *Client) List(ctx context.Context) ([]Container, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	answer, err := c.cri.ListContainers(ctx, &criv1.ListContainersRequest{})
	if err != nil {
		return nil, c.failed("list the containers", err)
	}
	var out []Container
	for _, m := range answer.GetContainers() {
		owner := ledger.Owner{Pod: m.GetLabels()[types.KubernetesPodUIDLabel], Container: m.GetLabels()[types.KubernetesContainerNameLabel]}
		if owner.Pod == "" || owner.Container == "" {
			continue
		}
		found := Container{ID: m.GetId(), Owner: owner, Attempt: m.GetMetadata().GetAttempt(), Phase: phases[m.GetState()]}
		if found.Phase != Exited {
			if found.Cgroup, err = c.place(ctx, found.ID); err != nil {
				return nil, err
			}
		}
		out = append(out, found)
	}
	c.forget(out)
	slices.SortFunc(out, func(a, b Container) int { return strings.Compare(a.ID, b.ID) })
	return out, nil
}

// place finds the cgroup of a container, which stays the same for as long as the
// container is there.
func (c *Client) place(ctx context.Context, id string) (cgroup.Name, error) {
	c.mu.Lock()
	name, known := c.places[id]
	c.mu.Unlock()
	if known {
		return name, nil
	}
	answer, err := c.cri.ContainerStatus(ctx, &criv1.ContainerStatusRequest{ContainerId: id, Verbose: true})
	if status.Code(err) == codes.NotFound {
		return nil, nil // it has gone since it was listed
	}
	if err != nil {
		return nil, c.failed("look at container "+id, err)
	}
	name = cgroupOf(answer.GetInfo())
	c.mu.Lock()
	defer c.mu.Unlock()
	c.places[id] = name
	return name, nil
}

// forget drops what is known of containers that are not listed.
func (c *Client) forget(listed []Container) {
	there := make(map[string]bool, len(listed))
	for i := range listed {
		there[listed[i].ID] = listed[i].Phase != Exited
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.places, func(id string, _ cgroup.Name) bool { return !there[id] })
}

// cgroupOf reads the cgroup out of what a runtime tells when asked for everything.
// CRI leaves to runtimes what that is; those that start containers as the OCI
// runtime specification has it tell that specification, under this name.
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

// ParseCgroupsPath reads linux.cgroupsPath of the OCI runtime specification, as
// runc spells it: a path, or for systemd SLICE:PREFIX:NAME, which is the unit
// PREFIX-NAME.scope in that slice. It returns nil for what is neither.
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

// Package lifecycle serves berth.lifecycle.v1: callers report starts and ends of
// containers, and the admission engine handles them. It makes no decisions.
package lifecycle

import (
	"context"
	"regexp"

	lifecyclev1 "github.com/berthd/berth/api/berth/lifecycle/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
)

// Engine follows containers; *admission.Engine is the one there is.
type Engine interface {
	// PreStart binds a container's id and puts its place in force.
	PreStart(ctx context.Context, owner ledger.Owner, id string, pid int) (admission.Started, error)
	// PostStop forgets an id, and reports whether it was known.
	PostStop(ctx context.Context, id string) (bool, error)
}

// Ledger gives the current view.
type Ledger interface{ View() *ledger.View }

type service struct {
	lifecyclev1.UnimplementedLifecycleServiceServer
	engine Engine
	ledger Ledger
}

// New makes the service.
func New(engine Engine, l Ledger) lifecyclev1.LifecycleServiceServer {
	return &service{engine: engine, ledger: l}
}

// containerID is what runtimes make up: mostly 64 hexadecimal digits.
var containerID = regexp.MustCompile(`^[A-Za-z0-9._-]{1,128}$`)

// checkID notes an id that no runtime would give.
func checkID(id string, vs *errdefs.Violations) {
	if !containerID.MatchString(id) {
		vs.Addf("container_id", "%.140q: expected 1 to 128 letters, digits, '-', '_' and '.'", id)
	}
}

// PreStartContainer implements LifecycleService.
func (s *service) PreStartContainer(ctx context.Context, req *lifecyclev1.PreStartContainerRequest) (*lifecyclev1.PreStartContainerResponse, error) {
	vs := convert.Names("pod_uid", req.GetPodUid(), "container_name", req.GetContainerName())
	checkID(req.GetContainerId(), &vs)
	if req.GetPid() < 0 {
		vs.Addf("pid", "%d: expected 0 or the id of a process", req.GetPid())
	}
	if err := vs.Err("request"); err != nil {
		return nil, err
	}
	owner := ledger.Owner{Pod: req.GetPodUid(), Container: req.GetContainerName()}
	started, err := s.engine.PreStart(ctx, owner, req.GetContainerId(), int(req.GetPid()))
	if err != nil {
		return nil, err
	}
	where := cgroup.ContainerCpuset(started.View, owner)
	return &lifecyclev1.PreStartContainerResponse{
		CpusetCpus: convert.CPUSet(where.CPUs), CpusetMems: convert.SomeNodes(where.Mems),
		CgroupPath: started.Binding.CgroupPath, Revision: started.View.Revision(),
	}, nil
}

// PostStopContainer implements LifecycleService.
func (s *service) PostStopContainer(ctx context.Context, req *lifecyclev1.PostStopContainerRequest) (*lifecyclev1.PostStopContainerResponse, error) {
	var vs errdefs.Violations
	checkID(req.GetContainerId(), &vs)
	if err := vs.Err("request"); err != nil {
		return nil, err
	}
	found, err := s.engine.PostStop(ctx, req.GetContainerId())
	if err != nil {
		return nil, err
	}
	return &lifecyclev1.PostStopContainerResponse{Found: found, Revision: s.ledger.View().Revision()}, nil
}

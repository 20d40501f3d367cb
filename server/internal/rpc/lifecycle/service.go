// Package lifecycle serves berth.lifecycle.v1: callers report starts and ends of
// containers, and the admission engine handles them. It makes no decisions.
package lifecycle

import (
	"context"
	"regexp"
	"strings"
	"unicode"

	lifecyclev1 "github.com/berthd/berth/api/berth/lifecycle/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/api/protocol"
	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/workload"
	"github.com/berthd/berth/server/internal/moves"
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

// Memory stores where agents have seen the memory of containers.
type Memory interface {
	// ReportMemory returns false if the id is not bound.
	ReportMemory(id string, r moves.Report) (found bool)
}

type service struct {
	lifecyclev1.UnimplementedLifecycleServiceServer
	engine Engine
	ledger Ledger
	memory Memory
}

// New makes the service.
func New(engine Engine, l Ledger, m Memory) lifecyclev1.LifecycleServiceServer {
	return &service{engine: engine, ledger: l, memory: m}
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
func (s *service) PreStartContainer(ctx context.Context,
	req *lifecyclev1.PreStartContainerRequest) (*lifecyclev1.PreStartContainerResponse, error) {
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
func (s *service) PostStopContainer(ctx context.Context,
	req *lifecyclev1.PostStopContainerRequest) (*lifecyclev1.PostStopContainerResponse, error) {
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

// ReportMemory implements LifecycleService.
func (s *service) ReportMemory(_ context.Context, req *lifecyclev1.ReportMemoryRequest) (*lifecyclev1.ReportMemoryResponse, error) {
	r, err := readReport(req)
	if err != nil {
		return nil, err
	}
	view := s.ledger.View()
	if first, now := view.RevisionOf(0), view.Revision(); r.Revision < first || r.Revision > now {
		return nil, errdefs.Preconditionf("revision %d is not a revision of this ledger, which has %d to %d: "+
			"read the revision again, then the memory", r.Revision, first, now).Coded(errdefs.RevisionUnknown)
	}
	return &lifecyclev1.ReportMemoryResponse{Found: s.memory.ReportMemory(req.GetContainerId(), r)}, nil
}

// readReport reads a request, of which nothing is larger than a machine can have.
func readReport(req *lifecyclev1.ReportMemoryRequest) (r moves.Report, err error) {
	var vs errdefs.Violations
	checkID(req.GetContainerId(), &vs)
	nodes := convert.ReadMask("memory_nodes", req.GetMemoryNodes(), &vs)
	if len(req.GetMemoryNodes().GetIds()) == 0 && req.GetImmovableReason() == "" {
		vs.Addf("memory_nodes", "is required, unless immovable_reason is set")
	}
	if n := len(req.GetImmovableReason()); n > protocol.MaxImmovableReason {
		vs.Addf("immovable_reason", "%d bytes: expected at most %d", n, protocol.MaxImmovableReason)
	} else if text := req.GetImmovableReason(); strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
		vs.Addf("immovable_reason", "%q: expected printable characters", text)
	}
	bytes := map[int]uint64{}
	for _, m := range req.GetNodeMemory() {
		_, twice := bytes[int(m.GetNumaNode())]
		switch {
		case m.GetResource() != string(workload.Memory):
			vs.Addf("node_memory.resource", "%.40q: expected %s", m.GetResource(), workload.Memory)
		case m.GetNumaNode() >= numa.MaxNodes:
			vs.Addf("node_memory.numa_node", "%d: expected 0 to %d", m.GetNumaNode(), numa.MaxNodes-1)
		case twice:
			vs.Addf("node_memory.numa_node", "%d: expected each node once", m.GetNumaNode())
		case m.GetBytes() > moves.MaxNodeBytes:
			vs.Addf("node_memory.bytes", "%d: expected at most %d", m.GetBytes(), uint64(moves.MaxNodeBytes))
		default:
			bytes[int(m.GetNumaNode())] = m.GetBytes()
		}
		if len(vs) > 0 {
			return r, vs.Err("request") // a request may have many wrong ones
		}
	}
	return moves.Report{Revision: req.GetRevision(), Nodes: nodes, Bytes: bytes, Immovable: req.GetImmovableReason()},
		vs.Err("request")
}

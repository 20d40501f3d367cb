package cri

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func clone(r *criv1.LinuxContainerResources) *criv1.LinuxContainerResources {
	if r == nil {
		return &criv1.LinuxContainerResources{}
	}
	return proto.Clone(r).(*criv1.LinuxContainerResources)
}

func notFound(id string) error {
	return status.Errorf(codes.NotFound, "an error occurred when try to find container %q: not found", id)
}

// CreateContainer implements RuntimeService.
func (s *Server) CreateContainer(_ context.Context, req *criv1.CreateContainerRequest) (*criv1.CreateContainerResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b, config := s.sandboxes[req.GetPodSandboxId()], req.GetConfig()
	switch {
	case b == nil:
		return nil, status.Errorf(codes.NotFound, "failed to find sandbox id %q", req.GetPodSandboxId())
	case !b.ready:
		return nil, status.Errorf(codes.Unknown, "sandbox container %q is not running", b.id)
	case !slices.Contains(s.Images, strings.TrimPrefix(config.GetImage().GetImage(), imageID)):
		return nil, status.Errorf(codes.NotFound, "failed to resolve image %q", config.GetImage().GetImage())
	}
	for _, c := range s.containers {
		if c.sandbox == b.id && proto.Equal(c.config.GetMetadata(), config.GetMetadata()) {
			return nil, status.Errorf(codes.Unknown, "failed to reserve container name: it is reserved for %q", c.id)
		}
	}
	c := &container{
		id: s.id("c"), sandbox: b.id, config: config, resources: clone(config.GetLinux().GetResources()),
		created: time.Now(), ended: make(chan struct{}),
	}
	c.cgroup = s.cgroupsPath(req.GetSandboxConfig().GetLinux().GetCgroupParent(), c.id)
	s.containers[c.id] = c
	s.happened(criv1.ContainerEventType_CONTAINER_CREATED_EVENT, c.id, b.id)
	return &criv1.CreateContainerResponse{ContainerId: c.id}, nil
}

// StartContainer implements RuntimeService.
func (s *Server) StartContainer(_ context.Context, req *criv1.StartContainerRequest) (*criv1.StartContainerResponse, error) {
	s.mu.Lock()
	c := s.containers[req.GetContainerId()]
	if c == nil || c.state != criv1.ContainerState_CONTAINER_CREATED {
		defer s.mu.Unlock()
		if c == nil {
			return nil, notFound(req.GetContainerId())
		}
		return nil, status.Errorf(codes.Unknown, "container is in %s state", c.state)
	}
	c.state, c.started = criv1.ContainerState_CONTAINER_RUNNING, time.Now()
	resources, log := clone(c.resources), s.log(c)
	s.happened(criv1.ContainerEventType_CONTAINER_STARTED_EVENT, c.id, c.sandbox)
	s.mu.Unlock()
	if log != "" {
		line := c.started.UTC().Format(time.RFC3339Nano) + " stdout F " + strings.Join(words(c.config), " ") + "\n"
		err := os.MkdirAll(filepath.Dir(log), 0o755)
		if err == nil {
			err = os.WriteFile(log, []byte(line), 0o640)
		}
		if err != nil {
			return nil, status.Errorf(codes.Unknown, "open the log: %v", err)
		}
	}
	if s.Kernel != nil {
		s.Kernel.Placed(c.cgroup, resources)
	}
	if code, ends := outcome(c.config); ends {
		s.end(c, code)
	}
	return &criv1.StartContainerResponse{}, nil
}

// log is where the output of a container goes; empty for nowhere.
func (s *Server) log(c *container) string {
	if c.config.GetLogPath() == "" {
		return ""
	}
	return filepath.Join(s.sandboxes[c.sandbox].config.GetLogDirectory(), c.config.GetLogPath())
}

// ReopenContainerLog implements RuntimeService. What was written at the start is not
// written again.
func (*Server) ReopenContainerLog(context.Context, *criv1.ReopenContainerLogRequest) (*criv1.ReopenContainerLogResponse, error) {
	return &criv1.ReopenContainerLogResponse{}, nil
}

// end ends a container that runs.
func (s *Server) end(c *container, code int32) {
	s.mu.Lock()
	ran := c.state == criv1.ContainerState_CONTAINER_RUNNING || c.state == criv1.ContainerState_CONTAINER_UNKNOWN && !c.started.IsZero()
	if c.state != criv1.ContainerState_CONTAINER_EXITED {
		c.state, c.finished, c.exit = criv1.ContainerState_CONTAINER_EXITED, time.Now(), code
		close(c.ended)
		s.happened(criv1.ContainerEventType_CONTAINER_STOPPED_EVENT, c.id, c.sandbox)
	}
	s.mu.Unlock()
	if ran && s.Kernel != nil {
		s.Kernel.Gone(c.cgroup)
	}
}

// End ends a container as if its program had.
func (s *Server) End(id string, code int32) {
	s.mu.Lock()
	c := s.containers[id]
	s.mu.Unlock()
	if c != nil {
		s.end(c, code)
	}
}

// Lose loses the state of a container, as containerd does with a container that it was creating, or
// starting, when it was killed.
func (s *Server) Lose(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.containers[id].state = criv1.ContainerState_CONTAINER_UNKNOWN
}

// StopContainer implements RuntimeService.
func (s *Server) StopContainer(ctx context.Context, req *criv1.StopContainerRequest) (*criv1.StopContainerResponse, error) {
	s.mu.Lock()
	c := s.containers[req.GetContainerId()]
	signal := c != nil && req.GetTimeout() > 0 && !c.signaled
	if signal {
		c.signaled = true
	}
	s.mu.Unlock()
	if c == nil {
		return &criv1.StopContainerResponse{}, nil
	}
	if signal && !stubborn(c.config) {
		s.end(c, 0) // as hack/probe does
	}
	if req.GetTimeout() > 0 {
		timer := time.NewTimer(time.Duration(req.GetTimeout()) * time.Second)
		defer timer.Stop()
		select {
		case <-c.ended:
			return &criv1.StopContainerResponse{}, nil
		case <-ctx.Done():
			return nil, status.FromContextError(ctx.Err()).Err()
		case <-timer.C:
		}
	}
	s.end(c, 137)
	return &criv1.StopContainerResponse{}, nil
}

// RemoveContainer implements RuntimeService.
func (s *Server) RemoveContainer(_ context.Context, req *criv1.RemoveContainerRequest) (*criv1.RemoveContainerResponse, error) {
	s.End(req.GetContainerId(), 137)
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.containers, req.GetContainerId())
	return &criv1.RemoveContainerResponse{}, nil
}

// ListContainers implements RuntimeService.
func (s *Server) ListContainers(_ context.Context, req *criv1.ListContainersRequest) (*criv1.ListContainersResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := &criv1.ListContainersResponse{}
	for _, c := range s.containers {
		if id := req.GetFilter().GetId(); id != "" && id != c.id || !matches(c.config.GetLabels(), req.GetFilter().GetLabelSelector()) {
			continue
		}
		out.Containers = append(out.Containers, &criv1.Container{
			Id: c.id, PodSandboxId: c.sandbox, Metadata: c.config.GetMetadata(), Image: c.config.GetImage(), State: c.state,
			CreatedAt: c.created.UnixNano(), Labels: c.config.GetLabels(), Annotations: c.config.GetAnnotations(),
		})
	}
	slices.SortFunc(out.Containers, func(a, b *criv1.Container) int { return cmp.Compare(a.GetId(), b.GetId()) })
	return out, nil
}

// ContainerStatus implements RuntimeService.
func (s *Server) ContainerStatus(_ context.Context, req *criv1.ContainerStatusRequest) (*criv1.ContainerStatusResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.containers[req.GetContainerId()]
	if c == nil {
		return nil, notFound(req.GetContainerId())
	}
	out := &criv1.ContainerStatusResponse{Status: &criv1.ContainerStatus{
		Id: c.id, Metadata: c.config.GetMetadata(), State: c.state, Image: c.config.GetImage(),
		ImageRef: c.config.GetImage().GetImage(), ExitCode: c.exit,
		CreatedAt: nano(c.created), StartedAt: nano(c.started), FinishedAt: nano(c.finished),
		Labels: c.config.GetLabels(), Annotations: c.config.GetAnnotations(),
		Resources: &criv1.ContainerResources{Linux: clone(c.resources)}, LogPath: s.log(c),
	}}
	if req.GetVerbose() && !s.Mute {
		info, err := json.Marshal(map[string]any{"runtimeSpec": map[string]any{"linux": map[string]any{"cgroupsPath": c.cgroup}}})
		if err != nil {
			return nil, status.Errorf(codes.Internal, "%v", err)
		}
		out.Info = map[string]string{"info": string(info)}
	}
	return out, nil
}

// nano gives a time as CRI has it, 0 for none.
func nano(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}

// UpdateContainerResources implements RuntimeService. What is not given stays.
func (s *Server) UpdateContainerResources(_ context.Context,
	req *criv1.UpdateContainerResourcesRequest) (*criv1.UpdateContainerResourcesResponse, error) {
	s.mu.Lock()
	c := s.containers[req.GetContainerId()]
	if c == nil || c.state == criv1.ContainerState_CONTAINER_EXITED {
		defer s.mu.Unlock()
		if c == nil {
			return nil, notFound(req.GetContainerId())
		}
		return nil, status.Error(codes.Unknown, "failed to update resources: cannot update an exited container")
	}
	have, more := c.resources, clone(req.GetLinux())
	pages := maps.Collect(pageLimits(append(have.GetHugepageLimits(), more.GetHugepageLimits()...)))
	more.HugepageLimits, have.HugepageLimits = nil, nil
	proto.Merge(have, more) // a scalar that is 0 or "" leaves what is there
	for _, size := range slices.Sorted(maps.Keys(pages)) {
		have.HugepageLimits = append(have.HugepageLimits, &criv1.HugepageLimit{PageSize: size, Limit: pages[size]})
	}
	resources, runs := clone(have), c.state == criv1.ContainerState_CONTAINER_RUNNING
	s.mu.Unlock()
	if runs && s.Kernel != nil {
		s.Kernel.Placed(c.cgroup, resources)
	}
	return &criv1.UpdateContainerResourcesResponse{}, nil
}

// pageLimits gives limits by page size, later ones last.
func pageLimits(limits []*criv1.HugepageLimit) func(func(string, uint64) bool) {
	return func(yield func(string, uint64) bool) {
		for _, l := range limits {
			if !yield(l.GetPageSize(), l.GetLimit()) {
				return
			}
		}
	}
}

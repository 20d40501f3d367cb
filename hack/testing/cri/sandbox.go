package cri

import (
	"context"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// RunPodSandbox implements RuntimeService.
func (s *Server) RunPodSandbox(_ context.Context, req *criv1.RunPodSandboxRequest) (*criv1.RunPodSandboxResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := req.GetConfig().GetMetadata()
	if m.GetUid() == "" || m.GetName() == "" {
		return nil, status.Error(codes.InvalidArgument, "sandbox config must include metadata")
	}
	for _, b := range s.sandboxes {
		if h := b.config.GetMetadata(); h.GetUid() == m.GetUid() && h.GetAttempt() == m.GetAttempt() {
			return nil, status.Errorf(codes.Unknown, "failed to reserve sandbox name: it is reserved for %q", b.id)
		}
	}
	b := &sandbox{id: s.id("pod"), config: req.GetConfig(), ready: true, created: time.Now()}
	s.sandboxes[b.id] = b
	s.happened(criv1.ContainerEventType_CONTAINER_STARTED_EVENT, b.id, b.id)
	return &criv1.RunPodSandboxResponse{PodSandboxId: b.id}, nil
}

// StopPodSandbox implements RuntimeService.
func (s *Server) StopPodSandbox(_ context.Context, req *criv1.StopPodSandboxRequest) (*criv1.StopPodSandboxResponse, error) {
	s.mu.Lock()
	b := s.sandboxes[req.GetPodSandboxId()]
	var inside []*container
	for _, c := range s.containers {
		if c.sandbox == req.GetPodSandboxId() {
			inside = append(inside, c)
		}
	}
	if b != nil {
		b.ready = false
		s.happened(criv1.ContainerEventType_CONTAINER_STOPPED_EVENT, b.id, b.id)
	}
	s.mu.Unlock()
	for _, c := range inside {
		s.end(c, 137)
	}
	return &criv1.StopPodSandboxResponse{}, nil
}

// RemovePodSandbox implements RuntimeService.
func (s *Server) RemovePodSandbox(ctx context.Context, req *criv1.RemovePodSandboxRequest) (*criv1.RemovePodSandboxResponse, error) {
	if _, err := s.StopPodSandbox(ctx, &criv1.StopPodSandboxRequest{PodSandboxId: req.GetPodSandboxId()}); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, c := range s.containers {
		if c.sandbox == req.GetPodSandboxId() {
			delete(s.containers, id)
		}
	}
	delete(s.sandboxes, req.GetPodSandboxId())
	return &criv1.RemovePodSandboxResponse{}, nil
}

// ListPodSandbox implements RuntimeService.
func (s *Server) ListPodSandbox(_ context.Context, req *criv1.ListPodSandboxRequest) (*criv1.ListPodSandboxResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := &criv1.ListPodSandboxResponse{}
	for _, b := range s.sandboxes {
		if !matches(b.config.GetLabels(), req.GetFilter().GetLabelSelector()) {
			continue
		}
		state := criv1.PodSandboxState_SANDBOX_NOTREADY
		if b.ready {
			state = criv1.PodSandboxState_SANDBOX_READY
		}
		out.Items = append(out.Items, &criv1.PodSandbox{
			Id: b.id, Metadata: b.config.GetMetadata(), State: state, CreatedAt: b.created.UnixNano(),
			Labels: b.config.GetLabels(), Annotations: b.config.GetAnnotations(),
		})
	}
	slices.SortFunc(out.Items, func(a, b *criv1.PodSandbox) int { return strings.Compare(a.GetId(), b.GetId()) })
	return out, nil
}

// PodSandboxStatus implements RuntimeService.
func (s *Server) PodSandboxStatus(_ context.Context, req *criv1.PodSandboxStatusRequest) (*criv1.PodSandboxStatusResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.sandboxes[req.GetPodSandboxId()]
	if b == nil {
		return nil, status.Errorf(codes.NotFound, "an error occurred when try to find sandbox %q: not found", req.GetPodSandboxId())
	}
	state := criv1.PodSandboxState_SANDBOX_NOTREADY
	if b.ready {
		state = criv1.PodSandboxState_SANDBOX_READY
	}
	return &criv1.PodSandboxStatusResponse{Status: &criv1.PodSandboxStatus{
		Id: b.id, Metadata: b.config.GetMetadata(), State: state, CreatedAt: b.created.UnixNano(),
		Labels: b.config.GetLabels(), Annotations: b.config.GetAnnotations(), Network: &criv1.PodSandboxNetworkStatus{},
		Linux: &criv1.LinuxPodSandboxStatus{Namespaces: &criv1.Namespace{
			Options: b.config.GetLinux().GetSecurityContext().GetNamespaceOptions(),
		}},
	}}, nil
}

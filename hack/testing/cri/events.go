package cri

import (
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// unread is the number of events that a listener may leave unread; later ones are lost.
const unread = 1024

// GetContainerEvents implements RuntimeService. Each listener gets all events.
func (s *Server) GetContainerEvents(_ *criv1.GetEventsRequest, stream grpc.ServerStreamingServer[criv1.ContainerEventResponse]) error {
	if !s.Events {
		return status.Error(codes.Unimplemented, "method GetContainerEvents not implemented")
	}
	events := make(chan *criv1.ContainerEventResponse, unread)
	s.mu.Lock()
	s.calls["GetContainerEvents"]++
	s.listeners[events] = true
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.listeners, events)
	}()
	for {
		select {
		case e, ok := <-events:
			if !ok {
				return status.Error(codes.Unavailable, "the stream was cut off")
			}
			if err := stream.Send(e); err != nil {
				return err
			}
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}

// CutEvents ends all streams of events.
func (s *Server) CutEvents() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for l := range s.listeners {
		close(l)
		delete(s.listeners, l)
	}
}

// Listeners returns the number of streams of events.
func (s *Server) Listeners() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.listeners)
}

// happened sends an event of a container or a sandbox. The caller holds mu.
func (s *Server) happened(kind criv1.ContainerEventType, id, sandbox string) {
	e := &criv1.ContainerEventResponse{ContainerId: id, ContainerEventType: kind}
	if b := s.sandboxes[sandbox]; b != nil {
		e.PodSandboxStatus = &criv1.PodSandboxStatus{Id: b.id, Metadata: b.config.GetMetadata()}
	}
	for l := range s.listeners {
		select {
		case l <- e:
		default:
		}
	}
}

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/clients/nri/policy"
	"github.com/berthd/berth/managers/errdefs"
)

// sources are the ways in which a kubelet gives its pods: the Pods API, and its web server where that API is absent.
type sources struct {
	api    *kubelet       // nil: switched off
	server *kubeletServer // nil: not configured
	// absent is why the Pods API was not there at the last call; nil before the first one, and if it was.
	absent atomic.Pointer[error]
	called atomic.Bool
}

// source is the source for a policy; nil without any way.
func (s *sources) source() policy.Source {
	if s.api == nil && s.server == nil {
		return nil
	}
	return s
}

// Pod implements policy.Source.
func (s *sources) Pod(ctx context.Context, uid string) (pod *typesv1.Pod, from string, err error) {
	err = errSwitchedOff
	if s.api != nil {
		pod, err = s.api.Pod(ctx, uid)
	}
	switch s.note(err); {
	case errdefs.ClassOf(err) != errdefs.Unsupported:
		return pod, policy.FromKubelet, err
	case s.server == nil:
		return nil, "", nil
	}
	pod, err = s.server.Pod(ctx, uid)
	return pod, policy.FromKubeletServer, err
}

// Active implements policy.Source.
func (s *sources) Active(ctx context.Context) (uids []string, err error) {
	err = errSwitchedOff
	if s.api != nil {
		uids, err = s.api.Active(ctx)
	}
	if s.note(err); errdefs.ClassOf(err) == errdefs.Unsupported && s.server != nil {
		return s.server.Active(ctx)
	}
	return uids, err
}

var errSwitchedOff = errdefs.Unsupportedf("--pods-api is empty")

// note stores whether the Pods API was there.
func (s *sources) note(err error) {
	if errdefs.ClassOf(err) == errdefs.Unsupported {
		s.absent.Store(&err)
	} else {
		s.absent.Store(nil)
	}
	s.called.Store(true)
}

// ready is the state of a node whose pods are placed, with where their specifications come from.
func (s *sources) ready() nodeState {
	const placed = "berth places the pods of this node"
	var absent error
	if s != nil && s.called.Load() {
		if err := s.absent.Load(); err != nil {
			absent = *err
		}
	}
	// The kubelet may have been restarted since the last call.
	if absent != nil && s.api != nil && status.Code(absent) != codes.Unimplemented && s.api.dial() == nil {
		absent = nil
	}
	switch {
	case absent == nil:
		return nodeState{reasonReady, placed}
	case s.server == nil:
		return nodeState{reasonByContainer,
			fmt.Sprintf("%s container by container, if they have no manifest or annotation: %v (--kubelet is not set)", placed, absent)}
	case s.server.absent() != nil:
		return nodeState{reasonByContainer,
			fmt.Sprintf("%s container by container, if they have no manifest or annotation: the kubelet has no Pods API, and its web server does not serve its pods: %v", placed, s.server.absent())}
	}
	return nodeState{reasonKubeletServer, fmt.Sprintf("%s; their specifications come from %s, because the kubelet has no Pods API",
		placed, s.server.URL)}
}

// sources returns the ways in which the kubelet gives its pods, and a function that closes them.
func (o *options) sources(server *apiServer) (*sources, func(), error) {
	s, end := &sources{}, func() {}
	if o.podsAPI != "" {
		if !filepath.IsAbs(o.podsAPI) {
			return nil, nil, errdefs.Invalidf("--pods-api %q: expected the absolute path of a socket", o.podsAPI)
		}
		k, err := newKubelet(o.podsAPI)
		if err != nil {
			return nil, nil, err
		}
		s.api, end = k, func() { _ = k.close() }
	}
	var err error
	switch {
	case o.kubelet == "" && o.kubeletCA != "":
		err = errdefs.Invalidf("--kubelet-ca needs --kubelet")
	case o.kubelet != "" && server == nil:
		err = errdefs.Preconditionf("--kubelet needs a service account, and there is none in %q (--service-account)", o.serviceAccount)
	case o.kubelet != "":
		s.server, err = newKubeletServer(o.kubelet, o.nodeName, o.serviceAccount, o.kubeletCA)
	}
	if err != nil {
		end()
		return nil, nil, err
	}
	return s, end, nil
}

// nameNode makes the host's name that of the node, if there is no flag.
func (o *options) nameNode() error {
	if o.nodeName != "" {
		return nil
	}
	name, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("find the host name, in place of --node-name: %w", err)
	}
	o.nodeName = strings.ToLower(name)
	return nil
}

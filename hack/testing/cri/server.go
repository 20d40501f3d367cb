package cri

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Kernel gets the events of containers. It is called with no lock held.
type Kernel interface {
	// Placed has a container run in a cgroup with the values that were set.
	Placed(cgroup string, r *criv1.LinuxContainerResources)
	// Gone has it run no more.
	Gone(cgroup string)
}

// Config of a runtime.
type Config struct {
	// Driver is nil for a runtime that does not know the call.
	Driver *criv1.CgroupDriver
	// Images are those that are there.
	Images []string
	// Kernel may be nil.
	Kernel Kernel
	// Mute leaves out where cgroups are.
	Mute bool
	// User is the user of all images: a number or a name.
	User string
	// Features are the features that the runtime reports.
	Features *criv1.RuntimeFeatures
	// Events is true if it has a stream of events. Name and Version are the runtime's; if
	// empty, "memory" and "v1".
	Events        bool
	Name, Version string
}

// Server is the runtime. Its state outlives Serve, as that of a real one does.
type Server struct {
	criv1.UnimplementedRuntimeServiceServer
	criv1.UnimplementedImageServiceServer
	Config

	mu         sync.Mutex // guards what is below
	sandboxes  map[string]*sandbox
	containers map[string]*container
	last       int
	calls      map[string]int
	fail       map[string]error
	listeners  map[chan *criv1.ContainerEventResponse]bool
}

type sandbox struct {
	id      string
	config  *criv1.PodSandboxConfig
	ready   bool
	created time.Time
}

type container struct {
	id, sandbox                string
	config                     *criv1.ContainerConfig
	cgroup                     string
	resources                  *criv1.LinuxContainerResources
	state                      criv1.ContainerState
	created, started, finished time.Time
	exit                       int32
	signaled                   bool
	ended                      chan struct{}
}

// New makes a runtime without containers.
func New(c Config) *Server {
	return &Server{
		Config: c, sandboxes: map[string]*sandbox{}, containers: map[string]*container{},
		calls: map[string]int{}, fail: map[string]error{}, listeners: map[chan *criv1.ContainerEventResponse]bool{},
	}
}

// imageID begins the ids of images.
const imageID = "sha256:"

// Serve answers on a socket until ctx ends. It may be called again after that.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	g := grpc.NewServer(grpc.UnaryInterceptor(s.intercept))
	criv1.RegisterRuntimeServiceServer(g, s)
	criv1.RegisterImageServiceServer(g, s)
	stop := context.AfterFunc(ctx, g.Stop)
	defer stop()
	return g.Serve(l)
}

func (s *Server) intercept(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	method := path.Base(info.FullMethod)
	s.mu.Lock()
	s.calls[method]++
	err := s.fail[method]
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	return handle(ctx, req)
}

// Calls reports how often a method was called.
func (s *Server) Calls(method string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[method]
}

// Fail makes a method answer with an error; nil lets it work again.
func (s *Server) Fail(method string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail[method] = err
}

// Resources reports what a container has, or would start with; nil if there is none.
func (s *Server) Resources(id string) *criv1.LinuxContainerResources {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.containers[id]; c != nil {
		return clone(c.resources)
	}
	return nil
}

// Configs gives what a container was made of, and its pod; nil if there is none.
func (s *Server) Configs(id string) (*criv1.ContainerConfig, *criv1.PodSandboxConfig) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.containers[id]
	if c == nil {
		return nil, nil
	}
	return c.config, s.sandboxes[c.sandbox].config
}

// Break ends the processes that hold a pod's sandboxes, as if they were killed.
func (s *Server) Break(podUID string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range s.sandboxes {
		if b.config.GetMetadata().GetUid() == podUID {
			b.ready = false
		}
	}
}

func (s *Server) id(kind string) string {
	s.last++
	return fmt.Sprintf("%s%08d", kind, s.last)
}

func matches(have, want map[string]string) bool {
	for k, v := range want {
		if have[k] != v {
			return false
		}
	}
	return true
}

// Version implements RuntimeService.
func (s *Server) Version(context.Context, *criv1.VersionRequest) (*criv1.VersionResponse, error) {
	name, version := cmp.Or(s.Config.Name, "memory"), cmp.Or(s.Config.Version, "v1")
	return &criv1.VersionResponse{Version: "0.1.0", RuntimeName: name, RuntimeVersion: version, RuntimeApiVersion: "v1"}, nil
}

// RuntimeConfig implements RuntimeService.
func (s *Server) RuntimeConfig(ctx context.Context, req *criv1.RuntimeConfigRequest) (*criv1.RuntimeConfigResponse, error) {
	if s.Driver == nil {
		return s.UnimplementedRuntimeServiceServer.RuntimeConfig(ctx, req)
	}
	return &criv1.RuntimeConfigResponse{Linux: &criv1.LinuxRuntimeConfiguration{CgroupDriver: *s.Driver}}, nil
}

// ImageStatus implements ImageService.
func (s *Server) ImageStatus(_ context.Context, req *criv1.ImageStatusRequest) (*criv1.ImageStatusResponse, error) {
	name := req.GetImage().GetImage()
	if !slices.Contains(s.Images, name) {
		return &criv1.ImageStatusResponse{}, nil
	}
	image := &criv1.Image{Id: imageID + name, RepoTags: []string{name}, Size: 1}
	if uid, err := strconv.ParseInt(s.User, 10, 64); err == nil {
		image.Uid = &criv1.Int64Value{Value: uid}
	} else {
		image.Username = s.User
	}
	return &criv1.ImageStatusResponse{Image: image}, nil
}

// Status implements RuntimeService.
func (s *Server) Status(context.Context, *criv1.StatusRequest) (*criv1.StatusResponse, error) {
	return &criv1.StatusResponse{Status: &criv1.RuntimeStatus{Conditions: []*criv1.RuntimeCondition{
		{Type: "RuntimeReady", Status: true}, {Type: "NetworkReady", Status: true},
	}}, Features: s.Features}, nil
}

// ListImages implements ImageService.
func (s *Server) ListImages(context.Context, *criv1.ListImagesRequest) (*criv1.ListImagesResponse, error) {
	out := &criv1.ListImagesResponse{}
	for _, name := range s.Images {
		out.Images = append(out.Images, &criv1.Image{Id: imageID + name, RepoTags: []string{name}, Size: 1})
	}
	return out, nil
}

// ImageFsInfo implements ImageService: images are in memory.
func (*Server) ImageFsInfo(context.Context, *criv1.ImageFsInfoRequest) (*criv1.ImageFsInfoResponse, error) {
	return &criv1.ImageFsInfoResponse{}, nil
}

// PullImage implements ImageService: there is nowhere to pull from.
func (*Server) PullImage(_ context.Context, req *criv1.PullImageRequest) (*criv1.PullImageResponse, error) {
	return nil, status.Errorf(codes.Unavailable, "failed to pull image %q: no registry", req.GetImage().GetImage())
}

// words returns the arguments of a container's program.
func words(c *criv1.ContainerConfig) []string {
	all := slices.Concat(c.GetCommand(), c.GetArgs())
	if len(all) == 0 {
		return nil
	}
	return all[1:]
}

// outcome reports how a program ends by itself, if it does.
func outcome(c *criv1.ContainerConfig) (code int32, ends bool) {
	w := words(c)
	i := slices.Index(w, "exit")
	if i < 0 || i+1 >= len(w) {
		return 0, false
	}
	_, err := fmt.Sscan(w[i+1], &code)
	return code, err == nil
}

func stubborn(c *criv1.ContainerConfig) bool { return slices.Contains(words(c), "stubborn") }

// cgroupsPath formats a container's cgroup for runc.
func (s *Server) cgroupsPath(parent, id string) string {
	if s.Driver != nil && *s.Driver == criv1.CgroupDriver_SYSTEMD {
		return path.Base(parent) + ":cri-memory:" + id
	}
	return "/" + strings.Trim(parent, "/") + "/" + id
}

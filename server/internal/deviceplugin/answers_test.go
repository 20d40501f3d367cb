package deviceplugin_test

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/berthd/berth/managers/device"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/server/internal/deviceplugin"
)

// failing is a plugin that answers Allocate at once with an error of its own.
type failing struct {
	err error
	pluginapi.UnimplementedDevicePluginServer
}

func (failing) GetDevicePluginOptions(context.Context, *pluginapi.Empty) (*pluginapi.DevicePluginOptions, error) {
	return &pluginapi.DevicePluginOptions{}, nil
}

func (failing) ListAndWatch(_ *pluginapi.Empty, s pluginapi.DevicePlugin_ListAndWatchServer) error {
	if err := s.Send(&pluginapi.ListAndWatchResponse{Devices: []*pluginapi.Device{{ID: "a", Health: pluginapi.Healthy}}}); err != nil {
		return err
	}
	<-s.Context().Done()
	return nil
}

func (f failing) Allocate(context.Context, *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
	return nil, f.err
}

// TestErrorsThatThePluginSends: an answer with the code of a deadline, or of a broken
// connection, is an answer: neither a silent plugin, nor one that has gone.
func TestErrorsThatThePluginSends(t *testing.T) {
	t.Parallel()
	for _, code := range []codes.Code{codes.DeadlineExceeded, codes.Unavailable} {
		t.Run(code.String(), func(t *testing.T) {
			t.Parallel()
			b := start(t, deviceplugin.Config{})
			l, err := net.Listen("unix", filepath.Join(b.Dir, "late.sock"))
			if err != nil {
				t.Fatal(err)
			}
			server := grpc.NewServer()
			pluginapi.RegisterDevicePluginServer(server, failing{err: status.Error(code, "the card's driver ran out of time")})
			done := make(chan struct{})
			go func() { defer close(done); _ = server.Serve(l) }()
			defer func() { server.Stop(); <-done }()
			if _, err := b.Register(b.ctx, &pluginapi.RegisterRequest{Version: pluginapi.Version, Endpoint: "late.sock",
				ResourceName: gpu}); err != nil {
				t.Fatal(err)
			}
			b.untilCounts(gpu, 1, 1)
			for i := range 4 {
				_, err := b.Allocate(b.ctx, gpu, []string{"a"})
				if errdefs.ClassOf(err) != errdefs.Unavailable || !strings.Contains(err.Error(), "the card's driver ran out of time") ||
					strings.Contains(err.Error(), "suspended") || errors.Is(err, device.ErrAway) {
					t.Errorf("call %d: %v", i, err)
				}
			}
		})
	}
}

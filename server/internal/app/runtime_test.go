package app

import (
	"bytes"
	"context"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/hack/testing/cri"
	"github.com/berthd/berth/server/internal/metrics"
	"github.com/berthd/berth/server/internal/system/real"
)

// speechless is a runtime that knows the question for its cgroup driver and names
// none.
type speechless struct{ *cri.Server }

func (speechless) RuntimeConfig(context.Context, *criv1.RuntimeConfigRequest) (*criv1.RuntimeConfigResponse, error) {
	return &criv1.RuntimeConfigResponse{}, nil
}

// TestRuntimeReportsItsDriver: the runtime's driver holds; one that is too old to tell
// is counted as the kubelet does.
func TestRuntimeReportsItsDriver(t *testing.T) {
	t.Parallel()
	systemd := criv1.CgroupDriver_SYSTEMD
	const losing = `kubelet_cri_losing_support{version="1.37.0"} 1`
	for name, row := range map[string]struct {
		runtime criv1.RuntimeServiceServer
		want    string
		log     string
		losing  bool
	}{
		"tells":         {cri.New(cri.Config{Driver: &systemd}), "systemd", "not the configured one", false},
		"too old to":    {cri.New(cri.Config{}), "cgroupfs", "does not report its cgroup driver", true},
		"says nothing":  {speechless{cri.New(cri.Config{})}, "cgroupfs", "does not report its cgroup driver", false},
		"there is none": {nil, "cgroupfs", "", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var log bytes.Buffer
			g := &given{
				Config:      config.Config{Cgroups: config.Cgroups{Driver: "cgroupfs"}},
				Environment: Environment{Log: logTo(&log), System: real.System(), Metrics: metrics.New()},
			}
			if row.runtime != nil {
				g.Config.RuntimeEndpoint = serveRuntime(t, row.runtime)
			}
			var opened closers
			_, driver, err := connectRuntime(t.Context(), g, &opened)
			if err != nil {
				t.Fatal(err)
			}
			defer opened.close()
			if string(driver) != row.want || !strings.Contains(log.String(), row.log) {
				t.Errorf("driver %s, log %q", driver, log.String())
			}
			page := httptest.NewRecorder()
			g.Metrics.Handler(true).ServeHTTP(page, httptest.NewRequestWithContext(t.Context(), "GET", "/metrics", nil))
			if text := page.Body.String(); strings.Contains(text, losing) != row.losing ||
				strings.Contains(text, "losing_support") != row.losing {
				t.Errorf("metrics have %s: %v, want %v", losing, !row.losing, row.losing)
			}
		})
	}
}

// serveRuntime serves a runtime until the test ends.
func serveRuntime(t *testing.T, r criv1.RuntimeServiceServer) (endpoint string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "cri") // sockets need short paths
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer()
	criv1.RegisterRuntimeServiceServer(g, r)
	served := make(chan error, 1)
	go func() { served <- g.Serve(l) }()
	t.Cleanup(func() {
		g.Stop()
		<-served
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return "unix://" + path
}

package app_test

import (
	"context"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	devicev1 "github.com/berthd/berth/api/berth/device/v1"
	inspectv1 "github.com/berthd/berth/api/berth/inspect/v1"
	lifecyclev1 "github.com/berthd/berth/api/berth/lifecycle/v1"
	topologyv1 "github.com/berthd/berth/api/berth/topology/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	apiconfig "github.com/berthd/berth/api/config"
	"github.com/berthd/berth/hack/testing/script"
	"github.com/berthd/berth/server/internal/app"
	"github.com/berthd/berth/server/internal/config"
)

// TestClocksThatAreWrong: a clock that is set to a year that no record can hold, or that jumps there and back, keeps
// nobody from being served, and the ledger can be read again.
func TestClocksThatAreWrong(t *testing.T) {
	t.Parallel()
	year := func(y int) time.Time { return time.Date(y, time.June, 1, 0, 0, 0, 0, time.UTC) }
	for name, clock := range map[string][2]time.Time{
		"beyond the year 9999": {year(12345), year(12346)},
		"before 1970":          {year(1901), year(1902)},
		"before our era":       {year(-44), year(-43)},
		"jumps ahead":          {year(2026), year(40000)},
		"jumps back":           {year(40000), year(2026)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, err := os.MkdirTemp("", "berth") // sockets need short paths
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = os.RemoveAll(dir) })
			c, _, err := config.Load(config.Sources{Flags: func(c *apiconfig.Config) error {
				c.RootDir, c.Machine, c.Cgroups.Tree = dir, "1s1n4c", apiconfig.TreeMemory
				return nil
			}})
			if err != nil {
				t.Fatal(err)
			}
			var now atomic.Pointer[time.Time]
			now.Store(&clock[0])
			run := func() *daemon {
				return runDaemonAt(t, c, slog.New(slog.DiscardHandler), &app.Stage{Grace: timeout}, func() time.Time { return *now.Load() })
			}
			d := run()
			const gpu = "example.com/gpu"
			end := runPlugin(t, script.Config{Dir: *c.DevicePluginDir, Resource: gpu, Devices: []script.Device{{ID: "g0"}}})
			awaitDevices(t, d.conn, map[string]int64{gpu: 1})
			admit := func(uid string, want map[string]string) {
				t.Helper()
				resp, err := admissionv1.NewAdmissionServiceClient(d.conn).Admit(t.Context(),
					&admissionv1.AdmitRequest{Subject: &admissionv1.AdmitRequest_Pod{Pod: &typesv1.Pod{
						Metadata: &typesv1.PodMetadata{Name: uid, Namespace: "default", Uid: uid},
						Spec: &typesv1.PodSpec{Containers: []*typesv1.Container{{
							Name: "main", Resources: &typesv1.ResourceRequirements{Requests: want, Limits: want},
						}}},
					}}})
				if err != nil || resp.GetVerdict() != admissionv1.Verdict_VERDICT_ADMITTED {
					t.Fatalf("%s: %v, %v", uid, resp, err)
				}
			}
			check := func() {
				t.Helper()
				if check, err := inspectv1.NewInspectServiceClient(d.conn).Check(t.Context(), &inspectv1.CheckRequest{}); err != nil ||
					len(check.GetFindings()) > 0 {
					t.Errorf("check: %v, %v", check.GetFindings(), err)
				}
				if _, err := devicev1.NewDeviceServiceClient(d.conn).ListResources(t.Context(),
					&devicev1.ListResourcesRequest{}); err != nil {
					t.Error(err)
				}
			}
			admit("x", map[string]string{"cpu": "100m", "memory": "1Mi", gpu: "1"})
			now.Store(&clock[1])
			admit("y", map[string]string{"cpu": "100m", "memory": "1Mi"})
			if _, err := lifecyclev1.NewLifecycleServiceClient(d.conn).PreStartContainer(t.Context(), &lifecyclev1.PreStartContainerRequest{
				PodUid: "x", ContainerName: "main", ContainerId: "id",
			}); err != nil {
				t.Error(err)
			}
			if _, err := topologyv1.NewTopologyServiceClient(d.conn).SetPolicy(t.Context(),
				&topologyv1.SetPolicyRequest{TopologyPolicy: new("best-effort")}); err != nil {
				t.Error(err)
			}
			end()
			awaitDevices(t, d.conn, map[string]int64{gpu: 0})
			known, err := allocationv1.NewAllocationServiceClient(d.conn).GetRevision(t.Context(), &allocationv1.GetRevisionRequest{})
			if err != nil {
				t.Error(err)
			}
			if _, err := admissionv1.NewAdmissionServiceClient(d.conn).SyncPods(t.Context(), &admissionv1.SyncPodsRequest{
				ActivePodUids: []string{"x", "y"}, KnownRevision: known.GetRevision(),
			}); err != nil {
				t.Error(err)
			}
			check()
			d.end()
			d = run()
			defer func() { d.end() }()
			admit("x", map[string]string{"cpu": "100m", "memory": "1Mi", gpu: "1"})
			check()
		})
	}
}

// runPlugin runs a plugin until its end is called.
func runPlugin(t *testing.T, c script.Config) (end func()) {
	t.Helper()
	plugin := script.New(c)
	running, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	stopped := make(chan error, 1)
	go func() { stopped <- plugin.Run(running) }()
	var once sync.Once
	end = func() { once.Do(func() { stop(); <-stopped }) }
	t.Cleanup(end)
	return end
}

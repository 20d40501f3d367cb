package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	devicev1 "github.com/berthd/berth/api/berth/device/v1"
	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/hack/testing/script"
	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/server/internal/app"
	"github.com/berthd/berth/server/internal/host/cgroupfs"
	"github.com/berthd/berth/server/internal/host/cgroupfs/ocicgroups"
)

// watched is a cgroup tree that reports how long it was busy.
type watched struct {
	*cgroupfs.Driver
	busy atomic.Int64 // nanoseconds
}

func (w *watched) since(start time.Time) { w.busy.Add(int64(time.Since(start))) }

func (w *watched) Observe(ctx context.Context, name cgroup.Name, depth int) (*cgroup.Snapshot, error) {
	defer w.since(time.Now())
	return w.Driver.Observe(ctx, name, depth)
}

func (w *watched) Ensure(ctx context.Context, node cgroup.Node) (created bool, err error) {
	defer w.since(time.Now())
	return w.Driver.Ensure(ctx, node)
}

// BenchmarkAdmitOnTheNode is BenchmarkAdmitOverTheSocket with the kernel's cgroup
// tree and a container that requests a device of a plugin. ns/op is the median of an
// admission; the other metrics are the medians of its parts: an empty call over the
// socket; what a dry run takes beside that, the decision; the plugin's Allocate,
// asked from here; the work on the cgroup tree; a commit of about that size, which
// the disk takes; and what is left.
func BenchmarkAdmitOnTheNode(b *testing.B) {
	driver, err := cgroupfs.Open(cgroupfs.Options{Setter: ocicgroups.Setter{}})
	if err != nil {
		b.Skipf("no usable cgroup tree: %v", err)
	}
	defer driver.Close()
	root := cgroup.Name{fmt.Sprintf("berthbench-node-%d", os.Getpid())}
	if _, err := driver.Ensure(b.Context(), cgroup.Node{Name: root}); err != nil {
		b.Skipf("the cgroup tree cannot be written to: %v", err)
	}
	defer func() {
		if err := driver.Remove(context.Background(), root); err != nil {
			b.Error(err)
		}
	}()
	b.Run("8 CPUs, 4 GiB and a device/512/berth", func(b *testing.B) { admitOnTheNode(b, driver, root) })
}

func admitOnTheNode(b *testing.B, driver *cgroupfs.Driver, root cgroup.Name) {
	tree := &watched{Driver: driver}
	berthd := runBerthd(b, func(c *config.Config, env *app.Environment) {
		env.Stage = &app.Stage{Tree: tree}
		c.Cgroups.Root, c.Cgroups.Tree = root.String(), config.TreeKernel
		c.Node.KernelTunables = config.TunablesIgnore
	})
	p, pod := runPlugin(b, berthd), wirePod("a")
	pod.Spec.Containers[0].Resources.Limits[string(resources[0])] = "1"
	other := newTwin(b, berthd, pod)

	var whole, dries, calls, plugins, cgroups, commits []time.Duration
	clock := func(list *[]time.Duration, do func() error) {
		start := time.Now()
		if err := do(); err != nil {
			b.Fatal(err)
		}
		*list = append(*list, time.Since(start))
	}
	for b.Loop() {
		before := tree.busy.Load()
		clock(&whole, func() error { return berthd.admitPod(b.Context(), pod, false) })
		cgroups = append(cgroups, time.Duration(tree.busy.Load()-before))
		took, err := other.put(b.Context())
		commits = append(commits, took)
		if err := errors.Join(err, berthd.remove(b.Context(), "a"), other.remove(b.Context())); err != nil {
			b.Fatal(err)
		}
		clock(&dries, func() error { return berthd.admitPod(b.Context(), pod, true) })
		clock(&calls, func() error {
			_, err := berthd.health.Check(b.Context(), &healthpb.HealthCheckRequest{})
			return err
		})
		clock(&plugins, func() error {
			_, err := p.Allocate(b.Context(), &pluginapi.AllocateRequest{
				ContainerRequests: []*pluginapi.ContainerAllocateRequest{{DevicesIds: []string{"0"}}},
			})
			return err
		})
	}
	all := median(whole)
	b.ReportMetric(float64(all), "ns/op")
	for _, part := range []struct {
		name string
		took time.Duration
	}{
		{"call", median(calls)}, {"decision", median(dries) - median(calls)}, {"plugin", median(plugins)},
		{"cgroup", median(cgroups)}, {"commit", median(commits)},
	} {
		b.ReportMetric(float64(part.took), part.name+"-ns")
		all -= part.took
	}
	b.ReportMetric(float64(all), "rest-ns")
}

// runPlugin runs a device plugin with a device on every node and waits until berthd
// has them.
func runPlugin(t testing.TB, r *running) pluginapi.DevicePluginClient {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	var devices []script.Device
	for node := range int64(8) {
		devices = append(devices, script.Device{ID: fmt.Sprint(node), Nodes: []int64{node}})
	}
	p := script.New(script.Config{Dir: *r.config.DevicePluginDir, Resource: string(resources[0]), Endpoint: "gpu.sock", Devices: devices})
	must(p.Serve())
	t.Cleanup(func() { p.Stop(); p.Wait() })
	must(p.Register(t.Context()))
	for known := 0; known < len(devices); {
		list, err := r.Device().ListResources(t.Context(), &devicev1.ListResourcesRequest{})
		must(err)
		for _, r := range list.GetResources() {
			known = int(r.GetAllocatable())
		}
	}
	conn, err := grpc.NewClient("unix:"+*r.config.DevicePluginDir+"/gpu.sock", grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(err)
	t.Cleanup(func() { _ = conn.Close() })
	return pluginapi.NewDevicePluginClient(conn)
}

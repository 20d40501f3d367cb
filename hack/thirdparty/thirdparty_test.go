package thirdparty

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"k8s.io/klog/v2"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"
	"k8s.io/kubelet/pkg/apis/podresources/v1alpha1"
	"k8s.io/kubernetes/pkg/kubelet/apis/podresources"
	plugin "k8s.io/kubernetes/pkg/kubelet/cm/devicemanager/plugin/v1beta1"

	lifecyclev1 "github.com/berthd/berth/api/berth/lifecycle/v1"
)

const (
	pluginDir   = kubelet + "/device-plugins"
	registryDir = kubelet + "/plugins_registry"
)

// TestSampleDevicePlugin is the life of Kubernetes' own sample beside berthd.
func TestSampleDevicePlugin(t *testing.T) {
	const resource = "example.com/resource"
	sample := build(t, ".", "k8s.io/kubernetes/test/images/sample-device-plugin")
	n := newNode(t)
	env := []string{"PLUGIN_SOCK_DIR=" + pluginDir}
	p := run(t, env, sample)
	n.expect(resource, "connected", 2, 2)
	n.admit("first", resource, "1")
	if got := n.devices("first"); got != "Dev-1" {
		t.Errorf("the pod holds %q", got)
	}
	if m := n.allocate("first").GetEdits().GetMounts(); len(m) != 1 || m[0].GetContainerPath() != "/tmp/Dev-1" {
		t.Errorf("the plugin wants the mounts %v", m)
	}

	n.restart()
	if got := n.devices("first"); got != "Dev-1" {
		t.Errorf("after berthd's restart the pod holds %q", got)
	}
	n.expect(resource, "connected", 2, 2)
	n.admit("second", resource, "1")
	if got := n.devices("second"); got != "Dev-2" {
		t.Errorf("the second pod holds %q", got)
	}

	p.kill()
	n.expect(resource, "stopped", 2, 0)
	run(t, env, sample)
	n.expect(resource, "connected", 2, 2)
	if got := n.devices("first") + " " + n.devices("second"); got != "Dev-1 Dev-2" {
		t.Errorf("after the plugin's restart the pods hold %q", got)
	}
}

// TestKubeletStub runs the stub of the kubelet's tests in both ways of
// registration: it prefers the last of its devices and wants to know of starts.
func TestKubeletStub(t *testing.T) {
	for name, watched := range map[string]bool{"registers": false, "is found": true} {
		t.Run(name, func(t *testing.T) {
			const resource = "example.com/stub"
			n := newNode(t)
			dir := pluginDir
			if watched {
				dir = registryDir
			}
			devices := []*pluginapi.Device{
				{ID: "a", Health: pluginapi.Healthy, Topology: &pluginapi.TopologyInfo{Nodes: []*pluginapi.NUMANode{{ID: 0}}}},
				{ID: "b", Health: pluginapi.Healthy, Topology: &pluginapi.TopologyInfo{Nodes: []*pluginapi.NUMANode{{ID: 1}}}},
				{ID: "c", Health: pluginapi.Unhealthy},
			}
			ctx, cancel := context.WithCancel(n.ctx())
			defer cancel()
			stub := plugin.NewDevicePluginStub(klog.Background(), devices, filepath.Join(dir, "stub.sock"), resource, true, true)
			var asked atomic.Int64
			stub.SetGetPreferredAllocFunc(func(r *pluginapi.PreferredAllocationRequest,
				_ map[string]*pluginapi.Device) (*pluginapi.PreferredAllocationResponse, error) {
				asked.Add(1)
				answer := &pluginapi.PreferredAllocationResponse{}
				for _, c := range r.ContainerRequests {
					ids := slices.Sorted(slices.Values(c.AvailableDeviceIDs))
					answer.ContainerResponses = append(answer.ContainerResponses,
						&pluginapi.ContainerPreferredAllocationResponse{DeviceIDs: ids[len(ids)-int(c.AllocationSize):]})
				}
				return answer, nil
			})
			stub.SetAllocFunc(func(r *pluginapi.AllocateRequest, _ map[string]*pluginapi.Device) (*pluginapi.AllocateResponse, error) {
				answer := &pluginapi.AllocateResponse{}
				for _, c := range r.ContainerRequests {
					answer.ContainerResponses = append(answer.ContainerResponses,
						&pluginapi.ContainerAllocateResponse{Envs: map[string]string{"STUB": strings.Join(c.DevicesIds, ",")}})
				}
				return answer, nil
			})
			if err := stub.Start(ctx); err != nil {
				t.Fatal(err)
			}
			defer func() { _ = stub.Stop(klog.Background()) }()
			if !watched {
				if err := stub.Register(ctx, pluginapi.KubeletSocket, resource, pluginapi.DevicePluginPath); err != nil {
					t.Fatal(err)
				}
			}
			n.expect(resource, "connected", 3, 2)
			n.admit("pod", resource, "1")
			if got := n.devices("pod"); got != "b" || asked.Load() != 1 {
				t.Errorf("the pod holds %q; the plugin was asked %d times which it prefers", got, asked.Load())
			}
			if envs := n.allocate("pod").GetEdits().GetEnvs(); len(envs) != 1 || envs["STUB"] != "b" {
				t.Errorf("environment %v", envs)
			}
			if _, err := lifecyclev1.NewLifecycleServiceClient(n.conn).PreStartContainer(n.ctx(), &lifecyclev1.PreStartContainerRequest{
				PodUid: "pod", ContainerName: "main", ContainerId: "c1",
			}); err != nil {
				t.Errorf("start: %v", err)
			}
			devices[2].Health = pluginapi.Healthy
			stub.Update(devices)
			n.expect(resource, "connected", 3, 3)
			if err := stub.Stop(klog.Background()); err != nil {
				t.Fatal(err)
			}
			n.expect(resource, "stopped", 3, 0)
		})
	}
}

// TestKubeletReaders reads allocations with the kubelet's own clients.
func TestKubeletReaders(t *testing.T) {
	const resource = "example.com/resource"
	n := newNode(t)
	run(t, []string{"PLUGIN_SOCK_DIR=" + pluginDir}, build(t, ".", "k8s.io/kubernetes/test/images/sample-device-plugin"))
	n.expect(resource, "connected", 2, 2)
	n.admit("pod", resource, "2")

	socket := "unix://" + kubelet + "/pod-resources/kubelet.sock"
	v1, conn, err := podresources.GetV1Client(t.Context(), socket, testTime, 16<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	ids := func(list []*podresourcesv1.ContainerDevices) string {
		var out []string
		for _, d := range list {
			out = append(out, d.GetResourceName()+" "+strings.Join(d.GetDeviceIds(), "+"))
		}
		return strings.Join(out, ", ")
	}
	const want = "example.com/resource Dev-1, example.com/resource Dev-2"
	list, err := v1.List(n.ctx(), &podresourcesv1.ListPodResourcesRequest{})
	if err != nil || len(list.GetPodResources()) != 1 || ids(list.GetPodResources()[0].GetContainers()[0].GetDevices()) != want {
		t.Errorf("List: %v, %v", list, err)
	}
	got, err := v1.Get(n.ctx(), &podresourcesv1.GetPodResourcesRequest{PodName: "pod", PodNamespace: "default"})
	if err != nil || ids(got.GetPodResources().GetContainers()[0].GetDevices()) != want {
		t.Errorf("Get: %v, %v", got, err)
	}
	all, err := v1.GetAllocatableResources(n.ctx(), &podresourcesv1.AllocatableResourcesRequest{})
	if err != nil || ids(all.GetDevices()) != want {
		t.Errorf("GetAllocatableResources: %v, %v", all, err)
	}
	old, oldConn, err := podresources.GetV1alpha1Client(t.Context(), socket, testTime, 16<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = oldConn.Close() }()
	if l, err := old.List(n.ctx(), &v1alpha1.ListPodResourcesRequest{}); err != nil || len(l.GetPodResources()) != 1 {
		t.Errorf("v1alpha1 List: %v, %v", l, err)
	}
	// The same clients, over a restart; the answer waits for the plugin.
	n.restart()
	all, err = v1.GetAllocatableResources(n.ctx(), &podresourcesv1.AllocatableResourcesRequest{})
	if err != nil || ids(all.GetDevices()) != want {
		t.Errorf("GetAllocatableResources after a restart: %v, %v", all, err)
	}
}

// TestRDMAPlugin runs a plugin that is found where there is a registry, and
// registers where there is none. It has no devices without its hardware.
func TestRDMAPlugin(t *testing.T) {
	const resource = "rdma/hca_shared"
	rdma := build(t, "rdma", ".")
	config := filepath.Join(t.TempDir(), "config.json")
	if err := os.WriteFile(config,
		[]byte(`{"configList": [{"resourceName": "hca_shared", "resourcePrefix": "rdma", "rdmaHcaMax": 5, "selectors": {"vendors": ["15b3"]}}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	// It looks up the names of PCI devices; on a machine without the list of them
	// this one, without any, will do.
	home := t.TempDir()
	if err := os.MkdirAll(filepath.Join(home, ".cache"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(home, ".cache", "pci.ids"), []byte("15b3  Mellanox Technologies\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	env := []string{"HOME=" + home}
	n := newNode(t)
	p := run(t, env, rdma, config)
	n.expect(resource, "connected", 0, 0)
	n.restart() // nothing tells it; it is found
	n.expect(resource, "connected", 0, 0)
	p.kill()
	n.expect(resource, "stopped", 0, 0)
	run(t, env, rdma, config)
	n.expect(resource, "connected", 0, 0)
}

// TestPluginTest has berthctl try the sample plugin, which registers anew only when
// there is a new kubelet.sock.
func TestPluginTest(t *testing.T) {
	berthctl, berthd := build(t, "../..", "./clients/berthctl"), build(t, "../..", "./server/berthd")
	sample := build(t, ".", "k8s.io/kubernetes/test/images/sample-device-plugin")
	cmd := exec.Command(berthctl, "plugin", "test", "--berthd", berthd, "--as-kubelet-dir", "-o", "json", "--", sample)
	cmd.Env = append(os.Environ(), "PLUGIN_SOCK_DIR="+pluginDir)
	out, err := cmd.Output()
	var report struct {
		Checks []struct{ Name, Outcome, Text string }
	}
	if err := errors.Join(err, json.Unmarshal(out, &report)); err != nil || len(report.Checks) == 0 {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, c := range report.Checks {
		want := c.Outcome == "passed" || c.Outcome == "skipped"
		if c.Name == "its socket goes" {
			want = c.Outcome == "warned"
		}
		if !want {
			t.Errorf("%s %s: %s", c.Name, c.Outcome, c.Text)
		}
	}
}

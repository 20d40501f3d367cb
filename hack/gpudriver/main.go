// Command gpudriver is a driver of dynamic resource allocation for tests. The device node of all its devices is
// /dev/null. A device gpu-0@1 has the attribute resource.kubernetes.io/numaNode with the value 1; one without @ has none.
// For each claim it writes a CDI file, whose variables GPU and GPU_NUMA_NODE say which device the claim has.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/dynamic-resource-allocation/deviceattribute"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
)

// driver implements kubeletplugin.DRAPlugin.
type driver struct {
	name, cdi string
	// nodes are the NUMA nodes of devices.
	nodes map[string]int64
}

// parse reads the devices of the flag -devices.
func (d *driver) parse(list string) (out []resourceapi.Device, err error) {
	d.nodes = map[string]int64{}
	for text := range strings.SplitSeq(list, ",") {
		name, node, has := strings.Cut(text, "@")
		device := resourceapi.Device{Name: name}
		if has {
			id, err := strconv.ParseInt(node, 10, 64)
			if err != nil {
				return nil, fmt.Errorf("-devices: %q: expected NAME@NODE", text)
			}
			d.nodes[name] = id
			device.Attributes = map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{deviceattribute.StandardDeviceAttributeNUMANode: {IntValue: &id}}
		}
		out = append(out, device)
	}
	return out, nil
}

// env are the variables of a claim's containers.
func (d *driver) env(c *resourceapi.ResourceClaim) string {
	out := []string{}
	for _, r := range c.Status.Allocation.Devices.Results {
		if r.Driver != d.name {
			continue
		}
		out = append(out, strconv.Quote("GPU="+r.Device))
		if node, ok := d.nodes[r.Device]; ok {
			out = append(out, strconv.Quote(fmt.Sprintf("GPU_NUMA_NODE=%d", node)))
		}
	}
	return strings.Join(out, ", ")
}

// file is the CDI file of a claim.
func (d *driver) file(claim types.UID) string {
	return filepath.Join(d.cdi, fmt.Sprintf("%s-%s.json", d.name, claim))
}

// PrepareResourceClaims implements kubeletplugin.DRAPlugin.
func (d *driver) PrepareResourceClaims(_ context.Context, claims []*resourceapi.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult,
	error) {
	out := map[types.UID]kubeletplugin.PrepareResult{}
	for _, c := range claims {
		text := fmt.Sprintf(`{"cdiVersion": "0.8.0", "kind": "%s/claim", "devices": [{"name": "%s", "containerEdits": {"env": [%s], "deviceNodes": [{"path": "/dev/null"}]}}]}`, d.name, c.UID, d.env(c))
		// The runtime may read the directory at any time.
		err := os.WriteFile(d.file(c.UID)+".new", []byte(text), 0o644)
		if err == nil {
			err = os.Rename(d.file(c.UID)+".new", d.file(c.UID))
		}
		result := kubeletplugin.PrepareResult{Err: err}
		for _, r := range c.Status.Allocation.Devices.Results {
			if r.Driver != d.name { // the claim has devices of other drivers
				continue
			}
			result.Devices = append(result.Devices, kubeletplugin.Device{
				Requests: []string{r.Request}, PoolName: r.Pool, DeviceName: r.Device,
				CDIDeviceIDs: []string{fmt.Sprintf("%s/claim=%s", d.name, c.UID)},
			})
		}
		out[c.UID] = result
	}
	return out, nil
}

// UnprepareResourceClaims implements kubeletplugin.DRAPlugin.
func (d *driver) UnprepareResourceClaims(_ context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	out := map[types.UID]error{}
	for _, c := range claims {
		if err := os.Remove(d.file(c.UID)); !os.IsNotExist(err) {
			out[c.UID] = err
		} else {
			out[c.UID] = nil
		}
	}
	return out, nil
}

// HandleError implements kubeletplugin.DRAPlugin.
func (d *driver) HandleError(_ context.Context, err error, msg string) {
	log.Printf("%s: %v", msg, err)
}

// WatchHealthStatus implements kubeletplugin.DRAPlugin.
func (d *driver) WatchHealthStatus(context.Context, chan<- kubeletplugin.DeviceHealthReport) error {
	return kubeletplugin.ErrHealthNotSupported
}

func run() error {
	var d driver
	flag.StringVar(&d.name, "driver", "gpu.example.com", "name of the driver")
	flag.StringVar(&d.cdi, "cdi", "/var/run/cdi", "directory of CDI files")
	node := flag.String("node", "", "name of the node")
	config := flag.String("kubeconfig", "", "file with the API server's address and a user")
	list := flag.String("devices", "gpu-0", "names of devices, with @ and their NUMA node")
	data := flag.String("data", "", "directory of the driver's socket")
	flag.Parse()
	devices, err := d.parse(*list)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	c, err := clientcmd.BuildConfigFromFlags("", *config)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(c)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(*data, 0o755); err != nil {
		return err
	}
	helper, err := kubeletplugin.Start(ctx, &d, kubeletplugin.DriverName(d.name), kubeletplugin.NodeName(*node),
		kubeletplugin.KubeClient(client),
		kubeletplugin.PluginDataDirectoryPath(*data), kubeletplugin.HealthService(false))
	if err != nil {
		return err
	}
	defer helper.Stop()
	err = helper.PublishResources(ctx, resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{
		*node: {Slices: []resourceslice.Slice{{Devices: devices}}},
	}})
	if err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

func main() {
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

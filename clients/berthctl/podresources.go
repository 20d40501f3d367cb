package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/berthd/berth/clients/berthctl/table"
	"github.com/berthd/berth/managers/cpuset"
)

const podResourcesLong = `Read the kubelet's podresources API, as exporters do. berthd serves it on its main socket, and for unmodified clients on
kubelet.sock in podResourcesDir (default /var/lib/kubelet/pod-resources, and /run/berth/pod-resources beside a kubelet). --socket names that
socket, or a kubelet's.`

func (c *ctl) podResources() *cobra.Command {
	var socket string
	cmd := group(about{
		use:   "podresources",
		short: "Read the kubelet's podresources API",
		long:  podResourcesLong,
		example: `  berthctl podresources list
  berthctl podresources list --socket /var/lib/kubelet/pod-resources/kubelet.sock`,
	}, c.podResourcesList(&socket), c.podResourcesGet(&socket), c.podResourcesAllocatable(&socket))
	cmd.PersistentFlags().StringVar(&socket, "socket", "", "the podresources socket (default: berthd's own)")
	return cmd
}

// read makes a verb that reads the protocol from the socket that is named, or else from berthd's.
func (c *ctl) read(a about, socket *string, f func(ctx context.Context, lister podresourcesv1.PodResourcesListerClient, args []string) error) *cobra.Command {
	return c.local(a, func(ctx context.Context, args []string) error {
		if *socket != "" {
			c.endpoint, c.socket = *socket, *socket
		}
		return c.connected(ctx, func(ctx context.Context, s *session) error {
			return f(ctx, podresourcesv1.NewPodResourcesListerClient(s.Conn()), args)
		})
	})
}

func (c *ctl) podResourcesList(socket *string) *cobra.Command {
	return c.read(about{
		use:     "list",
		short:   "Resources of every container",
		example: `  berthctl podresources list -o json`,
	}, socket, func(ctx context.Context, lister podresourcesv1.PodResourcesListerClient, _ []string) error {
		list, err := lister.List(ctx, &podresourcesv1.ListPodResourcesRequest{})
		if err != nil {
			return err
		}
		return c.show(list, func(w io.Writer) { fmt.Fprint(w, resourcesTable(list.GetPodResources()...)) })
	})
}

func (c *ctl) podResourcesGet(socket *string) *cobra.Command {
	return c.read(about{
		use:     "get NAMESPACE/NAME",
		short:   "Resources of the containers of one pod",
		example: `  berthctl podresources get default/web`,
		args:    []string{"NAMESPACE/NAME"},
	}, socket, func(ctx context.Context, lister podresourcesv1.PodResourcesListerClient, args []string) error {
		namespace, name, ok := strings.Cut(args[0], "/")
		if !ok {
			namespace, name = "default", args[0]
		}
		got, err := lister.Get(ctx, &podresourcesv1.GetPodResourcesRequest{PodNamespace: namespace, PodName: name})
		if err != nil {
			return err
		}
		return c.show(got, func(w io.Writer) { fmt.Fprint(w, resourcesTable(got.GetPodResources())) })
	})
}

func (c *ctl) podResourcesAllocatable(socket *string) *cobra.Command {
	return c.read(about{
		use:     "allocatable",
		short:   "All CPUs, memory and devices that can be allocated, free or not",
		example: `  berthctl podresources allocatable`,
	}, socket, func(ctx context.Context, lister podresourcesv1.PodResourcesListerClient, _ []string) error {
		got, err := lister.GetAllocatableResources(ctx, &podresourcesv1.AllocatableResourcesRequest{})
		if err != nil {
			return err
		}
		return c.show(got, func(w io.Writer) {
			t := table.New("RESOURCE", "WHICH", "NUMA")
			t.Row("cpu", cpuIDs(got.GetCpuIds()))
			for _, m := range got.GetMemory() {
				t.Row(m.GetMemoryType(), table.Bytes(m.GetSize()), numaIDs(m.GetTopology()))
			}
			for _, d := range got.GetDevices() {
				t.Row(d.GetResourceName(), joined(d.GetDeviceIds()), numaIDs(d.GetTopology()))
			}
			fmt.Fprint(w, t)
		})
	})
}

// resourcesTable has a row for each container, and for each pod that has something as a whole.
func resourcesTable(pods ...*podresourcesv1.PodResources) *table.Table {
	t := table.New("NAMESPACE", "POD", "CONTAINER", "CPUS", "MEMORY", "DEVICES", "CLAIMS")
	for _, p := range pods {
		if len(p.GetCpuIds()) > 0 || len(p.GetMemory()) > 0 {
			t.Row(p.GetNamespace(), p.GetName(), "(pod)", cpuIDs(p.GetCpuIds()), memoryIDs(p.GetMemory()))
		}
		for _, c := range p.GetContainers() {
			var devices []string
			for _, d := range c.GetDevices() {
				devices = append(devices, d.GetResourceName()+"="+strings.Join(d.GetDeviceIds(), "+"))
			}
			var claims []string
			for _, claim := range c.GetDynamicResources() {
				var names []string
				for _, d := range claim.GetClaimResources() {
					names = append(names, d.GetDriverName()+"/"+d.GetDeviceName())
				}
				claims = append(claims, claim.GetClaimName()+"="+strings.Join(names, "+"))
			}
			t.Row(p.GetNamespace(), p.GetName(), c.GetName(), cpuIDs(c.GetCpuIds()), memoryIDs(c.GetMemory()), joined(devices), joined(claims))
		}
	}
	return t
}

func memoryIDs(list []*podresourcesv1.ContainerMemory) string {
	var out []string
	for _, m := range list {
		out = append(out, fmt.Sprintf("%s=%s@%s", m.GetMemoryType(), table.Bytes(m.GetSize()), numaIDs(m.GetTopology())))
	}
	return joined(out)
}

func numaIDs(t *podresourcesv1.TopologyInfo) string {
	var ids []int64
	for _, n := range t.GetNodes() {
		ids = append(ids, n.GetID())
	}
	return cpuIDs(ids)
}

// cpuIDs spells ids as a list.
func cpuIDs(ids []int64) string {
	var b cpuset.Builder
	for _, id := range ids {
		if id >= 0 && id < cpuset.MaxCPUs {
			b.Add(int(id))
		}
	}
	return b.Set().String()
}

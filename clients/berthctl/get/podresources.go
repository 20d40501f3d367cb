package get

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/berthd/berth/api/sentences"
	"github.com/berthd/berth/clients/internal/command"
	"github.com/berthd/berth/clients/internal/table"
)

const podResourcesLong = `Read the kubelet's podresources API, as exporters do. berthd serves it on its main socket, and for unmodified clients on
kubelet.sock in podResourcesDir (default /var/lib/kubelet/pod-resources, and /run/berth/pod-resources with a kubelet). --socket names that
socket, or a kubelet's.`

func PodResources(c *command.Ctl) *cobra.Command {
	var socket string
	cmd := command.Group(command.About{
		Use:   "podresources",
		Short: "Read the kubelet's podresources API",
		Long:  podResourcesLong,
		Example: `  berthctl podresources list
  berthctl podresources list --socket /var/lib/kubelet/pod-resources/kubelet.sock`,
	}, podResourcesList(c, &socket), podResourcesGet(c, &socket), podResourcesAllocatable(c, &socket))
	cmd.PersistentFlags().StringVar(&socket, "socket", "", "the podresources socket (default: berthd's own)")
	return cmd
}

// read makes a verb that reads the protocol from the socket that is named, or else from berthd's.
func read(c *command.Ctl, a command.About, socket *string, f func(ctx context.Context, lister podresourcesv1.PodResourcesListerClient,
	args []string) error) *cobra.Command {
	return c.Local(a, func(ctx context.Context, args []string) error {
		if *socket != "" {
			c.Address, c.Socket = *socket, *socket
		}
		return c.Connected(ctx, func(ctx context.Context, s *command.Session) error {
			return f(ctx, podresourcesv1.NewPodResourcesListerClient(s.Conn()), args)
		})
	})
}

func podResourcesList(c *command.Ctl, socket *string) *cobra.Command {
	return read(c, command.About{
		Use:     "list",
		Short:   "Resources of every container",
		Example: `  berthctl podresources list -o json`,
	}, socket, func(ctx context.Context, lister podresourcesv1.PodResourcesListerClient, _ []string) error {
		list, err := lister.List(ctx, &podresourcesv1.ListPodResourcesRequest{})
		if err != nil {
			return err
		}
		return c.Show(list, func(w io.Writer) { fmt.Fprint(w, resourcesTable(list.GetPodResources()...)) })
	})
}

func podResourcesGet(c *command.Ctl, socket *string) *cobra.Command {
	return read(c, command.About{
		Use:     "get NAMESPACE/NAME",
		Short:   "Resources of the containers of one pod",
		Example: `  berthctl podresources get default/web`,
		Args:    []string{"NAMESPACE/NAME"},
	}, socket, func(ctx context.Context, lister podresourcesv1.PodResourcesListerClient, args []string) error {
		namespace, name, ok := strings.Cut(args[0], "/")
		if !ok {
			namespace, name = "default", args[0]
		}
		got, err := lister.Get(ctx, &podresourcesv1.GetPodResourcesRequest{PodNamespace: namespace, PodName: name})
		if err != nil {
			return err
		}
		return c.Show(got, func(w io.Writer) { fmt.Fprint(w, resourcesTable(got.GetPodResources())) })
	})
}

func podResourcesAllocatable(c *command.Ctl, socket *string) *cobra.Command {
	return read(c, command.About{
		Use:     "allocatable",
		Short:   "All CPUs, memory and devices that can be allocated, free or not",
		Example: `  berthctl podresources allocatable`,
	}, socket, func(ctx context.Context, lister podresourcesv1.PodResourcesListerClient, _ []string) error {
		got, err := lister.GetAllocatableResources(ctx, &podresourcesv1.AllocatableResourcesRequest{})
		if err != nil {
			return err
		}
		return c.Show(got, func(w io.Writer) {
			t := table.New("RESOURCE", "WHICH", "NUMA")
			t.Row("cpu", sentences.IDs(got.GetCpuIds()))
			for _, m := range got.GetMemory() {
				t.Row(m.GetMemoryType(), table.Bytes(m.GetSize()), numaIDs(m.GetTopology()))
			}
			for _, d := range got.GetDevices() {
				t.Row(d.GetResourceName(), command.Joined(d.GetDeviceIds()), numaIDs(d.GetTopology()))
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
			t.Row(p.GetNamespace(), p.GetName(), "(pod)", sentences.IDs(p.GetCpuIds()), memoryIDs(p.GetMemory()))
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
			t.Row(p.GetNamespace(), p.GetName(), c.GetName(), sentences.IDs(c.GetCpuIds()), memoryIDs(c.GetMemory()),
				command.Joined(devices), command.Joined(claims))
		}
	}
	return t
}

func memoryIDs(list []*podresourcesv1.ContainerMemory) string {
	var out []string
	for _, m := range list {
		out = append(out, fmt.Sprintf("%s=%s@%s", m.GetMemoryType(), table.Bytes(m.GetSize()), numaIDs(m.GetTopology())))
	}
	return command.Joined(out)
}

func numaIDs(t *podresourcesv1.TopologyInfo) string {
	var ids []int64
	for _, n := range t.GetNodes() {
		ids = append(ids, n.GetID())
	}
	return sentences.IDs(ids)
}

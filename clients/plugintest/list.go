package plugintest

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	registrationapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/workload"
)

// kubeletListBytes is the size of a list at which a kubelet ends the stream.
const kubeletListBytes = 4 << 20

// checkInfo checks the data of a device plugin that waits to be found.
func checkInfo(info *registrationapi.PluginInfo) (string, error) {
	switch {
	case info.GetType() != registrationapi.DevicePlugin:
		return "", fmt.Errorf("its type is %q, expected %q", info.GetType(), registrationapi.DevicePlugin)
	case !workload.Resource(info.GetName()).IsExtended():
		return "", fmt.Errorf("its name %q is not that of an extended resource, as in example.com/gpu", info.GetName())
	case !slices.Contains(info.GetSupportedVersions(), pluginapi.Version):
		return "", fmt.Errorf("its versions %q do not have %q", info.GetSupportedVersions(), pluginapi.Version)
	case info.GetEndpoint() != "" && !filepath.IsAbs(info.GetEndpoint()):
		return "", fmt.Errorf("its endpoint %q is not an absolute path", info.GetEndpoint())
	}
	return "it waits to be found, for " + info.GetName(), nil
}

var errNoList = skipped("there is no list to check")

func (p *probe) ids(context.Context) (string, error) {
	if !p.lists.listed() {
		return "", errNoList
	}
	seen := map[string]bool{}
	for _, d := range p.devices {
		switch id := d.GetID(); {
		case id == "":
			return "", errors.New("a device has no id")
		case seen[id]:
			return "", fmt.Errorf("device %q is in the list twice; its capacity is counted wrong", id)
		default:
			seen[id] = true
		}
	}
	for _, d := range p.devices {
		if id := d.GetID(); strings.ContainsFunc(id, func(r rune) bool { return !unicode.IsPrint(r) }) || !utf8.ValidString(id) {
			return "", warnf("device %q has characters that cannot be printed; they go to logs, environment variables and file names of containers", id)
		}
	}
	return "every device has an id of its own", nil
}

func (p *probe) health(context.Context) (string, error) {
	if !p.lists.listed() {
		return "", errNoList
	}
	for _, d := range p.devices {
		if h := d.GetHealth(); h != pluginapi.Healthy && h != pluginapi.Unhealthy {
			return "", warnf("the health of device %q is %q, which counts as unhealthy; expected %s or %s", d.GetID(), h,
				pluginapi.Healthy, pluginapi.Unhealthy)
		}
	}
	return "every device is healthy or unhealthy", nil
}

func (p *probe) topology(context.Context) (string, error) {
	if !p.lists.listed() {
		return "", errNoList
	}
	with := 0
	for _, d := range p.devices {
		nodes := d.GetTopology().GetNodes()
		if len(nodes) > 0 {
			with++
		} else if d.GetTopology() != nil {
			return "", warnf("device %q has a topology without nodes; a kubelet leaves it out of what can be allocated", d.GetID())
		}
		for _, n := range nodes {
			if n.GetID() < 0 || n.GetID() >= numa.MaxNodes {
				return "", fmt.Errorf("device %q is near NUMA node %d, which no machine has", d.GetID(), n.GetID())
			}
		}
	}
	if with > 0 && with < len(p.devices) {
		return "", warnf("%d of %d devices have no topology: they count for no placement, so that pods may be refused although there are devices", len(p.devices)-with, len(p.devices))
	}
	return fmt.Sprintf("%d of %d devices report their NUMA nodes", with, len(p.devices)), nil
}

func (p *probe) size(context.Context) (string, error) {
	if !p.lists.listed() {
		return "", errNoList
	}
	n := proto.Size(&pluginapi.ListAndWatchResponse{Devices: p.devices})
	if n > kubeletListBytes {
		return "", warnf("the list has %d bytes; a kubelet ends the stream above %d", n, kubeletListBytes)
	}
	return fmt.Sprintf("%d bytes", n), nil
}

// preferred requests two devices, one of which is mandatory.
func (p *probe) preferred(ctx context.Context) (string, error) {
	healthy := p.healthy()
	switch {
	case p.options == nil || !p.options.GetGetPreferredAllocationAvailable():
		return "", skipped("the plugin does not announce it")
	case len(healthy) < 2:
		return "", skipped("there are fewer than two healthy devices to choose from")
	}
	must := healthy[0]
	defer p.timed("GetPreferredAllocation", time.Now())
	resp, err := p.plugin.GetPreferredAllocation(ctx, &pluginapi.PreferredAllocationRequest{
		ContainerRequests: []*pluginapi.ContainerPreferredAllocationRequest{{
			AvailableDeviceIDs: healthy, MustIncludeDeviceIDs: []string{must}, AllocationSize: 2,
		}},
	})
	if err != nil {
		return "", fmt.Errorf("GetPreferredAllocation is announced: %w", err)
	}
	if n := len(resp.GetContainerResponses()); n != 1 {
		return "", fmt.Errorf("one container was requested, and the answer has %d", n)
	}
	ids := resp.GetContainerResponses()[0].GetDeviceIDs()
	sorted := slices.Sorted(slices.Values(ids))
	switch {
	case len(slices.Compact(sorted)) != 2:
		return "", warnf("2 devices were requested, and it prefers %s; berthd adds the missing ones", quoted(ids))
	case !slices.Contains(ids, must):
		return "", warnf("it prefers %s, without %q, which has to be among them", quoted(ids), must)
	}
	for _, id := range ids {
		if !slices.Contains(healthy, id) {
			return "", warnf("it prefers %q, which is not available", id)
		}
	}
	return "of " + quoted(healthy) + " it prefers " + quoted(ids), nil
}

// quoted lists a few ids.
func quoted(ids []string) string {
	const few = 6
	var out []string
	for _, id := range ids[:min(len(ids), few)] {
		out = append(out, fmt.Sprintf("%q", id))
	}
	text := strings.Join(out, ", ")
	if more := len(ids) - few; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	if text == "" {
		return "none"
	}
	return text
}

package script

import (
	"context"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// garbage adds bytes to a message that cannot be parsed: a field with a length beyond the end.
func garbage[M proto.Message](m M) M {
	m.ProtoReflect().SetUnknown([]byte{0x0a, 0x7f})
	return m
}

func (p *Plugin) options() *pluginapi.DevicePluginOptions {
	return &pluginapi.DevicePluginOptions{PreStartRequired: p.PreStart, GetPreferredAllocationAvailable: p.Preferred}
}

// GetDevicePluginOptions answers with the options of the configuration.
func (p *Plugin) GetDevicePluginOptions(ctx context.Context, _ *pluginapi.Empty) (*pluginapi.DevicePluginOptions, error) {
	p.note(Call{Method: Options})
	if _, err := p.begin(ctx, Options); err != nil {
		return nil, err
	}
	return p.options(), nil
}

// ListAndWatch sends the devices, and again whenever they change.
func (p *Plugin) ListAndWatch(_ *pluginapi.Empty, stream grpc.ServerStreamingServer[pluginapi.ListAndWatchResponse]) error {
	p.count(1)
	defer p.count(-1)
	var sent []Device
	nth := p.begun()
	opened := time.Now()
	resend := false
	for first := true; ; first = false {
		how, err := p.begin(stream.Context(), ListAndWatch)
		if err != nil || how == End {
			return err
		}
		p.mu.Lock()
		if how == Renumber && first {
			for i := range p.devices {
				p.devices[i].ID += fmt.Sprintf("-%d-%d", os.Getpid(), nth)
			}
		}
		devices, changed := slices.Clone(p.devices), p.changed
		p.mu.Unlock()
		if how == Reorder && nth%2 == 0 {
			slices.Reverse(devices)
		}
		if first || resend || !slices.EqualFunc(devices, sent, sameDevice) || how == Garbage {
			resend = false
			list := &pluginapi.ListAndWatchResponse{}
			call := Call{Method: ListAndWatch}
			for _, d := range devices {
				list.Devices = append(list.Devices, d.wire())
				call.IDs = append(call.IDs, d.ID)
			}
			if how == Garbage {
				list = garbage(list)
			}
			if err := stream.Send(list); err != nil {
				return err
			}
			sent = devices
			p.note(call)
			continue
		}
		var tick <-chan time.Time
		wait, ends := strings.CutPrefix(string(how), endAfter)
		switch {
		case ends:
			after, err := time.ParseDuration(wait)
			if err != nil {
				return err
			}
			tick = time.After(time.Until(opened.Add(after)))
		case how == Flap || how == Resend:
			tick = time.After(flapEvery)
		}
		select {
		case <-changed:
		case <-tick:
			switch {
			case ends:
				return nil
			case how == Flap && len(devices) > 0:
				p.SetHealth(devices[0].ID, devices[0].Unhealthy)
			}
			resend = how == Resend
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}

// begun counts the streams of lists, and returns how many there were with this one.
func (p *Plugin) begun() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lists++
	return p.lists
}

func sameDevice(a, b Device) bool {
	return a.ID == b.ID && a.Unhealthy == b.Unhealthy && slices.Equal(a.Nodes, b.Nodes) && (a.Nodes == nil) == (b.Nodes == nil)
}

func (p *Plugin) count(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.streams += n
	p.most = max(p.most, p.streams)
	p.wake()
}

// GetPreferredAllocation prefers the mandatory devices and then the highest ids, which berth's
// own choice would take last.
func (p *Plugin) GetPreferredAllocation(ctx context.Context,
	req *pluginapi.PreferredAllocationRequest) (*pluginapi.PreferredAllocationResponse, error) {
	answer := &pluginapi.PreferredAllocationResponse{}
	for _, c := range req.ContainerRequests {
		p.note(Call{Method: Preferred, IDs: c.AvailableDeviceIDs, MustInclude: c.MustIncludeDeviceIDs, Size: int(c.AllocationSize)})
		ids := slices.Clone(c.MustIncludeDeviceIDs)
		for _, id := range slices.Backward(slices.Sorted(slices.Values(c.AvailableDeviceIDs))) {
			if len(ids) < int(c.AllocationSize) && !slices.Contains(ids, id) {
				ids = append(ids, id)
			}
		}
		answer.ContainerResponses = append(answer.ContainerResponses, &pluginapi.ContainerPreferredAllocationResponse{DeviceIDs: ids})
	}
	how, err := p.begin(ctx, Preferred)
	switch {
	case err != nil:
		return nil, err
	case how == Empty:
		return &pluginapi.PreferredAllocationResponse{}, nil
	case how == Garbage:
		for _, c := range answer.ContainerResponses {
			c.DeviceIDs = []string{"no-such-device", ""}
		}
	}
	return answer, nil
}

// Allocate answers with an environment variable, an annotation, a mount and a
// device node for each device, and refuses ids that are unknown or unhealthy. A call
// that was given up before it came is none.
func (p *Plugin) Allocate(ctx context.Context, req *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	answer := &pluginapi.AllocateResponse{}
	for _, c := range req.ContainerRequests {
		call := Call{Method: Allocate, IDs: c.DevicesIds}
		err := p.check(c.DevicesIds)
		if err != nil {
			call.Error = err.Error()
		}
		p.note(call)
		if err != nil {
			return nil, err
		}
		answer.ContainerResponses = append(answer.ContainerResponses, p.answer(c.DevicesIds))
	}
	how, err := p.begin(ctx, Allocate)
	switch {
	case err != nil:
		return nil, err
	case how == Empty:
		return &pluginapi.AllocateResponse{}, nil
	case how == Garbage:
		return garbage(answer), nil
	case how == Shrink:
		if err := p.shrink(ctx, req); err != nil {
			return nil, err
		}
	}
	return answer, nil
}

// check refuses devices that the plugin does not have or that are not healthy.
func (p *Plugin) check(ids []string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, id := range ids {
		usable := false
		for _, d := range p.devices {
			if d.ID == id {
				usable = !d.Unhealthy // of several entries the last one counts
			}
		}
		if !usable {
			return status.Errorf(codes.InvalidArgument, "device %q is unknown or not healthy", id)
		}
	}
	return nil
}

// shrink drops the devices of a request and waits until the list is out.
func (p *Plugin) shrink(ctx context.Context, req *pluginapi.AllocateRequest) error {
	before := len(p.Calls(ListAndWatch))
	p.mu.Lock()
	for _, c := range req.ContainerRequests {
		p.devices = slices.DeleteFunc(slices.Clone(p.devices), func(d Device) bool { return slices.Contains(c.DevicesIds, d.ID) })
	}
	p.wake()
	p.mu.Unlock()
	_, err := p.Await(ctx, ListAndWatch, before+1)
	return err
}

func (p *Plugin) answer(ids []string) *pluginapi.ContainerAllocateResponse {
	base := path.Base(p.Resource)
	r := &pluginapi.ContainerAllocateResponse{
		Envs:        map[string]string{p.Env: strings.Join(ids, ",")},
		Annotations: map[string]string{p.Resource: strings.Join(ids, ",")},
		Mounts:      []*pluginapi.Mount{{ContainerPath: "/run/devices/" + base, HostPath: p.Dir, ReadOnly: true}},
	}
	for _, id := range ids {
		r.Devices = append(r.Devices, &pluginapi.DeviceSpec{
			ContainerPath: "/dev/" + base + "-" + id, HostPath: "/dev/null", Permissions: "rw",
		})
		if p.CDI {
			r.CdiDevices = append(r.CdiDevices, &pluginapi.CDIDevice{Name: p.Resource + "=" + id})
		}
	}
	if p.Answer != nil {
		p.Answer(r)
	}
	return r
}

// PreStartContainer does nothing, in the manner that was set.
func (p *Plugin) PreStartContainer(ctx context.Context, req *pluginapi.PreStartContainerRequest) (*pluginapi.PreStartContainerResponse,
	error) {
	p.note(Call{Method: PreStart, IDs: req.DevicesIds})
	how, err := p.begin(ctx, PreStart)
	if err != nil {
		return nil, err
	}
	if how == Garbage {
		return garbage(&pluginapi.PreStartContainerResponse{}), nil
	}
	return &pluginapi.PreStartContainerResponse{}, nil
}

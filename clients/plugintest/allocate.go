package plugintest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

var errNoAllocate = skipped("calls of Allocate are left out")

// allocate allocates devices for one container, and returns the answer, and how it was encoded.
func (p *probe) allocate(ctx context.Context, ids ...string) (*pluginapi.ContainerAllocateResponse, []byte, error) {
	codec := &keeping{CodecV2: encoding.GetCodecV2("proto")}
	resp, err := p.plugin.Allocate(ctx, &pluginapi.AllocateRequest{
		ContainerRequests: []*pluginapi.ContainerAllocateRequest{{DevicesIds: ids}},
	}, grpc.ForceCodecV2(codec))
	if err != nil {
		return nil, nil, err
	}
	if n := len(resp.GetContainerResponses()); n != 1 {
		return nil, nil, fmt.Errorf("one container was requested, and the answer has %d", n)
	}
	return resp.GetContainerResponses()[0], codec.raw, nil
}

// keeping is a codec that keeps what it decoded.
type keeping struct {
	encoding.CodecV2
	raw []byte
}

// Unmarshal decodes a message.
func (k *keeping) Unmarshal(data mem.BufferSlice, v any) error {
	k.raw = data.Materialize()
	return k.CodecV2.Unmarshal(data, v)
}

// allocatable returns why nothing can be allocated.
func (p *probe) allocatable() error {
	switch {
	case p.NoAllocate:
		return errNoAllocate
	case len(p.healthy()) == 0:
		return skipped("there is no healthy device")
	}
	return nil
}

func (p *probe) allocateOne(ctx context.Context) (string, error) {
	if err := p.allocatable(); err != nil {
		return "", err
	}
	id := p.healthy()[0]
	defer p.timed("Allocate", time.Now())
	answer, wire, err := p.allocate(ctx, id)
	if err != nil {
		return "", fmt.Errorf("device %q is not allocated: %w", id, err)
	}
	p.first, p.wire = answer, wire
	return fmt.Sprintf("device %q: %d variables, %d mounts, %d device nodes, %d annotations, %d CDI names",
		id, len(answer.GetEnvs()), len(answer.GetMounts()), len(answer.GetDevices()), len(answer.GetAnnotations()),
		len(answer.GetCdiDevices())), nil
}

// allocateAgain allocates the same device again, as happens when a pod is admitted
// after another was rejected: plugins get no call when a device is freed.
func (p *probe) allocateAgain(ctx context.Context) (string, error) {
	if p.first == nil {
		return "", skipped("there was no first time")
	}
	again, _, err := p.allocate(ctx, p.healthy()[0])
	switch {
	case err != nil:
		return "", fmt.Errorf("a device that was allocated before: %w; plugins get no call when a device is freed", err)
	case !proto.Equal(again, p.first):
		return "", warnf("the answer is another one than the first time")
	}
	return "the answer is the same", nil
}

// allocateTwo holds the answer for two devices against the answers for each of them: a container with
// both has to get what it would get of either.
func (p *probe) allocateTwo(ctx context.Context) (string, error) {
	if err := p.allocatable(); err != nil {
		return "", err
	}
	healthy := p.healthy()
	if p.first == nil || len(healthy) < 2 {
		return "", skipped("fewer than two devices can be allocated")
	}
	one, other := healthy[0], healthy[1]
	alone, _, err := p.allocate(ctx, other)
	if err != nil {
		return "", fmt.Errorf("device %q is not allocated: %w", other, err)
	}
	both, _, err := p.allocate(ctx, one, other)
	if err != nil {
		return "", fmt.Errorf("devices %q and %q are not allocated to one container: %w", one, other, err)
	}
	nodes, others := settingsOf(both)
	var odd error
	for id, answer := range map[string]*pluginapi.ContainerAllocateResponse{one: p.first, other: alone} {
		itsNodes, itsOthers := settingsOf(answer)
		for _, node := range itsNodes {
			if !slices.Contains(nodes, node) {
				return "", fmt.Errorf("the answer for %q and %q lacks the device node %q, which %q has alone: the container gets too few devices",
					one, other, node, id)
			}
		}
		for _, setting := range itsOthers {
			if !slices.Contains(others, setting) { // which a plugin may make anew for each call
				odd = warnf("the answer for %q and %q lacks the %s, which %q has alone", one, other, setting, id)
			}
		}
	}
	if odd != nil {
		return "", odd
	}
	return fmt.Sprintf("the answer has what %q and %q have alone", one, other), nil
}

// settingsOf lists the device nodes of the host that a container gets, and what else makes a device reachable.
func settingsOf(answer *pluginapi.ContainerAllocateResponse) (nodes, others []string) {
	for _, d := range answer.GetDevices() {
		nodes = append(nodes, d.GetHostPath())
	}
	for _, c := range answer.GetCdiDevices() {
		others = append(others, fmt.Sprintf("CDI name %q", c.GetName()))
	}
	for _, m := range answer.GetMounts() {
		others = append(others, fmt.Sprintf("mount of %q", m.GetHostPath()))
	}
	return nodes, others
}

func (p *probe) allocateAll(ctx context.Context) (string, error) {
	if err := p.allocatable(); err != nil {
		return "", err
	}
	all := p.healthy()
	defer p.timed("Allocate", time.Now())
	if _, _, err := p.allocate(ctx, all...); err != nil {
		return "", fmt.Errorf("all %d healthy devices are not allocated to one container: %w", len(all), err)
	}
	return fmt.Sprintf("%d devices for one container", len(all)), nil
}

func (p *probe) allocateUnknown(ctx context.Context) (string, error) {
	if err := p.allocatable(); err != nil {
		return "", err
	}
	if _, _, err := p.allocate(ctx, "berthctl-asks-for-what-does-not-exist"); err != nil {
		return "refused: " + err.Error(), nil
	}
	return "", warnf("a device that it does not have is allocated")
}

func (p *probe) allocateUnhealthy(ctx context.Context) (string, error) {
	if err := p.allocatable(); err != nil {
		return "", err
	}
	for _, d := range p.devices {
		if d.GetHealth() == pluginapi.Healthy {
			continue
		}
		if _, _, err := p.allocate(ctx, d.GetID()); err != nil {
			return "refused: " + err.Error(), nil
		}
		return "", warnf("device %q is not healthy, and is allocated", d.GetID())
	}
	return "", skipped("every device is healthy")
}

func (p *probe) preStart(ctx context.Context) (string, error) {
	switch {
	case p.options == nil || !p.options.GetPreStartRequired():
		return "", skipped("the plugin does not announce it")
	case p.first == nil:
		return "", skipped("nothing was allocated")
	}
	for range 2 {
		began := time.Now()
		if _, err := p.plugin.PreStartContainer(ctx, &pluginapi.PreStartContainerRequest{DevicesIds: p.healthy()[:1]}); err != nil {
			return "", fmt.Errorf("PreStartContainer, which comes at every start of a container: %w", err)
		}
		p.timed("PreStartContainer", began)
	}
	return "answered at two starts", nil
}

// flood makes many calls at once.
func (p *probe) flood(ctx context.Context) (string, error) {
	if p.Flood == 0 || p.options == nil {
		return "", skipped("not requested, or there were no options")
	}
	var (
		group sync.WaitGroup
		mu    sync.Mutex
		errs  []error
	)
	began := time.Now()
	for range p.Flood {
		group.Go(func() {
			_, err := p.plugin.GetDevicePluginOptions(ctx, &pluginapi.Empty{})
			if err == nil && p.first != nil {
				_, _, err = p.allocate(ctx, p.healthy()[0])
			}
			if err != nil {
				mu.Lock()
				errs = append(errs, err)
				mu.Unlock()
			}
		})
	}
	group.Wait()
	if len(errs) > 0 {
		return "", fmt.Errorf("%d of %d calls at once failed, the first with: %w", len(errs), p.Flood, errs[0])
	}
	return fmt.Sprintf("%d calls at once took %s", p.Flood, time.Since(began).Round(time.Millisecond)), nil
}

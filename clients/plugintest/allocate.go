package plugintest

import (
	"context"
	"errors"
	"fmt"
	"path"
	"regexp"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

var errNoAllocate = skipped("calls of Allocate are left out")

// allocate allocates devices for one container.
func (p *probe) allocate(ctx context.Context, ids ...string) (*pluginapi.ContainerAllocateResponse, error) {
	resp, err := p.plugin.Allocate(ctx, &pluginapi.AllocateRequest{
		ContainerRequests: []*pluginapi.ContainerAllocateRequest{{DevicesIds: ids}},
	})
	if err != nil {
		return nil, err
	}
	if n := len(resp.GetContainerResponses()); n != 1 {
		return nil, fmt.Errorf("one container was requested, and the answer has %d", n)
	}
	return resp.GetContainerResponses()[0], nil
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
	answer, err := p.allocate(ctx, id)
	if err != nil {
		return "", fmt.Errorf("device %q is not allocated: %w", id, err)
	}
	p.first = answer
	return fmt.Sprintf("device %q: %d variables, %d mounts, %d device nodes, %d annotations, %d CDI names",
		id, len(answer.GetEnvs()), len(answer.GetMounts()), len(answer.GetDevices()), len(answer.GetAnnotations()),
		len(answer.GetCdiDevices())), nil
}

var (
	permissions = regexp.MustCompile(`^[rwm]+$`)
	cdiName     = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?/[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?=[A-Za-z0-9]([A-Za-z0-9._:-]*[A-Za-z0-9])?$`)
)

// answer checks the settings of the plugin's answer, before a runtime would find the mistakes.
func (p *probe) answer(context.Context) (string, error) {
	if p.first == nil {
		return "", skipped("there is no answer to check")
	}
	for name := range p.first.GetEnvs() {
		if name == "" || strings.ContainsAny(name, "=\x00") {
			return "", fmt.Errorf("%q is no name of an environment variable", name)
		}
	}
	for _, m := range p.first.GetMounts() {
		if !path.IsAbs(m.GetHostPath()) || !path.IsAbs(m.GetContainerPath()) {
			return "", fmt.Errorf("mount of %q at %q: expected absolute paths", m.GetHostPath(), m.GetContainerPath())
		}
	}
	for _, d := range p.first.GetDevices() {
		if !path.IsAbs(d.GetHostPath()) || !path.IsAbs(d.GetContainerPath()) {
			return "", fmt.Errorf("device node %q at %q: expected absolute paths", d.GetHostPath(), d.GetContainerPath())
		}
		if !permissions.MatchString(d.GetPermissions()) {
			return "", fmt.Errorf("device node %q: permissions %q: expected letters of r, w and m", d.GetContainerPath(),
				d.GetPermissions())
		}
	}
	for _, c := range p.first.GetCdiDevices() {
		if !cdiName.MatchString(c.GetName()) {
			return "", fmt.Errorf("%q is no CDI name of the form vendor/class=device", c.GetName())
		}
	}
	if proto.Size(p.first) == 0 {
		return "", warnf("the answer is empty: the container sees nothing of its device")
	}
	return "a runtime can use it", nil
}

// allocateAgain allocates the same device again, as happens when a pod is admitted
// after another was rejected: plugins get no call when a device is freed.
func (p *probe) allocateAgain(ctx context.Context) (string, error) {
	if p.first == nil {
		return "", skipped("there was no first time")
	}
	again, err := p.allocate(ctx, p.healthy()[0])
	switch {
	case err != nil:
		return "", fmt.Errorf("a device that was allocated before: %w; plugins get no call when a device is freed", err)
	case !proto.Equal(again, p.first):
		return "", warnf("the answer is another one than the first time")
	}
	return "the answer is the same", nil
}

func (p *probe) allocateAll(ctx context.Context) (string, error) {
	if err := p.allocatable(); err != nil {
		return "", err
	}
	all := p.healthy()
	if _, err := p.allocate(ctx, all...); err != nil {
		return "", fmt.Errorf("all %d healthy devices are not allocated to one container: %w", len(all), err)
	}
	return fmt.Sprintf("%d devices for one container", len(all)), nil
}

func (p *probe) allocateUnknown(ctx context.Context) (string, error) {
	if err := p.allocatable(); err != nil {
		return "", err
	}
	if _, err := p.allocate(ctx, "berthctl-asks-for-what-does-not-exist"); err != nil {
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
		if _, err := p.allocate(ctx, d.GetID()); err != nil {
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
		if _, err := p.plugin.PreStartContainer(ctx, &pluginapi.PreStartContainerRequest{DevicesIds: p.healthy()[:1]}); err != nil {
			return "", fmt.Errorf("PreStartContainer, which comes at every start of a container: %w", err)
		}
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
				_, err = p.allocate(ctx, p.healthy()[0])
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

// openTime is how long a list has to stay open to count as open.
const openTime = 500 * time.Millisecond

// staysOpen waits a moment for what comes after the first list.
func (p *probe) staysOpen(ctx context.Context) (string, error) {
	if p.stream == nil {
		return "", errNoList
	}
	ctx, cancel := context.WithTimeout(ctx, openTime)
	defer cancel()
	_, err := receive(ctx, p.stream)
	switch {
	case errors.Is(err, context.DeadlineExceeded) && ctx.Err() != nil:
		return "nothing happens as long as nothing changes", nil
	case err != nil:
		return "", fmt.Errorf("the list ended: %w; its devices count as unhealthy until the plugin registers again", err)
	}
	return "another list came", nil
}

// reconnect connects again and lists again, as after a restart of the server.
func (p *probe) reconnect(ctx context.Context) (string, error) {
	_ = p.conn.Close()
	conn, err := p.dial(ctx)
	if err != nil {
		return "", fmt.Errorf("after its connection was closed: %w", err)
	}
	p.conn, p.plugin = conn, pluginapi.NewDevicePluginClient(conn)
	if p.stream == nil {
		return "it answers", nil
	}
	stream, err := p.plugin.ListAndWatch(ctx, &pluginapi.Empty{})
	if err != nil {
		return "", fmt.Errorf("ListAndWatch after its connection was closed: %w", err)
	}
	list, err := receive(ctx, stream)
	switch {
	case err != nil:
		return "", fmt.Errorf("the list after its connection was closed: %w", err)
	case len(list.GetDevices()) != len(p.devices):
		return "", warnf("the list has %d devices now, and had %d", len(list.GetDevices()), len(p.devices))
	}
	return "it lists the same devices again", nil
}

package plugintest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// listing follows a stream of lists from its beginning to its end.
type listing struct {
	opened time.Time
	// arrived is closed with the first list, and done at the end of the stream.
	arrived, done chan struct{}

	// The rest is guarded by mu.
	mu    sync.Mutex
	first []*pluginapi.Device
	last  []*pluginapi.Device
	lists int
	// same is how many lists were the one before again, reordered how many were it in another order.
	same, reordered int
	// changes is how often the health of each device has changed.
	changes map[string]int
	ended   time.Time
	err     error
}

// openList opens a stream, which lives as long as the connection, and waits for the first list.
func (p *probe) openList(ctx context.Context) (*listing, error) {
	began := time.Now()
	stream, err := p.plugin.ListAndWatch(context.WithoutCancel(ctx), &pluginapi.Empty{})
	if err != nil {
		return nil, fmt.Errorf("ListAndWatch: %w", err)
	}
	l := &listing{opened: began, arrived: make(chan struct{}), done: make(chan struct{}), changes: map[string]int{}}
	go l.follow(stream)
	select {
	case <-l.arrived:
		p.timed("ListAndWatch", began)
		return l, nil
	case <-l.done:
		if l.listed() {
			return l, nil
		}
		return l, fmt.Errorf("the first list: %w", l.end())
	case <-ctx.Done():
		return l, fmt.Errorf("the first list: %w", ctx.Err())
	}
}

func (l *listing) follow(stream grpc.ServerStreamingClient[pluginapi.ListAndWatchResponse]) {
	defer close(l.done)
	for {
		list, err := stream.Recv()
		l.mu.Lock()
		if err != nil {
			l.ended, l.err = time.Now(), err
			l.mu.Unlock()
			return
		}
		l.take(list.GetDevices())
		l.mu.Unlock()
	}
}

// take compares a list with the one before. The lock is held.
func (l *listing) take(devices []*pluginapi.Device) {
	l.lists++
	if l.lists == 1 {
		l.first, l.last = devices, devices
		close(l.arrived)
		return
	}
	before := map[string]string{}
	for _, d := range l.last {
		before[d.GetID()] = d.GetHealth()
	}
	changed := false
	for _, d := range devices {
		if health, known := before[d.GetID()]; known && health != d.GetHealth() {
			l.changes[d.GetID()]++
			changed = true
		}
	}
	switch was, is := idsOf(l.last), idsOf(devices); {
	case changed:
	case slices.Equal(was, is):
		l.same++
	case slices.Equal(slices.Sorted(slices.Values(was)), slices.Sorted(slices.Values(is))):
		l.reordered++
	}
	l.last = devices
}

// listed reports whether a list has come.
func (l *listing) listed() bool {
	if l == nil {
		return false
	}
	select {
	case <-l.arrived:
		return true
	default:
		return false
	}
}

func idsOf(devices []*pluginapi.Device) []string {
	ids := make([]string, len(devices))
	for i, d := range devices {
		ids[i] = d.GetID()
	}
	return ids
}

// end says how the stream has ended; done is closed.
func (l *listing) end() error {
	why := l.err
	if errors.Is(why, io.EOF) {
		why = errors.New("the plugin returned from ListAndWatch")
	}
	after := l.ended.Sub(l.opened)
	return fmt.Errorf("the list ended by itself %s after it was opened, and was sent %s: %w; it has to stay open as long as the plugin runs",
		rounded(after), times(l.lists), why)
}

func (p *probe) list(ctx context.Context) (string, error) {
	l, err := p.openList(ctx)
	p.lists = l
	if err != nil {
		return "", err
	}
	p.devices = l.first
	if len(p.devices) == 0 {
		return "", warnf("the list is empty: the resource is known and has capacity 0")
	}
	return fmt.Sprintf("%d devices, %d of them healthy", len(p.devices), len(p.healthy())), nil
}

// From how many on they are worth a warning.
const (
	manyChanges = 2 // of the health of one device
	manySame    = 3
)

// staysOpen watches the list that was opened at the beginning, until it was open for the time that it has to be.
func (p *probe) staysOpen(ctx context.Context) (string, error) {
	l := p.lists
	if !l.listed() {
		return "", errNoList
	}
	timer := time.NewTimer(time.Until(l.opened.Add(p.Watch)))
	defer timer.Stop()
	select {
	case <-l.done:
		return "", l.end()
	case <-ctx.Done():
		return "", ctx.Err()
	case <-timer.C:
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	open := rounded(time.Since(l.opened))
	worst := ""
	for id, n := range l.changes {
		if n > l.changes[worst] || n == l.changes[worst] && id < worst {
			worst = id
		}
	}
	switch {
	case l.changes[worst] >= manyChanges:
		return "", warnf("device %q changed its health %d times in %s, and nothing was done to it: pods are refused and admitted by chance",
			worst, l.changes[worst], open)
	case l.reordered > 0:
		return "", warnf("the devices came in another order %d times in %s", l.reordered, open)
	case l.same >= manySame:
		return "", warnf("the list was sent %d times more in %s without a change; each one is compared by its reader", l.same, open)
	}
	return fmt.Sprintf("it was open for %s, and was sent %s", open, times(l.lists)), nil
}

// reconnect connects again and lists again, as after a restart of the server.
func (p *probe) reconnect(ctx context.Context) (string, error) {
	listed := p.lists.listed()
	p.disconnect()
	p.lists = nil
	conn, err := p.dial(ctx)
	if err != nil {
		return "", fmt.Errorf("after its connection was closed: %w", err)
	}
	p.conn, p.plugin = conn, pluginapi.NewDevicePluginClient(conn)
	if !listed {
		return "it answers", nil
	}
	p.lists, err = p.openList(ctx)
	if err != nil {
		return "", fmt.Errorf("after its connection was closed: %w", err)
	}
	switch was, is := idsOf(p.devices), idsOf(p.lists.first); {
	case slices.Equal(was, is):
	case slices.Equal(slices.Sorted(slices.Values(was)), slices.Sorted(slices.Values(is))):
		return "", warnf("it lists the same devices in another order: %s, and before %s; who takes the first ones gets others", quoted(is), quoted(was))
	default:
		return "", warnf("it lists other devices now: %s, and before %s", quoted(is), quoted(was))
	}
	return "it lists the same devices again", nil
}

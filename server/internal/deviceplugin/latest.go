package deviceplugin

import (
	"context"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/protobuf/proto"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const (
	// listRate is how many bytes of its lists a plugin can send per second in the long run. The kubelet has no
	// such limit: a plugin whose 65,536 devices change all the time delays its admissions.
	listRate = 1 << 20
	// listBurst is how many bytes it can send at once. A list of the largest size can follow the first one.
	listBurst = 8 << 20
	// listOverhead is what a list costs in addition to its bytes.
	listOverhead = 64
)

// paced makes recv wait after a list as long as its bytes take at listRate, so the plugin has to wait with the
// next one. Lists that were sent meanwhile are few bytes, so a change of health is late by seconds at most.
func paced(ctx context.Context, recv func() (*pluginapi.ListAndWatchResponse, error)) func() (*pluginapi.ListAndWatchResponse, error) {
	room := rate.NewLimiter(listRate, listBurst)
	due := 0 // bytes of the list before
	return func() (*pluginapi.ListAndWatchResponse, error) {
		if err := room.WaitN(ctx, min(due, listBurst)); err != nil {
			return nil, err
		}
		list, err := recv()
		due = listOverhead + proto.Size(list)
		return list, err
	}
}

// latest reads a plugin's lists and keeps the last one, because each list replaces the earlier
// ones.
type latest struct {
	lists chan *pluginapi.ListAndWatchResponse // holds one
	ended chan error                           // holds one: why there are no more
	done  chan struct{}
	first bool // the next list is the first one
}

// newLatest reads by recv until that fails.
func newLatest(recv func() (*pluginapi.ListAndWatchResponse, error)) *latest {
	l := &latest{
		lists: make(chan *pluginapi.ListAndWatchResponse, 1), ended: make(chan error, 1), done: make(chan struct{}), first: true,
	}
	go func() {
		defer close(l.done)
		for {
			list, err := recv()
			if err != nil {
				l.ended <- err
				return
			}
			select {
			case <-l.lists: // overtaken
			default:
			}
			l.lists <- list
		}
	}()
	return l
}

// next returns a newer list, after a minimum delay. The first and the last list are returned
// without delay. An error means that the stream has ended.
func (l *latest) next(after time.Duration) (*pluginapi.ListAndWatchResponse, error) {
	if !l.first {
		timer := time.NewTimer(after)
		defer timer.Stop()
		select {
		case <-timer.C:
		case err := <-l.ended:
			return l.last(err)
		}
	}
	l.first = false
	select {
	case list := <-l.lists:
		return list, nil
	case err := <-l.ended:
		return l.last(err)
	}
}

// last returns the final list before the end, unless it was returned already.
func (l *latest) last(err error) (*pluginapi.ListAndWatchResponse, error) {
	select {
	case list := <-l.lists:
		l.ended <- err
		return list, nil
	default:
		return nil, err
	}
}

// wait waits until nothing is read any more.
func (l *latest) wait() { <-l.done }

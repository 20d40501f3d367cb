package deviceplugin

import (
	"time"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

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

package deviceplugin

import (
	"time"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// latest reads a plugin's lists and keeps the last one: each is whole, so those before it count for nothing.
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

// next returns a list that is newer than the one before, at the earliest after a while, but the first one and the last
// one at once. An error says that there are no more.
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

// last returns the list that came before the end, if nobody had it yet.
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

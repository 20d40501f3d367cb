package deviceplugin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// TestLatest: the first list and the last one count at once, and of those in between the
// newest in each interval.
func TestLatest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		errEnd := errors.New("end")
		lists := make(chan *pluginapi.ListAndWatchResponse)
		l := newLatest(func() (*pluginapi.ListAndWatchResponse, error) {
			list, ok := <-lists
			if !ok {
				return nil, errEnd
			}
			return list, nil
		})
		go func() { // a list of i devices every 10 ms
			for i := range 26 {
				lists <- &pluginapi.ListAndWatchResponse{Devices: make([]*pluginapi.Device, i)}
				time.Sleep(10 * time.Millisecond)
			}
			close(lists)
		}()
		start := time.Now()
		var sizes []int
		var at []time.Duration
		for {
			list, err := l.next(100 * time.Millisecond)
			if err != nil {
				if !errors.Is(err, errEnd) {
					t.Error(err)
				}
				break
			}
			sizes, at = append(sizes, len(list.Devices)), append(at, time.Since(start))
		}
		l.wait()
		if len(sizes) != 4 || sizes[0] != 0 || sizes[3] != 25 || !slices.IsSorted(sizes) {
			t.Errorf("lists %v at %v", sizes, at)
		}
		if at[0] != 0 || at[1] != 100*time.Millisecond || at[2] != 200*time.Millisecond || at[3] > 260*time.Millisecond {
			t.Errorf("lists %v at %v", sizes, at)
		}
	})
}

// TestListsArePaced: a plugin whose lists are large and change all the time can send few of them, and one with short
// lists many.
func TestListsArePaced(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		devices, least, most int // lists in a minute
	}{
		"65,536 devices": {65_536, 10, 90},
		"1 device":       {1, 100_000, 1_200_000},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				list := &pluginapi.ListAndWatchResponse{}
				for i := range row.devices {
					list.Devices = append(list.Devices, &pluginapi.Device{ID: fmt.Sprintf("device-%05d", i), Health: pluginapi.Healthy})
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				next := paced(ctx, func() (*pluginapi.ListAndWatchResponse, error) { return list, nil })
				n := 0
				for ; ; n++ {
					if _, err := next(); err != nil {
						break
					}
				}
				if n < row.least || n > row.most {
					t.Errorf("%d lists in a minute", n)
				}
			})
		})
	}
}

package probe_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthd/berth/api/probe"
	"github.com/berthd/berth/managers/errdefs"
)

// TestRun: a program that becomes ready is waited for, one that does not answer is not, and a probe ends.
func TestRun(t *testing.T) {
	t.Parallel()
	refused := errors.New("not yet")
	for name, row := range map[string]struct {
		kind      string
		fails     int // calls that fail before one succeeds
		want      error
		calls     int // 0 stands for as many as there is time for
		mostTime  time.Duration
		leastTime time.Duration
	}{
		"live":           {probe.Live, 0, nil, 1, 0, 0},
		"not live":       {probe.Live, 1, refused, 1, 0, 0},
		"ready":          {probe.Ready, 0, nil, 1, 0, 0},
		"ready later":    {probe.Ready, 3, nil, 4, probe.Timeout, time.Millisecond},
		"ready too late": {probe.Ready, 1 << 20, refused, 0, probe.Timeout, probe.Timeout},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				began, calls := time.Now(), 0
				err := probe.Run(t.Context(), row.kind, func(context.Context) error {
					if calls++; calls <= row.fails {
						return refused
					}
					return nil
				})
				took := time.Since(began)
				if !errors.Is(err, row.want) || row.calls > 0 && calls != row.calls || took < row.leastTime || took > row.mostTime {
					t.Errorf("%v after %d calls and %v, want %v", err, calls, took, row.want)
				}
			})
		})
	}
}

// TestUnknownKind: no call is made.
func TestUnknownKind(t *testing.T) {
	t.Parallel()
	err := probe.Run(t.Context(), "startup", func(context.Context) error {
		t.Error("a call was made")
		return nil
	})
	if errdefs.ClassOf(err) != errdefs.Invalid {
		t.Error(err)
	}
}

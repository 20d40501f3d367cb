// Package probe has the waiting part of the commands that a kubelet runs as probes of berth's programs.
//
// Words: live means that a program answers; ready means that it works.
//
// Invariants: a probe ends within Timeout.
package probe

import (
	"context"
	"time"

	"github.com/berthd/berth/managers/errdefs"
)

const (
	// Timeout limits a probe. The timeoutSeconds of a kubelet's probe are more.
	Timeout = 8 * time.Second
	// interval is the pause between two calls of one probe.
	interval = 250 * time.Millisecond
)

// Kinds of probes.
const (
	Live  = "live"
	Ready = "ready"
)

// CheckKind refuses a kind that is unknown, with class Invalid.
func CheckKind(kind string) error {
	if kind != Live && kind != Ready {
		return errdefs.Invalidf("%q: expected live or ready", kind)
	}
	return nil
}

// Run makes calls until one succeeds, and returns the error of the last one. A program that is not ready yet, as at its start, is
// called again until the probe must end; whether a program is live is decided by the first call.
func Run(ctx context.Context, kind string, call func(context.Context) error) error {
	if err := CheckKind(kind); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	for {
		err := call(ctx)
		if err == nil || kind == Live {
			return err
		}
		select {
		case <-time.After(interval):
		case <-ctx.Done():
			return err
		}
	}
}

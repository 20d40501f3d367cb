// Package failpoint kills the process at a named point, so that tests can check the state
// after a crash there.
//
// Words:
//
//   - point: the name of the moment before or after a durable step, for example
//     "store/before-commit". The package with the step exports its points.
//   - hook: the function that a package calls at its points; nil in normal operation.
//
// Invariant: a point has an effect only if Parse made a hook and a constructor received
// it. There is no global switch and no environment variable. berthd makes a hook only for
// its hidden flag --failpoint.
package failpoint

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"

	"github.com/berthd/berth/managers/errdefs"
)

// Hook is called at every point with its name; nil does nothing.
type Hook func(point string)

// Hit calls the hook if there is one.
func (h Hook) Hit(point string) {
	if h != nil {
		h(point)
	}
}

// Parse makes a hook of "POINT:kill" or "POINT:kill:N": the process gets SIGKILL
// when it comes to the point for the N-th time, N being 1 if it is left out. The
// empty text gives the hook nil. Anything else is an error of class Invalid; so
// is a point that is not among known.
func Parse(text string, known ...string) (Hook, error) {
	if text == "" {
		return nil, nil
	}
	parts := strings.Split(text, ":")
	if len(parts) < 2 || len(parts) > 3 || parts[1] != "kill" {
		return nil, errdefs.Invalidf("failpoint %q: expected POINT:kill or POINT:kill:N", text)
	}
	times := int64(1)
	if len(parts) == 3 {
		n, err := strconv.ParseInt(parts[2], 10, 64)
		if err != nil || n < 1 {
			return nil, errdefs.Invalidf("failpoint %q: N must be a positive number", text)
		}
		times = n
	}
	point := parts[0]
	if !slices.Contains(known, point) {
		return nil, errdefs.Invalidf("failpoint %q: there is no point %q, known are %s", text, point, strings.Join(known, ", "))
	}
	var passed atomic.Int64
	return func(at string) {
		if at == point && passed.Add(1) == times {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {} // the signal may take a moment; nothing may happen in it
		}
	}, nil
}

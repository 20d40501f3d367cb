// Package failpoint kills the process at a named place, so that tests can show
// what a crash there leaves behind.
//
// Words:
//
//   - point: a name for the moment just before or after a durable step, such as
//     "store/before-commit". The package that has the step exports its points.
//   - hook: what a package calls at its points; nil in every ordinary run.
//
// Invariant: nothing happens at any point unless a hook was made by Parse and
// handed to the package by its constructor. There is no global switch and no
// environment variable: berthd makes a hook only from its hidden flag
// --failpoint.
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

package policy

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"slices"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/berthd/berth/clients/berth"
	"github.com/berthd/berth/managers/errdefs"
)

// undecided reports whether an error leaves open what berthd has done: the answer may be lost.
// Refusals and errors in the request are decided.
func undecided(err error) bool {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return true
	}
	return errors.As(err, new(*berth.Error)) && !berth.IsInvalid(err) && !berth.IsPrecondition(err) && !berth.IsNotFound(err)
}

// errUnspecified is the error of an admission while the source of a pod's specification does not
// answer.
var errUnspecified = errdefs.Unavailablef("the specification of the pod is not known yet")

// errApart means that a pod which berthd has lost as a whole is admitted container by container.
var errApart = errors.New("the pod is admitted container by container")

// gone reports whether err means that the process has ended, before its file was opened or while
// it was read. Other errors leave the state of the process open.
func gone(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) }

// shownFailures is how many failures are in one line of the log.
const shownFailures = 3

// failures are the failures of a pass that are in the log.
type failures string

// log logs the failures of a pass, unless they are those of the last pass.
func (f *failures) log(log *slog.Logger, what string, now []string) {
	slices.Sort(now)
	all := failures(strings.Join(now, "; "))
	if all != *f && all != "" {
		log.Warn(what, "pods", len(now), "error", strings.Join(now[:min(len(now), shownFailures)], "; "))
	}
	*f = all
}

// halfOf limits a context to half of the time that it has left.
func halfOf(ctx context.Context) (context.Context, context.CancelFunc) {
	at, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, time.Until(at)/2)
}

// unanswered reports whether an error means that berthd does not answer. If berthd itself lacks
// something, such as a device plugin, the error has a reason.
func unanswered(err error) bool {
	var e *berth.Error
	return errors.As(err, &e) && e.Code == codes.Unavailable && e.Reason == ""
}

// decided reports whether an error is a decision: the same call fails again until the node changes.
// After any other error the next call may succeed.
func decided(err error) bool {
	if errors.As(err, new(*berth.Error)) {
		return berth.IsDecided(err)
	}
	switch errdefs.ClassOf(err) {
	case errdefs.Refused, errdefs.Invalid, errdefs.NotFound, errdefs.Exists, errdefs.Precondition, errdefs.PermissionDenied,
		errdefs.Unsupported:
		return true
	}
	return false
}

var errNeverReady = errdefs.Unavailablef("berthd has never been ready on this node")

// errRefused is the error of an update that the runtime has reported as failed.
var errRefused = errors.New("the runtime refused")

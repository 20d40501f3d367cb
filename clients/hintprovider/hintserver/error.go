package hintserver

import (
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	hintv1 "github.com/berthd/berth/api/berth/hint/v1"
	"github.com/berthd/berth/managers/errdefs"
)

// classCodes are the status codes of failures; all others are Unknown.
var classCodes = map[errdefs.Class]codes.Code{
	errdefs.Invalid:      codes.InvalidArgument,
	errdefs.NotFound:     codes.NotFound,
	errdefs.Precondition: codes.FailedPrecondition,
	errdefs.Unavailable:  codes.Unavailable,
	errdefs.Deadline:     codes.DeadlineExceeded,
	errdefs.Canceled:     codes.Canceled,
	errdefs.Internal:     codes.Internal,
}

// toStatus makes a failure the error of a call.
func toStatus(err error) error {
	code, ok := classCodes[errdefs.ClassOf(err)]
	if !ok {
		code = codes.Unknown
	}
	return status.Error(code, err.Error())
}

// refusal is the message form of a provider's "no".
func refusal(err error) *hintv1.Refusal {
	reason, _ := errdefs.ReasonOf(err)
	out := &hintv1.Refusal{Reason: string(reason), Message: err.Error()}
	if fe := new(errdefs.Error); errors.As(err, &fe) {
		out.Resource = fe.Resource
	}
	return out
}

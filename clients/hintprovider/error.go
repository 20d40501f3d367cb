package hintprovider

import (
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	hintv1 "github.com/berthd/berth/api/berth/hint/v1"
	"github.com/berthd/berth/managers/fault"
)

// classCodes are the status codes of failures; all others are Unknown.
var classCodes = map[fault.Class]codes.Code{
	fault.Invalid:      codes.InvalidArgument,
	fault.NotFound:     codes.NotFound,
	fault.Precondition: codes.FailedPrecondition,
	fault.Unavailable:  codes.Unavailable,
	fault.Deadline:     codes.DeadlineExceeded,
	fault.Canceled:     codes.Canceled,
	fault.Internal:     codes.Internal,
}

// toStatus makes a failure the error of a call.
func toStatus(err error) error {
	code, ok := classCodes[fault.ClassOf(err)]
	if !ok {
		code = codes.Unknown
	}
	return status.Error(code, err.Error())
}

// refusal is the message form of a provider's "no".
func refusal(err error) *hintv1.Refusal {
	reason, _ := fault.ReasonOf(err)
	out := &hintv1.Refusal{Reason: string(reason), Message: err.Error()}
	if fe := new(fault.Error); errors.As(err, &fe) {
		out.Resource = fe.Resource
	}
	return out
}

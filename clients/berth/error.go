package berth

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	errorsv1 "github.com/berthd/berth/api/berth/errors/v1"
)

// Error is a call that failed, with berthd's details. errors.As finds it in whatever wraps it.
type Error struct {
	// Code is the status code of the call.
	Code codes.Code
	// Reason names the failure for programs, as berth.errors.v1.ErrorReason does ("POD_NOT_FOUND"). Empty where it was not
	// berthd that answered.
	Reason string
	// VerdictReason is the name under which the kubelet knows the reason of a rejection ("TopologyAffinityError"), or what a
	// deferred pod waits for ("PluginAway"). Empty for other errors.
	VerdictReason string
	// Metadata has details, by keys that berth.errors.v1.ErrorReason lists.
	Metadata map[string]string
	// Message is a sentence for people.
	Message string
	// Fields lists what is wrong with the request, place by place. With IsPrecondition it lists the objects that stand in the
	// way instead ("pod-uid/container").
	Fields []Violation
	// Provider and Resource are the provider that failed and its resource; empty if none did.
	Provider, Resource string
	// RetryAfter is how long to wait before a retry makes sense; zero where it does not.
	RetryAfter time.Duration
	// RequestID is what berthd's log calls the request; empty where it was not berthd that answered.
	RequestID string

	status *status.Status
	// noAnswer is true where the connection was accepted and not answered in time.
	noAnswer bool
}

// ErrNoAnswer matches an error of a call for which berthd took the connection and did not answer within
// Options.ConnectTimeout: it runs, and is stuck, or the machine is very busy.
var ErrNoAnswer = errors.New("berthd does not answer")

// Violation is one field of a request and what is wrong with it.
type Violation struct {
	// Field is the path of the field: pod.spec.containers[1].resources.requests["cpu"].
	Field string
	// Description is what was expected, and what was found where that helps.
	Description string
}

// Error returns the message.
func (e *Error) Error() string {
	if e.Message == "" {
		return e.Code.String()
	}
	return e.Message
}

// GRPCStatus returns the status that the error was read from, for package status.
func (e *Error) GRPCStatus() *status.Status { return e.status }

// Is makes a call that ran out of time, or was cancelled, match the errors of package context, and one that was not answered
// ErrNoAnswer.
func (e *Error) Is(target error) bool {
	return e.noAnswer && target == ErrNoAnswer ||
		e.Code == codes.DeadlineExceeded && target == context.DeadlineExceeded ||
		e.Code == codes.Canceled && target == context.Canceled
}

// IsNotFound reports that what the request names is not known to berthd.
func IsNotFound(err error) bool { return hasCode(err, codes.NotFound) }

// NeedsAdmission reports that berthd does not have a pod, or may have lost it: the pod has to be admitted again.
func NeedsAdmission(err error) bool {
	return IsNotFound(err) || HasReason(err, errorsv1.ErrorReason_LEDGER_UNCERTAIN)
}

// IsInvalid reports that the request can never be right; the error's fields are the reason.
func IsInvalid(err error) bool { return hasCode(err, codes.InvalidArgument) }

// IsDecided reports that the same call fails again until something else changes: it is wrong, or the state of berthd is
// against it. After any other error the outcome may be unknown, and the next call may succeed.
func IsDecided(err error) bool {
	switch asError(err).Code {
	case codes.InvalidArgument, codes.NotFound, codes.AlreadyExists, codes.FailedPrecondition, codes.PermissionDenied, codes.Unimplemented:
		return true
	}
	return false
}

// IsExists reports that another object has the name already; to repeat the request never helps.
func IsExists(err error) bool { return hasCode(err, codes.AlreadyExists) }

// HasReason reports that an error of berthd has a reason of berth.errors.v1.
func HasReason(err error, reason errorsv1.ErrorReason) bool {
	return asError(err).Reason == reason.String()
}

// IsPrecondition reports that something else has to be done first.
func IsPrecondition(err error) bool { return hasCode(err, codes.FailedPrecondition) }

// IsStale reports that the state changed while the call was made; repeating the call may succeed.
func IsStale(err error) bool { return hasCode(err, codes.Aborted) }

// IsGone reports that a stream or a list cannot continue from where it was: begin again.
func IsGone(err error) bool { return hasCode(err, codes.OutOfRange) }

// IsPermissionDenied reports that the caller lacks a role.
func IsPermissionDenied(err error) bool { return hasCode(err, codes.PermissionDenied) }

// IsUnavailable reports that berthd, or a component that it needs, does not work at the moment.
func IsUnavailable(err error) bool { return hasCode(err, codes.Unavailable) }

// StateUncertain is the condition under which berthd defers pods that request exclusive resources until Sync has sent
// it which pods live: the reason of a deferred answer, or of an error where the configuration has no deferrals.
const StateUncertain = "StateUncertain"

// IsStateUncertain reports that berthd waits for Sync.
func IsStateUncertain(err error) bool {
	return IsUnavailable(err) && asError(err).VerdictReason == StateUncertain
}

// IsUnimplemented reports a method that this berthd does not know: it is older than the client.
func IsUnimplemented(err error) bool { return hasCode(err, codes.Unimplemented) }

func hasCode(err error, code codes.Code) bool {
	var e *Error
	return errors.As(err, &e) && e.Code == code
}

// asError finds the *Error in an error; one without any is an empty Error.
func asError(err error) *Error {
	e := new(Error)
	errors.As(err, &e)
	return e
}

// fromStatus makes the error of a call an *Error.
func fromStatus(err error) error {
	if err == nil || errors.As(err, new(*Error)) {
		return err
	}
	s, ok := status.FromError(err)
	if !ok {
		// No status: io.EOF at the end of a stream.
		return err
	}
	e := &Error{Code: s.Code(), Message: plain(s.Message()), status: s}
	for _, detail := range s.Details() {
		switch d := detail.(type) {
		case *errdetails.ErrorInfo:
			e.Reason, e.Metadata = d.GetReason(), d.GetMetadata()
			e.VerdictReason = d.GetMetadata()["verdict_reason"]
			e.Provider, e.Resource = d.GetMetadata()["provider"], d.GetMetadata()["resource"]
			e.RequestID = d.GetMetadata()["request_id"]
		case *errdetails.BadRequest:
			for _, v := range d.GetFieldViolations() {
				e.Fields = append(e.Fields, Violation{Field: v.GetField(), Description: v.GetDescription()})
			}
		case *errdetails.PreconditionFailure:
			for _, v := range d.GetViolations() {
				e.Fields = append(e.Fields, Violation{Field: v.GetSubject(), Description: v.GetDescription()})
			}
		case *errdetails.RetryInfo:
			e.RetryAfter = d.GetRetryDelay().AsDuration()
		}
	}
	return e
}

// connectError replaces the error of an expired connection attempt. gRPC closes the connection then and reports
// the error of its own reader or writer.
func (c *Client) connectError(err error) error {
	if err == nil {
		return nil
	}
	var e *Error
	if errors.As(err, &e) && e.Code == codes.Unavailable && e.Reason == "" && strings.Contains(e.Message, net.ErrClosed.Error()) {
		e.Message = fmt.Sprintf("berthd at %s accepted the connection and did not answer within %s", c.Endpoint(), c.connectTimeout)
		e.noAnswer = true
	}
	return err
}

// dialing precedes the dialer's own error in the text of a connection that did not come about.
const dialing = "Error while dialing: "

// plain takes the transport's frame from the message of a connection that did not come about.
func plain(message string) string {
	_, cause, ok := strings.Cut(message, dialing)
	if !ok {
		return message
	}
	// gRPC has quoted it.
	if text, err := strconv.Unquote(`"` + cause); err == nil {
		return text
	}
	return cause
}

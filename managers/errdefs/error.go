package errdefs

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Error is a failure with its class.
type Error struct {
	// Class is what kind of failure it is.
	Class Class
	// Code names the failure for programs; empty means the class's own, see CodeOf.
	Code Code
	// Metadata has details for programs, by keys that berth.errors.v1.ErrorReason lists.
	Metadata map[string]string
	// Reason is set on refusals, and empty where the kubelet has no name for the case; on what is put off it is the
	// word for what is waited for.
	Reason Reason
	// Message is the whole text, the causes' included.
	Message string
	// Provider names the hint provider that failed, empty where none is.
	Provider string
	// Resource names the resource concerned as the pod names it, empty where none is.
	Resource string
	// RetryAfter is the delay before a retry makes sense, where it is known; 0 otherwise.
	RetryAfter time.Duration
	// Fields lists the places of invalid input. In an error of class Precondition it lists the objects that stand in the
	// way ("pod-uid/container"), and why.
	Fields []Violation
	// Err is the cause, nil where there is none. Its text is part of Message already.
	Err error
}

// Error returns Message.
func (e *Error) Error() string { return e.Message }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// newf formats like fmt.Errorf. Whatever %w wraps stays reachable for errors.Is and errors.As.
func newf(class Class, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	e := &Error{Class: class, Message: err.Error()}
	for _, arg := range args {
		if _, ok := arg.(error); ok {
			e.Err = err
		}
	}
	return e
}

// Internalf makes an error of class Internal; format may use %w.
func Internalf(format string, args ...any) *Error { return newf(Internal, format, args...) }

// Invalidf makes an error of class Invalid; format may use %w.
func Invalidf(format string, args ...any) *Error { return newf(Invalid, format, args...) }

// NotFoundf makes an error of class NotFound; format may use %w.
func NotFoundf(format string, args ...any) *Error { return newf(NotFound, format, args...) }

// Existsf makes an error of class Exists; format may use %w.
func Existsf(format string, args ...any) *Error { return newf(Exists, format, args...) }

// Conflictf makes an error of class Conflict; format may use %w.
func Conflictf(format string, args ...any) *Error { return newf(Conflict, format, args...) }

// Preconditionf makes an error of class Precondition; format may use %w.
func Preconditionf(format string, args ...any) *Error { return newf(Precondition, format, args...) }

// Unsupportedf makes an error of class Unsupported; format may use %w.
func Unsupportedf(format string, args ...any) *Error { return newf(Unsupported, format, args...) }

// Unavailablef makes an error of class Unavailable; format may use %w.
func Unavailablef(format string, args ...any) *Error { return newf(Unavailable, format, args...) }

// Exhaustedf makes an error of class Exhausted; format may use %w.
func Exhaustedf(format string, args ...any) *Error { return newf(Exhausted, format, args...) }

// PermissionDeniedf makes an error of class PermissionDenied; format may use %w.
func PermissionDeniedf(format string, args ...any) *Error {
	return newf(PermissionDenied, format, args...)
}

// Deadlinef makes an error of class Deadline; format may use %w.
func Deadlinef(format string, args ...any) *Error { return newf(Deadline, format, args...) }

// Corruptf makes an error of class Corrupt; format may use %w.
func Corruptf(format string, args ...any) *Error { return newf(Corrupt, format, args...) }

// Gonef makes an error of class Gone; format may use %w.
func Gonef(format string, args ...any) *Error { return newf(Gone, format, args...) }

// Refuse makes a refusal with the kubelet's reason; format may use %w.
func Refuse(reason Reason, format string, args ...any) *Error {
	e := newf(Refused, format, args...)
	e.Reason = reason
	return e
}

// ClassOf gives the class of the outermost Error in the chain of err. Context errors are Deadline and Canceled;
// anything else is Internal. It is meant for errors: nil is Internal too.
func ClassOf(err error) Class {
	var e *Error
	switch {
	case errors.As(err, &e):
		return e.Class
	case errors.Is(err, context.DeadlineExceeded):
		return Deadline
	case errors.Is(err, context.Canceled):
		return Canceled
	}
	return Internal
}

// ReasonOf gives the first reason found going inwards through the chain of err; false if no error in it carries one.
func ReasonOf(err error) (Reason, bool) {
	if e := refusal(err); e != nil {
		return e.Reason, true
	}
	return "", false
}

// Verdict turns an error of an admission into the reason and message that the rejected pod gets. An error that
// carries a reason gives that reason and its own message, without what wraps it; any other is framed as unexpected, in the
// kubelet's words.
func Verdict(err error) (Reason, string) {
	if e := refusal(err); e != nil && e.Reason != UnexpectedAdmissionError {
		return e.Reason, e.Message
	}
	return UnexpectedAdmissionError, fmt.Sprintf("Allocate failed due to %v, which is unexpected", err)
}

// refusal finds the outermost Error in the chain that carries a reason, nil if there is none.
func refusal(err error) *Error {
	var e *Error
	for errors.As(err, &e) {
		if e.Reason != "" {
			return e
		}
		err = e.Err
	}
	return nil
}

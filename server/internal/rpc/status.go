package rpc

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/server/internal/host/errno"
	"github.com/berthd/berth/server/internal/wire"
)

// retryAfter is sent with errors that may be temporary.
const retryAfter = time.Second

// classCodes is the one table from error classes to status codes.
var classCodes = map[errdefs.Class]codes.Code{
	errdefs.Internal:         codes.Internal,
	errdefs.Invalid:          codes.InvalidArgument,
	errdefs.NotFound:         codes.NotFound,
	errdefs.Refused:          codes.FailedPrecondition,
	errdefs.Exists:           codes.AlreadyExists,
	errdefs.Conflict:         codes.Aborted,
	errdefs.Precondition:     codes.FailedPrecondition,
	errdefs.Unsupported:      codes.Unimplemented,
	errdefs.Unavailable:      codes.Unavailable,
	errdefs.Exhausted:        codes.ResourceExhausted,
	errdefs.PermissionDenied: codes.PermissionDenied,
	errdefs.Deadline:         codes.DeadlineExceeded,
	errdefs.Canceled:         codes.Canceled,
	errdefs.Corrupt:          codes.DataLoss,
	errdefs.Gone:             codes.OutOfRange,
}

// Limits of one error. It is in the header block of HTTP/2. By default clients accept 8 KiB (gRPC
// for Java, C++ and Python), and fail with another error for more. A pod of 4 MiB can have very
// many violations.
const (
	maxMessage        = 1 << 10
	maxViolationBytes = 2 << 10
)

// Status converts an error to a status with berth's details: ErrorInfo always, BadRequest for
// field violations, PreconditionFailure for obstructing objects, RetryInfo if repeating makes
// sense. A status does not change.
func Status(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if _, ok := err.(interface{ GRPCStatus() *status.Status }); ok {
		return err
	}
	class := classOf(err)
	code, metadata := errdefs.CodeOf(err, class)
	info := &errdetails.ErrorInfo{Domain: convert.Domain, Reason: string(code), Metadata: map[string]string{}}
	maps.Copy(info.Metadata, metadata)
	details := []protoadapt.MessageV1{info}
	fe := new(errdefs.Error)
	if errors.As(err, &fe) {
		for key, value := range map[string]string{"provider": fe.Provider, "resource": fe.Resource, "verdict_reason": string(fe.Reason)} {
			if value != "" {
				info.Metadata[key] = value
			}
		}
		if len(fe.Fields) > 0 {
			details = append(details, violations(class, code, fe.Fields))
		}
	}
	if id := RequestID(ctx); id != "" {
		info.Metadata["request_id"] = id
	}
	if class == errdefs.Unavailable || class == errdefs.Conflict || fe.RetryAfter > 0 {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(cmp.Or(fe.RetryAfter, retryAfter))})
	}
	s := status.New(classCodes[class], clip(err.Error()))
	for _, d := range details {
		wire.MakeValid(protoadapt.MessageV2Of(d)) // gRPC encodes them, and drops all if it cannot
	}
	if with, derr := s.WithDetails(details...); derr == nil {
		s = with
	}
	return s.Err()
}

// violations lists the violations of an error, as many as fit: fields of the request, or
// the objects that a failed precondition is about.
func violations(class errdefs.Class, code errdefs.Code, all []errdefs.Violation) protoadapt.MessageV1 {
	bad, failed, room := &errdetails.BadRequest{}, &errdetails.PreconditionFailure{}, maxViolationBytes
	for i, v := range all {
		if room -= len(v.Field) + len(v.Description) + len(code); room < 0 && i > 0 {
			break // the message has the total
		}
		text := clip(v.Description)
		bad.FieldViolations = append(bad.FieldViolations, &errdetails.BadRequest_FieldViolation{Field: v.Field, Description: text})
		failed.Violations = append(failed.Violations,
			&errdetails.PreconditionFailure_Violation{Type: string(code), Subject: v.Field, Description: text})
	}
	if class == errdefs.Precondition {
		return failed
	}
	return bad
}

// classOf is errdefs.ClassOf, except for an error of the kernel without a class. It is of class
// Unavailable, because another attempt may succeed.
func classOf(err error) errdefs.Class {
	class := errdefs.ClassOf(err)
	if kernel, ok := errno.Class(err); class == errdefs.Internal && ok && kernel == errdefs.Unavailable {
		return kernel
	}
	return class
}

// clip cuts a message that is too long, between two characters, and replaces what is no UTF-8.
func clip(text string) string {
	if len(text) <= maxMessage {
		return wire.ValidText(text)
	}
	return strings.ToValidUTF8(text[:maxMessage], "") + "..."
}

func statusStream(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	return Status(ss.Context(), next(srv, ss))
}

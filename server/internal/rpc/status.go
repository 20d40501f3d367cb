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
)

// retryAfter is told with errors that may go away by themselves.
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

// Bounds of one error. It travels in the header block of HTTP/2, of which clients
// take 8 KiB unless told otherwise (gRPC for Java, C++ and Python), and then fail
// with an error of their own. A pod of 4 MiB can have more violations than anybody
// reads.
const (
	maxMessage        = 1 << 10
	maxViolationBytes = 2 << 10
)

// Status turns an error into a status with berth's details: ErrorInfo always,
// BadRequest for field violations, PreconditionFailure for objects that stand in the
// way, RetryInfo where asking again makes sense. A
// status stays as it is.
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
			break // the message tells how many there are
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

// classOf is errdefs.ClassOf, except for an error of the kernel that nobody has given a class: it is of class Unavailable,
// since another attempt may succeed.
func classOf(err error) errdefs.Class {
	class := errdefs.ClassOf(err)
	if kernel, ok := errno.Class(err); class == errdefs.Internal && ok && kernel == errdefs.Unavailable {
		return kernel
	}
	return class
}

// clip cuts a message that is too long, between two characters.
func clip(text string) string {
	if len(text) <= maxMessage {
		return text
	}
	return strings.ToValidUTF8(text[:maxMessage], "") + "..."
}

func statusUnary(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	resp, err := next(ctx, req)
	return resp, Status(ctx, err)
}

func statusStream(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	return Status(ss.Context(), next(srv, ss))
}

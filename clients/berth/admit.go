package berth

import (
	"cmp"
	"context"
	"crypto/rand"
	"time"

	"google.golang.org/protobuf/proto"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
)

// Admit requests a pod's place. A request without an admission id gets one, which is in the answer; one without an
// owner gets that of Options. The request itself is left as it is. While berthd, or a component that it needs, is
// unavailable, Admit repeats the call with the same admission id, as often as Options.Attempts allows and until the
// context ends: an attempt whose answer was lost is not made twice.
//
// A rejected or deferred pod is an answer; whether to come back after a deferral is for the caller to decide.
func (c *Client) Admit(ctx context.Context, req *admissionv1.AdmitRequest) (*admissionv1.AdmitResponse, error) {
	if req.GetAdmissionId() == "" || req.GetOwner() == "" && c.owner != "" {
		named := &admissionv1.AdmitRequest{}
		proto.Merge(named, req)
		named.AdmissionId, named.Owner = cmp.Or(req.GetAdmissionId(), rand.Text()), cmp.Or(req.GetOwner(), c.owner)
		req = named
	}
	return retried(ctx, c, func() (*admissionv1.AdmitResponse, error) { return c.Admission().Admit(ctx, req) })
}

// retried repeats a call while berthd is unavailable, as often as Options.Attempts allows.
func retried[T any](ctx context.Context, c *Client, call func() (T, error)) (T, error) {
	for attempt := 1; ; attempt++ {
		answer, err := call()
		if err == nil || !IsUnavailable(err) || IsStateUncertain(err) || attempt >= c.attempts {
			return answer, err
		}
		if sleep(ctx, retryAfter(err, attempt)) != nil {
			return answer, err
		}
	}
}

// retryAfter is how long to wait after a failed attempt: berthd's delay, else a pause that doubles.
func retryAfter(err error, attempt int) time.Duration {
	if after := asError(err).RetryAfter; after > 0 {
		return after
	}
	return pause << min(attempt-1, 5)
}

package berth

import (
	"context"
	"fmt"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
)

// SyncPods sends berthd which pods of the owner of Options live; all others of this owner are removed, except those that
// are admitted after living was called: pods may come while the list is made. living may be called a second time, where
// berthd has lost its ledger in between. An error of living is returned, and nothing is removed; an empty list without an
// error removes every pod of the owner. also sets further fields of the request.
func (c *Client) SyncPods(ctx context.Context, living func(ctx context.Context) ([]string, error),
	also ...func(*admissionv1.SyncPodsRequest)) (*admissionv1.SyncPodsResponse, error) {
	for again := false; ; again = true {
		now, err := c.Allocation().GetRevision(ctx, &allocationv1.GetRevisionRequest{})
		if err != nil {
			return nil, err
		}
		uids, err := living(ctx)
		if err != nil {
			return nil, fmt.Errorf("list the living pods: %w", err)
		}
		req := &admissionv1.SyncPodsRequest{ActivePodUids: uids, KnownRevision: now.GetRevision(), AllowEmpty: len(uids) == 0,
			Owner: c.owner}
		for _, set := range also {
			set(req)
		}
		answer, err := c.Admission().SyncPods(ctx, req)
		if err == nil || again || !IsPrecondition(err) {
			return answer, err
		}
	}
}

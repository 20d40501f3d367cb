package admission_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/topology"
)

// userKey is the context key of a call's user.
type userKey struct{}

// TestManyCallsAtTheLock: a user with too many calls at the admission lock has to come back
// with more, but not with what has begun; root and other users are let in.
func TestManyCallsAtTheLock(t *testing.T) {
	t.Parallel()
	h := newFixture(t, topology.None)
	h.SetUser(func(ctx context.Context) string { name, _ := ctx.Value(userKey{}).(string); return name })
	h.admit(t, guaranteed("old", 1, 0))
	synctest.Test(t, func(t *testing.T) {
		release, err := h.Hold(t.Context())
		must(t, err)
		greedy := context.WithValue(t.Context(), userKey{}, "greedy")
		const most = 64
		var refused atomic.Int32
		count := func(err error) {
			if fe := new(errdefs.Error); errors.As(err, &fe) && fe.Class == errdefs.Exhausted && fe.RetryAfter > 0 {
				refused.Add(1)
			} else if err != nil {
				t.Error(err)
			}
		}
		small := func(uid string) admission.Request {
			p := guaranteed(uid, 1, 0)
			p.Containers[0].Requests, p.Containers[0].Limits = nil, nil
			return admission.Request{Pod: p}
		}
		for i := range most + 3 {
			go func() {
				_, err := h.Admit(greedy, small(fmt.Sprint("greedy-", i)))
				count(err)
			}()
		}
		synctest.Wait()
		if refused.Load() != 3 {
			t.Errorf("%d of %d were refused", refused.Load(), most+3)
		}
		for _, call := range []func() error{
			func() error { _, _, err := h.Remove(greedy, "old", admission.Scope{}); return err },
			func() error { _, err := h.Admit(t.Context(), small("roots")); return err },
			func() error {
				_, err := h.Admit(context.WithValue(t.Context(), userKey{}, "modest"), small("modests"))
				return err
			},
		} {
			go func() { count(call()) }()
		}
		synctest.Wait()
		release()
		synctest.Wait()
		if n := h.ledger.View().NumPods(); refused.Load() != 3 || n != most+2 {
			t.Errorf("%d were refused, %d pods are here", refused.Load(), n)
		}
	})
}

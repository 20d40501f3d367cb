package locks

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	"pgregory.net/rapid"

	"github.com/berthd/berth/managers/errdefs"
)

// TestTurnsAtTheLock: root waits for one holder however many calls of others wait, others
// take turns, and a user has no more calls waiting than may.
func TestTurnsAtTheLock(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var l Fair
		unlock, err := l.Lock(t.Context(), "greedy", 4)
		if err != nil {
			t.Fatal(err)
		}
		var order []string
		enter := func(user string) {
			go func() {
				unlock, err := l.Lock(t.Context(), user, 4)
				if err != nil {
					t.Error(err)
					return
				}
				order = append(order, user)
				unlock()
			}()
			synctest.Wait()
		}
		for _, user := range []string{"greedy", "greedy", "greedy", "greedy", "modest", "", "", "", "other"} {
			enter(user)
		}
		_, err = l.Lock(t.Context(), "greedy", 4)
		fe := new(errdefs.Error)
		if !errors.As(err, &fe) || fe.Class != errdefs.Exhausted || fe.RetryAfter == 0 {
			t.Errorf("one more than may wait: %v", err)
		}
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := l.Lock(gone, "greedy", 0); !errors.Is(err, context.Canceled) {
			t.Errorf("no bound, and no time: %v", err)
		}
		unlock()
		synctest.Wait()
		want := []string{"", "greedy", "", "modest", "", "other", "greedy", "greedy", "greedy"}
		if !slices.Equal(order, want) {
			t.Errorf("order %q, want %q", order, want)
		}
		if l.held || len(l.queues) > 0 || len(l.order) > 0 {
			t.Errorf("left: %t, %v, %v", l.held, l.queues, l.order)
		}
	})
}

// TestTurnsGivenUp: whatever calls come, end and give up, one holds the lock at a time, it
// is not free while a call waits, and root is passed over by one holder at most.
func TestTurnsGivenUp(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		steps := rapid.SliceOfN(rapid.IntRange(0, 8), 1, 60).Draw(rt, "steps")
		synctest.Test(t, func(t *testing.T) {
			var l Fair
			type call struct {
				cancel context.CancelFunc
				leave  chan struct{}
			}
			var calls []*call
			held, passed := 0, 0
			for n, step := range steps {
				if step >= 6 && len(calls) > 0 {
					c := calls[n%len(calls)]
					calls = slices.DeleteFunc(calls, func(o *call) bool { return o == c })
					if step == 6 {
						c.cancel()
					}
					close(c.leave)
				} else {
					user := []string{"", "a", "b"}[step%3]
					ctx, cancel := context.WithCancel(t.Context())
					c := &call{cancel, make(chan struct{})}
					calls = append(calls, c)
					go func() {
						unlock, err := l.Lock(ctx, user, 0)
						if err != nil {
							return
						}
						if passed++; user == "" {
							passed = 0
						}
						held++
						<-c.leave
						held--
						unlock()
					}()
				}
				synctest.Wait()
				if len(l.queues[""]) == 0 {
					passed = 0
				}
				if waiting := len(l.queues); held > 1 || held == 0 && waiting > 0 || passed > 1 {
					panic(fmt.Sprintf("%d hold the lock, users that wait: %d, root was passed over by %d", held, waiting, passed))
				}
			}
			for _, c := range calls {
				c.cancel()
				close(c.leave)
			}
			synctest.Wait()
			if l.held || len(l.queues) > 0 || len(l.order) > 0 {
				panic(fmt.Sprintf("left: %t, %v, %v", l.held, l.queues, l.order))
			}
		})
	})
}

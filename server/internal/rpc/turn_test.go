package rpc

import (
	"context"
	"io"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc/tap"
)

// TestTurns: one call of a user runs at a time, until it waits or ends; users do not wait
// for each other, and root does not wait.
func TestTurns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := bounded(io.Discard)
		type call struct {
			ctx context.Context
			end context.CancelFunc
			ran bool
		}
		begin := func(uid uint32, method string) *call {
			_, ctx, err := c.dial(t, uid)
			if err != nil {
				t.Fatal(err)
			}
			ctx, end := context.WithCancel(ctx)
			ctx, err = c.tap(ctx, &tap.Info{FullMethodName: method})
			if err != nil {
				t.Fatal(err)
			}
			out := &call{ctx, end, false}
			go func() { _, err := Turn(out.ctx); out.ran = err == nil }()
			synctest.Wait()
			return out
		}
		expect := func(when string, c *call, want bool) {
			t.Helper()
			if synctest.Wait(); c.ran != want {
				t.Errorf("%s: runs %t, want %t", when, c.ran, want)
			}
		}
		first, second, third := begin(reader, list), begin(reader, list), begin(reader, list)
		expect("the first", first, true)
		expect("beside the first", second, false)
		for range 2 {
			everybody := begin(root, list)
			expect("root", everybody, true)
		}
		expect("another user", begin(agent, admit), true)
		EndTurn(first.ctx)
		EndTurn(first.ctx)
		expect("when the first waits", second, true)
		expect("beside the second", third, false)
		second.end()
		expect("when the second is over", third, true)
		third.end()
		first.end()
		synctest.Wait()
		if _, left := c.users[user{reader, byUID}]; !left {
			t.Error("the connections are forgotten")
		} else if l := c.users[user{reader, byUID}]; l.turn.left != 1 || l.calls != 0 {
			t.Errorf("left: %d turns, %d calls", l.turn.left, l.calls)
		}
		if got := [...]string{UserOf(first.ctx), UserOf(begin(root, list).ctx), UserOf(t.Context())}; got != [...]string{"user 1", "", ""} {
			t.Errorf("named %q", got)
		}
	})
}

// TestTurnsOfMethods: who reads runs in a turn to the end, and so does the agent until it
// waits; all else waits for the kernel or for others.
func TestTurnsOfMethods(t *testing.T) {
	t.Parallel()
	for method, want := range map[string]bool{
		list: true, admit: true, "/berth.allocation.v1.AllocationService/Allocate": true,
		"/berth.lifecycle.v1.LifecycleService/PreStartContainer": true,
		"/berth.hint.v1.HintBusService/Register":                 false,
		"/berth.cgroup.v1.CgroupService/Destroy":                 false,
	} {
		if got := keepsTurn(method); got != want {
			t.Errorf("%s: %t", method, got)
		}
	}
}

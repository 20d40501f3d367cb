package cgroupfs

import (
	"errors"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berthd/berth/managers/cgroup"
)

// Of the processes that are held only those in the cgroup are killed: another one
// may have got the number of one that was.
func TestOnlyMembersAreKilled(t *testing.T) {
	t.Parallel()
	d := kernelTrees[0].open(t)
	top := place(t, d)
	inside, outside := append(top[:1:1], "inside"), append(top[:1:1], "outside")
	held := map[int]int{}
	member, unprivileged := start(t), start(t)
	for name, p := range map[string]struct {
		name cgroup.Name
		pid  int
	}{"member": {inside, member.PID}, "nonmember": {outside, unprivileged.PID}} {
		if _, err := d.Ensure(t.Context(), cgroup.Node{Name: p.name}); err != nil {
			t.Fatal(err)
		}
		if err := d.Move(t.Context(), p.name, p.pid); err != nil {
			t.Fatal(err)
		}
		fd, err := unix.PidfdOpen(p.pid, 0)
		if err != nil {
			t.Skipf("%s cannot be held: %v", name, err)
		}
		t.Cleanup(func() { _ = unix.Close(fd) })
		held[p.pid] = fd
	}
	if err := d.killHeld(inside, held); err != nil {
		t.Fatal(err)
	}
	poll := []unix.PollFd{{Fd: int32(held[member.PID]), Events: unix.POLLIN}}
	for {
		if n, err := unix.Poll(poll, 60_000); n == 1 {
			break // it has ended
		} else if !errors.Is(err, unix.EINTR) {
			t.Fatalf("the member still lives: %v", err)
		}
	}
	unprivileged.Fork()
	if pids, err := d.procs(outside); err != nil || len(pids) == 0 {
		t.Errorf("the nonmember does not live to fork: %v, %v", pids, err)
	}
}

// Who has been put somewhere is not in the root cgroup any more.
func TestRootProcs(t *testing.T) {
	t.Parallel()
	d := kernelTrees[0].open(t)
	name := append(place(t, d), "member")
	member := start(t)
	if _, err := d.Ensure(t.Context(), cgroup.Node{Name: name}); err != nil {
		t.Fatal(err)
	}
	if err := d.Move(t.Context(), name, member.PID); err != nil {
		t.Fatal(err)
	}
	pids, err := d.RootProcs()
	if err != nil || slices.Contains(pids, member.PID) {
		t.Errorf("%v, %v; %d is in %s", pids, err, member.PID, name)
	}
}

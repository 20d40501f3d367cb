package cgroupfs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/server/internal/host/errno"
)

// Waits between rounds of killing. The first is short, because most processes end at once.
const (
	firstWait = time.Millisecond
	longWait  = 50 * time.Millisecond
)

// Remove implements cgroup.Tree. It repeats rounds of killing and removing until nothing is left:
//
//   - v2: cgroup.kill, which catches forks (kernel 5.14); on older kernels as v1,
//     with the v2 freezer.
//   - v1: no new processes (pids.max 0), freeze, kill all, thaw. Descendants that
//     another program has frozen are thawed too: v1's freezer keeps even killed
//     processes. Processes are held by pidfds (kernel 5.3), so that no other
//     process is killed.
//
// A cgroup whose removal has timed out still cannot fork.
func (d *Driver) Remove(ctx context.Context, name cgroup.Name) error {
	if err := name.Check(); err != nil {
		return err
	}
	if name.IsRoot() {
		return errdefs.Invalidf("remove cgroup %s: the root cannot be removed", name)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, d.killTimeout, errKillTimeout)
	defer cancel()
	wait := firstWait
	for {
		if err := ctx.Err(); err != nil {
			return d.unremoved(ctx, name, err)
		}
		left, err := d.removeOnce(name)
		if err != nil {
			return fmt.Errorf("remove cgroup %s: %w", name, err)
		}
		if left == nil {
			return nil
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return d.unremoved(ctx, name, left)
		}
		wait = min(2*wait, longWait)
	}
}

var errKillTimeout = errors.New("time is up")

// unremoved is the error of a removal that was cut.
func (d *Driver) unremoved(ctx context.Context, name cgroup.Name, left error) error {
	pids, _ := d.procs(name)
	if errors.Is(context.Cause(ctx), context.Canceled) {
		return fmt.Errorf("remove cgroup %s: %w (processes left: %v)", name, context.Canceled, pids)
	}
	if by, err := d.frozenBy(name.Parent()); err == nil && by != nil && d.facts.Version == cgroup.V1 {
		return errdefs.Deadlinef("remove cgroup %s: processes %v do not end while cgroup %s is frozen; thaw it: echo THAWED > %s",
			name, pids, by, d.freezerFile(by))
	}
	return errdefs.Deadlinef("remove cgroup %s: processes %v are still there: %w", name, pids, left)
}

// removeOnce kills the processes and removes the directories. left is a reason to repeat; err is
// an error that a repetition cannot resolve.
func (d *Driver) removeOnce(name cgroup.Name) (left, err error) {
	pids, err := d.procs(name)
	if err != nil {
		return nil, err
	}
	if slices.Contains(pids, os.Getpid()) {
		return nil, errdefs.Preconditionf("it holds this very process, %d", os.Getpid())
	}
	if len(pids) > 0 {
		if err := d.kill(name); err != nil {
			return nil, err
		}
	}
	return d.removeDirectories(name), nil
}

// kill ends every process of the cgroup and below.
func (d *Driver) kill(name cgroup.Name) error {
	if d.facts.Version == cgroup.V2 && d.write(d.hierarchies[0], name, "cgroup.kill", "1") == nil {
		return nil
	}
	return d.killFrozen(name)
}

// killFrozen freezes, kills and thaws. Freezing and the limit on forks are only precautions: the
// next round kills processes that escaped.
func (d *Driver) killFrozen(name cgroup.Name) error {
	if h, ok := d.hierarchy("pids"); ok {
		_ = d.write(h, name, "pids.max", "0")
	}
	thaw := d.freeze(name)
	defer thaw()
	pids, err := d.procs(name)
	if err != nil {
		return err
	}
	held := make(map[int]int, len(pids)) // pidfds, which stay with their process
	defer func() {
		for _, fd := range held {
			_ = unix.Close(fd)
		}
	}()
	for _, pid := range pids {
		if pid <= 0 { // of an outer pid namespace
			continue
		}
		if fd, err := unix.PidfdOpen(pid, 0); err == nil {
			held[pid] = fd
		} else if !errors.Is(err, unix.ESRCH) {
			return errdefs.Unavailablef("hold process %d: %w", pid, err)
		}
	}
	return d.killHeld(name, held)
}

// killHeld kills the held processes that are still in the cgroup. Between the list and opening
// its pidfd a process may have ended, and another process may have its pid. The second list does
// not contain that process, or the process has ended as well.
func (d *Driver) killHeld(name cgroup.Name, held map[int]int) error {
	pids, err := d.procs(name)
	for _, pid := range pids {
		fd, ok := held[pid]
		if !ok {
			continue // the next round's
		}
		if killed := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); killed != nil && !errors.Is(killed, unix.ESRCH) && err == nil {
			err = errdefs.Unavailablef("kill process %d: %w", pid, killed)
		}
	}
	return err
}

// removeDirectories removes the cgroup's directories and their descendants, in every hierarchy,
// bottom up. It returns the first error. In the hierarchies of runtimes only empty directories
// are removed.
func (d *Driver) removeDirectories(name cgroup.Name) error {
	var first error
	for _, h := range d.hierarchies {
		if err := d.removeTree(h, name); err != nil && first == nil {
			first = err
		}
	}
	if first == nil {
		d.dirs.forget(name)
		for _, h := range d.runtimes {
			_ = d.removeTree(h, name) // a runtime that is not done with it has the last word
		}
	}
	return first
}

func (d *Driver) removeTree(h hierarchy, name cgroup.Name) error {
	err := d.rmdir(h, name)
	if err == nil || gone(err) {
		return nil
	}
	children, err := d.children(h, name)
	if err != nil {
		return err
	}
	for _, c := range children {
		if err := d.removeTree(h, append(slices.Clone(name), c)); err != nil {
			return err
		}
	}
	return ignoreGone(errno.Classify(d.rmdir(h, name)))
}

func ignoreGone(err error) error {
	if gone(err) {
		return nil
	}
	return err
}

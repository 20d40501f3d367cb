package policy

import (
	"io/fs"
	"log/slog"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
)

// kernel reads where processes run, and moves those of sandboxes.
type kernel struct {
	cpus func(pid int) (cpuset.Set, error)                       // Host.CPUsOf
	born func(pid int) (uint64, error)                           // Host.BornAt
	move func(pid int, id, cgroup string, cpus cpuset.Set) error // Host.Move

	online func() (cpuset.Set, error) // Host.Online
}

// cpusOf reads the CPUs of a process, and at first when it began. Another process with the same
// pid means that it has ended.
func (k *kernel) cpusOf(of *process) (cpuset.Set, error) {
	cpus, err := k.cpus(of.pid)
	if err != nil || k.born == nil {
		return cpus, err
	}
	at, err := k.born(of.pid)
	switch {
	case err != nil:
		return cpuset.Set{}, err
	case of.born == 0:
		of.born = at
	case of.born != at:
		return cpuset.Set{}, fs.ErrNotExist
	}
	return cpus, nil
}

// runs reports whether a sandbox's process may still exist.
func (k *kernel) runs(s *sandbox) bool {
	if s.pid == 0 {
		return true
	}
	_, err := k.cpusOf(&s.process)
	return !gone(err)
}

// moveTo sets the CPUs of a sandbox's process, unless it has none or was moved there already.
func (k *kernel) moveTo(s *sandbox, cpus cpuset.Set) (tried bool, err error) {
	if k.move == nil || s.pid == 0 || s.cpus == cpus {
		return false, nil
	}
	err = k.move(s.pid, s.id, s.cgroup, cpus)
	if err == nil || errdefs.ClassOf(err) == errdefs.PermissionDenied { // that is another pod's process, which is not moved
		s.cpus = cpus
	}
	return true, err
}

// logMove logs that the sandbox's process cannot be moved to some CPUs, once for a reason, and that it is moved again.
func (s *sandbox) logMove(log *slog.Logger, to cpuset.Set, err error) {
	if gone(err) {
		return
	}
	text := ""
	if err != nil {
		text = err.Error()
	}
	log = log.With("pod", s.namespace+"/"+s.name, "pid", s.pid, "cpus", to.String())
	switch {
	case text == s.unmoved:
	case text == "":
		log.Info("a sandbox's process is moved to the shared CPUs again")
	default:
		log.Warn("move a sandbox's process to the shared CPUs failed", "error", err)
	}
	s.unmoved = text
}

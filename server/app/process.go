package app

import (
	"context"
	"io/fs"
	"os"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/server/host/procfs"
	"github.com/berthd/berth/server/rpc"
	"github.com/berthd/berth/server/rpc/lifecycle"
)

// ownProcesses lets callers hand over only processes that are theirs. A process in
// a pod's cgroup is limited and in the end killed, by berthd, which is root as a
// rule; so the role of an agent would be worth as much as root without this. The
// rule is the kernel's for cgroup.procs of v1.
//
// A start may wait long before the process is put into its place. That it is still the
// one that was handed over then, and not another one that got its id, stillThere tells.
type ownProcesses struct {
	lifecycle.Engine
	proc fs.FS
	self uint32
}

// PreStart implements lifecycle.Engine.
func (o ownProcesses) PreStart(ctx context.Context, owner ledger.Owner, id string, pid int) (admission.Started, error) {
	if pid != 0 {
		// Before it is looked whose it is: that has to be about this one.
		since, err := procfs.Since(o.proc, pid)
		if err != nil && errdefs.ClassOf(err) != errdefs.NotFound {
			return admission.Started{}, err
		}
		ctx = context.WithValue(ctx, handedOver{}, handedOver{pid: pid, since: since, missing: err})
	}
	if err := o.check(ctx, pid); err != nil {
		return admission.Started{}, err
	}
	return o.Engine.PreStart(ctx, owner, id, pid)
}

func (o ownProcesses) check(ctx context.Context, pid int) error {
	who, known := rpc.PeerOf(ctx)
	switch {
	case pid == 0:
		return nil
	case pid == os.Getpid():
		var vs errdefs.Violations
		vs.Addf("pid", "%d is berthd itself", pid)
		return vs.Err("request")
	case known && (who.UID == 0 || who.UID == o.self):
		return nil
	}
	own, saved, err := procfs.UIDs(o.proc, pid)
	if err != nil {
		return err
	}
	if !known || who.UID != own && who.UID != saved {
		return errdefs.PermissionDeniedf("process %d is of uid %d: only that user and root may place it, not %s", pid, own, who)
	}
	return nil
}

// handedOver is a process as it was when a caller handed it over, and the key under
// which a context has it.
type handedOver struct {
	pid   int
	since uint64
	// missing is the error that there was none.
	missing error
}

// stillThere returns an error of class NotFound unless a process is the one that was
// handed over. What happens between this and the kernel's turn nobody can see: a pid is
// all that cgroup.procs takes.
func stillThere(proc fs.FS) func(ctx context.Context, pid int) error {
	return func(ctx context.Context, pid int) error {
		p, ok := ctx.Value(handedOver{}).(handedOver)
		switch {
		case !ok || p.pid != pid:
			return errdefs.Internalf("place process %d: nobody has handed it over", pid)
		case p.missing != nil:
			return p.missing
		}
		since, err := procfs.Since(proc, pid)
		if err == nil && since != p.since {
			err = errdefs.NotFoundf("process %d has ended: another one has that id now", pid).Coded(errdefs.ProcessNotFound)
		}
		return err
	}
}

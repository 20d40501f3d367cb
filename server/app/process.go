package app

import (
	"context"
	"io/fs"
	"os"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/fault"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/server/host/procfs"
	"github.com/berthd/berth/server/rpc"
	"github.com/berthd/berth/server/rpc/lifecycle"
)

// ownProcesses lets callers hand over only processes that are theirs. A process in
// a pod's cgroup is limited and in the end killed, by berthd, which is root as a
// rule; so the role of an agent would be worth as much as root without this. The
// rule is the kernel's for cgroup.procs of v1.
type ownProcesses struct {
	lifecycle.Engine
	proc fs.FS
	self uint32
}

// PreStart implements lifecycle.Engine.
func (o ownProcesses) PreStart(ctx context.Context, owner ledger.Owner, id string, pid int) (admission.Started, error) {
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
		var vs fault.Violations
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
		return fault.PermissionDeniedf("process %d is of uid %d: only that user and root may place it, not %s", pid, own, who)
	}
	return nil
}

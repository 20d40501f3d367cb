package app

import (
	"fmt"
	"io/fs"
	"os"

	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/server/internal/host/confine"
	"github.com/berthd/berth/server/internal/host/numamaps"
	"github.com/berthd/berth/server/internal/moves"
)

// ReaderCommand is the command of berthd that is the reader of huge pages (package numamaps).
const ReaderCommand = "read-huge-pages"

// ReadHugePages is the reader. Its connection to berthd is the standard input. It keeps CAP_SYS_PTRACE, and makes only
// the system calls that berthd makes. Landlock would forbid what it is for.
func ReadHugePages(conn *os.File, proc fs.FS) error {
	// Files that a service manager has opened for berthd are not passed on.
	if err := confine.CloseOthers(); err != nil {
		return err
	}
	if _, err := confine.Enter(confine.Plan{DropCapabilities: true, Capabilities: confine.Of(confine.SysPtrace),
		Filter: true}); err != nil {
		return fmt.Errorf("read huge pages: %w", err)
	}
	return numamaps.Serve(conn, proc)
}

// hugePages has what moves of running containers with huge pages need.
func hugePages(c config.Config, conn *os.File) (out moves.HugePages) {
	out.Move = c.Moves.HugePages
	if conn != nil {
		reader := numamaps.NewClient(conn)
		out.Check, out.Read = reader.Check, reader.Read
	} else if out.Move && realCgroups(c) {
		out.Move = false // a berthd that main has not started
	}
	if c.Machine == "" {
		out.Free = freeHugeBytes
	}
	return out
}

// freeHugeBytes implements moves.HugePages.
func freeHugeBytes() (cgroup.HugeBytes, error) {
	nodes, err := freeHugePages()
	out := cgroup.HugeBytes{}
	for _, n := range nodes {
		for _, p := range n.HugePages {
			out.Add(cgroup.HugeBytes{int64(p.SizeKiB << 10): {n.ID: p.SizeKiB << 10 * p.Count}})
		}
	}
	return out, err
}

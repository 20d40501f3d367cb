package privileges

import (
	"fmt"
	"io/fs"
	"os"

	"github.com/berthd/berth/server/internal/host/confine"
	"github.com/berthd/berth/server/internal/host/numamaps"
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

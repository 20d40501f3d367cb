// Package hugepages changes how many huge pages NUMA nodes have.
//
// Words:
//
//   - pool: the huge pages of one size on one NUMA node.
//
// Invariants: only Set writes, and only the number of pages of a pool. It makes small steps, so that it ends
// soon after its context, because the kernel may search long for free memory.
package hugepages

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"

	"github.com/berthd/berth/managers/errdefs"
)

// Dir has the pools of all NUMA nodes.
const Dir = "/sys/devices/system/node"

// stepBytes is the memory that a step adds or frees.
const stepBytes = 256 << 20

// Pool names a pool.
type Pool struct {
	Node    int
	SizeKiB uint64
}

func (p Pool) file() string {
	return path.Join("devices/system/node", "node"+strconv.Itoa(p.Node), "hugepages", fmt.Sprintf("hugepages-%dkB", p.SizeKiB), "nr_hugepages")
}

// Read returns the number of pages of a pool. sys is /sys. An error is of class NotFound for a pool that the kernel
// does not have, and of class Unavailable otherwise.
func Read(sys fs.FS, p Pool) (uint64, error) {
	text, err := fs.ReadFile(sys, p.file())
	if os.IsNotExist(err) {
		return 0, errdefs.NotFoundf("the kernel has no huge pages of %d KiB on NUMA node %d", p.SizeKiB, p.Node)
	}
	if err != nil {
		return 0, errdefs.Unavailablef("read the huge pages of NUMA node %d: %w", p.Node, err)
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		return 0, errdefs.Unavailablef("read the huge pages of NUMA node %d: %.40q is no number", p.Node, text)
	}
	return n, nil
}

// Set changes the number of pages of a pool, and returns how many it has then: another number than wanted if the
// kernel finds no more memory, or cannot free pages that are in use. sys is /sys. Errors are those of Read, of class
// Precondition if berthd may not write, and that of the context; the number is that of the last step.
func Set(ctx context.Context, sys *os.Root, p Pool, want uint64) (has uint64, err error) {
	if has, err = Read(sys.FS(), p); err != nil {
		return 0, err
	}
	step := max(1, stepBytes>>10/p.SizeKiB)
	for has != want {
		if err := ctx.Err(); err != nil {
			return has, fmt.Errorf("set the huge pages of NUMA node %d to %d: it has %d: %w", p.Node, want, has, err)
		}
		next := has + min(step, max(want, has)-has) - min(step, has-min(want, has))
		if err := write(sys, p, next); err != nil {
			return has, err
		}
		if has, err = Read(sys.FS(), p); err != nil || has != next {
			break
		}
	}
	return has, err
}

func write(sys *os.Root, p Pool, count uint64) error {
	f, err := sys.OpenFile(p.file(), os.O_WRONLY|os.O_TRUNC, 0)
	if err == nil {
		_, err = f.WriteString(strconv.FormatUint(count, 10))
		if closed := f.Close(); err == nil {
			err = closed
		}
	}
	if err != nil {
		return errdefs.Preconditionf("set the huge pages of NUMA node %d to %d: %w; berthd needs the right to write to %s, and under systemd the drop-in huge-pages.conf", p.Node, count, err, Dir)
	}
	return nil
}

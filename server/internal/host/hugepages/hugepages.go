// Package hugepages changes how many huge pages NUMA nodes have.
//
// Words:
//
//   - pool: the huge pages of one size on one NUMA node.
//
// Invariants: only the number of pages of a pool is written. This is done in
// small steps, which end soon after their context, because the kernel may search long for free memory.
package hugepages

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
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
	return path.Join("devices/system/node", "node"+strconv.Itoa(p.Node), "hugepages", fmt.Sprintf("hugepages-%dkB", p.SizeKiB),
		"nr_hugepages")
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

// Change is a pool that gets another number of pages.
type Change struct {
	Pool
	// Want is the number that was requested, Before the one that the pool had, and Now the one that it has.
	Want, Before, Now uint64
}

// Apply changes pools one after the other, and ends with the first error of Set. Then it calls settle, also after an error, if
// a pool has changed. If settle fails, the pools get their numbers before again. The error, of class Unavailable, has the
// pools for which the kernel did not do so.
func Apply(ctx context.Context, sys *os.Root, changes []Change, settle func() error) error {
	for i := range changes {
		c := &changes[i]
		var err error
		if c.Before, err = Read(sys.FS(), c.Pool); err != nil {
			return err
		}
		c.Now = c.Before
	}
	var failed error
	for i := range changes {
		c := &changes[i]
		if c.Now, failed = Set(ctx, sys, c.Pool, c.Want); failed != nil {
			// Set does not know the number if it cannot read it any more.
			if now, err := Read(sys.FS(), c.Pool); err == nil {
				c.Now = now
			}
			break
		}
	}
	if !slices.ContainsFunc(changes, func(c Change) bool { return c.Now != c.Before }) {
		return failed
	}
	refused := settle()
	if refused == nil {
		return failed
	}
	outcome := "the numbers before were set again"
	var left []string
	var errs []error
	for i := range changes {
		c := &changes[i]
		if c.Now == c.Before {
			continue
		}
		var err error
		if c.Now, err = Set(context.WithoutCancel(ctx), sys, c.Pool, c.Before); err != nil {
			errs = append(errs, err)
		} else if c.Now != c.Before {
			left = append(left, fmt.Sprintf("NUMA node %d has %d of the %d pages of %d KiB that it had", c.Node, c.Now, c.Before,
				c.SizeKiB))
		}
	}
	if len(left)+len(errs) > 0 {
		outcome = strings.Join(append([]string{"the numbers before could not all be set again"}, left...), "; ")
	}
	return errdefs.Unavailablef("%s: %w", outcome, errors.Join(append([]error{refused, failed}, errs...)...))
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

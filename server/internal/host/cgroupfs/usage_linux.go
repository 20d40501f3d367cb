package cgroupfs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"time"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/errdefs"
)

var _ cgroup.Meter = (*Driver)(nil)

// Usage implements cgroup.Meter.
func (d *Driver) Usage(ctx context.Context, name cgroup.Name) (u cgroup.Usage, err error) {
	if err := cmp.Or(name.Check(), ctx.Err()); err != nil {
		return u, err
	}
	if d.facts.Version == cgroup.V2 {
		microseconds, err := d.count(name, "cpu", "cpu.stat", "usage_usec")
		if err != nil {
			return u, err
		}
		u.CPU = time.Duration(microseconds) * time.Microsecond
		return u, d.memoryUse(&u, name, "memory.current", "inactive_file")
	}
	nanoseconds, err := d.count(name, "cpuacct", "cpuacct.usage", "")
	if err != nil {
		return u, err
	}
	u.CPU = time.Duration(nanoseconds)
	return u, d.memoryUse(&u, name, "memory.usage_in_bytes", "total_inactive_file")
}

// memoryUse reads the memory that is used, and the part of the page cache that is inactive.
func (d *Driver) memoryUse(u *cgroup.Usage, name cgroup.Name, file, inactive string) (err error) {
	if u.MemoryBytes, err = d.count(name, "memory", file, ""); err != nil {
		return err
	}
	cached, err := d.count(name, "memory", "memory.stat", inactive)
	u.WorkingSetBytes = max(0, u.MemoryBytes-cached)
	return err
}

// count reads a number: the whole file, or its line that begins with a key.
func (d *Driver) count(name cgroup.Name, controller, file, key string) (int64, error) {
	h, ok := d.hierarchy(controller)
	if !ok {
		return 0, errdefs.Unsupportedf("cgroup v%d without the controller %s", d.facts.Version, controller)
	}
	text, err := d.read(h, name, file)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, errdefs.NotFoundf("cgroup %s: %w", name, err)
	}
	if err != nil {
		return 0, err
	}
	if key == "" {
		return parseCount(name, file, strings.TrimSpace(text))
	}
	for line := range strings.Lines(text) {
		if k, value, _ := strings.Cut(strings.TrimSpace(line), " "); k == key {
			return parseCount(name, file, value)
		}
	}
	return 0, errdefs.Unsupportedf("%s of cgroup %s has no %s", file, name, key)
}

func parseCount(name cgroup.Name, file, text string) (int64, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read %s of cgroup %s: %w", file, name, err)
	}
	return n, nil
}

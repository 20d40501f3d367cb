package cgroupfs

import (
	"math"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/server/host/errno"
)

// reading collects the values of one cgroup; the first file that cannot be
// understood ends it. Files that are not there leave their value absent: the
// root has fewer files than others, and a cgroup may vanish meanwhile.
type reading struct {
	d    *Driver
	name cgroup.Name
	err  error
	// dirs are the cgroup's directories opened so far, by hierarchy; -1 where
	// there is none. A path is walked once for all files.
	dirs map[string]int
	buf  [4096]byte
}

func (d *Driver) read(name cgroup.Name) *reading {
	return &reading{d: d, name: name, dirs: make(map[string]int, len(d.hierarchies))}
}

// text reads a control file; false if there is none.
func (r *reading) text(controller, file string) (string, bool) {
	h, ok := r.d.hierarchy(controller)
	if r.err != nil || !ok {
		return "", false
	}
	dir, opened := r.dirs[h.dir]
	if !opened {
		var err error
		if dir, err = open(r.d.absolute(h, r.name), unix.O_RDONLY|unix.O_DIRECTORY); err != nil {
			if dir = -1; !gone(err) {
				r.err = errno.Classify(err)
				return "", false
			}
		}
		r.dirs[h.dir] = dir
	}
	if dir < 0 {
		return "", false
	}
	text, err := r.readAt(dir, file)
	if err != nil {
		if !gone(err) {
			r.err = errdefs.Unavailablef("read %s: %w", file, err)
		}
		return "", false
	}
	return strings.TrimSpace(text), true
}

// readAt reads a control file of an open directory in three system calls: what is shorter
// than the buffer is all that there is.
func (r *reading) readAt(dir int, file string) (string, error) {
	fd, err := again(func() (int, error) { return unix.Openat(dir, file, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0) })
	if err != nil {
		return "", err
	}
	defer func() { _ = unix.Close(fd) }()
	var text []byte
	for {
		n, err := again(func() (int, error) { return unix.Read(fd, r.buf[:]) })
		if err != nil {
			return "", err
		}
		if text = append(text, r.buf[:n]...); n < len(r.buf) {
			return string(text), nil
		}
	}
}

// close lets go of the directories.
func (r *reading) close() {
	for _, dir := range r.dirs {
		if dir >= 0 {
			_ = unix.Close(dir)
		}
	}
}

// unlimitedFrom is what v1 shows at least where there is no limit: the largest
// number of pages, rounded down to huge pages of up to 16 GiB.
const unlimitedFrom = math.MaxInt64 - 1<<34

// number reads an amount that may be unlimited.
func (r *reading) number(controller, file string) *int64 {
	text, ok := r.text(controller, file)
	if !ok {
		return nil
	}
	n, err := parseLimit(text)
	r.fail(file, err)
	return &n
}

func parseLimit(text string) (int64, error) {
	if text == "max" {
		return cgroup.Unlimited, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, err
	}
	if n < 0 || n >= unlimitedFrom {
		n = cgroup.Unlimited
	}
	return n, nil
}

// positive reads a number that has no unlimited.
func (r *reading) positive(controller, file string) *uint64 {
	n := r.number(controller, file)
	if n == nil || *n < 0 {
		return nil
	}
	u := uint64(*n)
	return &u
}

func (r *reading) cpus(file string) (set cpuset.Set) {
	if text, ok := r.text("cpuset", file); ok {
		var err error
		set, err = cpuset.Parse(text)
		r.fail(file, err)
	}
	return set
}

func (r *reading) mems(file string) (mask numa.Mask) {
	if text, ok := r.text("cpuset", file); ok {
		var err error
		mask, err = numa.Parse(text)
		r.fail(file, err)
	}
	return mask
}

// fail keeps the error of a file that could not be understood.
func (r *reading) fail(file string, err error) {
	if err != nil {
		r.err = errdefs.Unavailablef("read %s: %w", file, err)
	}
}

// readValues fills in what the control files say.
func (d *Driver) readValues(o *cgroup.Observed) error {
	r := d.read(o.Name)
	defer r.close()
	v := &o.Values
	v.CPUs, v.Mems = r.cpus("cpuset.cpus"), r.mems("cpuset.mems")
	v.PIDs = r.number("pids", "pids.max")
	hugePageSuffix := ".max"
	var usage *int64
	if d.facts.Version == cgroup.V1 {
		hugePageSuffix = ".limit_in_bytes"
		usage = r.valuesV1(o)
	} else {
		usage = r.valuesV2(o)
	}
	if usage != nil {
		o.MemoryUsageBytes = *usage
	}
	for _, size := range d.facts.HugePageSizes {
		if n := r.number("hugetlb", "hugetlb."+cgroup.HugePageLabel(size)+hugePageSuffix); n != nil {
			if v.HugePages == nil {
				v.HugePages = make(map[int64]int64)
			}
			v.HugePages[size] = *n
		}
	}
	v.Frozen = r.frozen()
	procs, _ := r.text("cpuset", "cgroup.procs")
	o.Populated = procs != ""
	return r.err
}

func (r *reading) valuesV1(o *cgroup.Observed) (usage *int64) {
	v := &o.Values
	o.Effective = cgroup.Cpuset{CPUs: r.cpus("cpuset.effective_cpus"), Mems: r.mems("cpuset.effective_mems")}
	v.CPUShares = r.positive("cpu", "cpu.shares")
	v.CPUQuotaUS = r.number("cpu", "cpu.cfs_quota_us")
	v.CPUPeriodUS = r.positive("cpu", "cpu.cfs_period_us")
	v.MemoryBytes = r.number("memory", "memory.limit_in_bytes")
	v.MemorySwapBytes = r.number("memory", "memory.memsw.limit_in_bytes")
	return r.number("memory", "memory.usage_in_bytes")
}

// unifiedFiles are the further files of v2 that berth writes.
var unifiedFiles = []string{"memory.min", "memory.low", "memory.high", "memory.oom.group", "memory.swap.max"}

func (r *reading) valuesV2(o *cgroup.Observed) (usage *int64) {
	v := &o.Values
	o.Effective = cgroup.Cpuset{CPUs: r.cpus("cpuset.cpus.effective"), Mems: r.mems("cpuset.mems.effective")}
	v.CPUWeight = r.positive("cpu", "cpu.weight")
	v.MemoryBytes = r.number("memory", "memory.max")
	if text, ok := r.text("cpu", "cpu.max"); ok {
		quota, period, _ := strings.Cut(text, " ")
		q, qerr := parseLimit(quota)
		p, perr := strconv.ParseUint(period, 10, 64)
		if qerr != nil || perr != nil {
			r.err = errdefs.Unavailablef("read cpu.max: %q is no quota with a period", text)
		}
		v.CPUQuotaUS, v.CPUPeriodUS = &q, &p
	}
	for _, file := range unifiedFiles {
		if text, ok := r.text("memory", file); ok {
			if v.Unified == nil {
				v.Unified = make(map[string]string)
			}
			v.Unified[file] = text
		}
	}
	return r.number("memory", "memory.current")
}

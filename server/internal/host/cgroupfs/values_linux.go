package cgroupfs

import (
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/numa"
)

// reading holds the control files of one cgroup, and the error of the first that could
// not be understood. Files that are not there leave their value absent: the root has
// fewer files than others, and a cgroup may vanish meanwhile.
type reading struct {
	texts map[string]string
	err   error
}

// unifiedFiles are the further files of v2 that berth writes.
var unifiedFiles = []string{"memory.min", "memory.low", "memory.high", "memory.oom.group", "memory.swap.max"}

// valueFiles are the control files with values, by controller. freezer.self_freezing has the
// state of the cgroup itself, so freezer.state is not needed.
var (
	valueFilesV1 = map[string][]string{
		"cpu":     {"cpu.shares", "cpu.cfs_quota_us", "cpu.cfs_period_us"},
		"cpuset":  {"cpuset.cpus", "cpuset.mems", "cpuset.effective_cpus", "cpuset.effective_mems", procsFile},
		"freezer": {selfFreezingV1},
		"memory":  {"memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.usage_in_bytes"},
		"pids":    {"pids.max"},
	}
	valueFilesV2 = slices.Concat([]string{
		"cpu.weight", "cpu.max", "cpuset.cpus", "cpuset.mems", "cpuset.cpus.effective", "cpuset.mems.effective",
		"memory.max", "memory.current", "pids.max", freezerV2, procsFile,
	}, unifiedFiles)
)

// valueFiles lists the control files of a hierarchy that have values.
func (d *Driver) valueFiles(h hierarchy) (files []string) {
	if d.facts.Version == cgroup.V2 {
		files = slices.Clone(valueFilesV2)
	}
	for _, c := range h.controllers {
		files = append(files, valueFilesV1[c]...)
	}
	if d.facts.Version == cgroup.V2 || h.has("hugetlb") {
		for _, size := range d.facts.HugePageSizes {
			files = append(files, d.hugePageFile(size))
		}
	}
	return files
}

func (t *tree) hugePageFile(size int64) string {
	suffix := ".limit_in_bytes"
	if t.facts.Version == cgroup.V2 {
		suffix = ".max"
	}
	return "hugetlb." + cgroup.HugePageLabel(size) + suffix
}

// unlimitedFrom is what v1 shows at least where there is no limit: the largest
// number of pages, rounded down to huge pages of up to 16 GiB.
const unlimitedFrom = math.MaxInt64 - 1<<34

// number reads an amount that may be unlimited.
func (r *reading) number(file string) *int64 {
	text, ok := r.texts[file]
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
func (r *reading) positive(file string) *uint64 {
	n := r.number(file)
	if n == nil || *n < 0 {
		return nil
	}
	u := uint64(*n)
	return &u
}

func (r *reading) cpus(file string) (set cpuset.Set) {
	if text, ok := r.texts[file]; ok {
		var err error
		set, err = cpuset.Parse(text)
		r.fail(file, err)
	}
	return set
}

func (r *reading) mems(file string) (mask numa.Mask) {
	if text, ok := r.texts[file]; ok {
		var err error
		mask, err = numa.Parse(text)
		r.fail(file, err)
	}
	return mask
}

// fail stores the first error of a file that could not be understood.
func (r *reading) fail(file string, err error) {
	if err != nil && r.err == nil {
		r.err = errdefs.Unavailablef("read %s: %w", file, err)
	}
}

// decode parses the texts of the control files.
func (d *Driver) decode(o *cgroup.Observed, texts map[string]string) error {
	r := &reading{texts: texts}
	v := &o.Values
	v.CPUs, v.Mems = r.cpus("cpuset.cpus"), r.mems("cpuset.mems")
	v.PIDs = r.number("pids.max")
	var usage *int64
	if d.facts.Version == cgroup.V1 {
		usage = r.valuesV1(o)
	} else {
		usage = r.valuesV2(o)
	}
	o.MemoryUsageBytes = value(usage)
	for _, size := range d.facts.HugePageSizes {
		if n := r.number(d.hugePageFile(size)); n != nil {
			if v.HugePages == nil {
				v.HugePages = make(map[int64]int64)
			}
			v.HugePages[size] = *n
		}
	}
	if text, ok := r.texts[d.freezerState()]; ok && !o.Name.IsRoot() {
		frozen := text == "1"
		v.Frozen = &frozen
	}
	o.Populated = r.texts[procsFile] != ""
	return r.err
}

func (r *reading) valuesV1(o *cgroup.Observed) (usage *int64) {
	v := &o.Values
	o.Effective = cgroup.Cpuset{CPUs: r.cpus("cpuset.effective_cpus"), Mems: r.mems("cpuset.effective_mems")}
	v.CPUShares = r.positive("cpu.shares")
	v.CPUQuotaUS = r.number("cpu.cfs_quota_us")
	v.CPUPeriodUS = r.positive("cpu.cfs_period_us")
	v.MemoryBytes = r.number("memory.limit_in_bytes")
	v.MemorySwapBytes = r.number("memory.memsw.limit_in_bytes")
	return r.number("memory.usage_in_bytes")
}

func (r *reading) valuesV2(o *cgroup.Observed) (usage *int64) {
	v := &o.Values
	o.Effective = cgroup.Cpuset{CPUs: r.cpus("cpuset.cpus.effective"), Mems: r.mems("cpuset.mems.effective")}
	v.CPUWeight = r.positive("cpu.weight")
	v.MemoryBytes = r.number("memory.max")
	if text, ok := r.texts["cpu.max"]; ok {
		quota, period, _ := strings.Cut(text, " ")
		q, qerr := parseLimit(quota)
		p, perr := strconv.ParseUint(period, 10, 64)
		if qerr != nil || perr != nil {
			r.err = errdefs.Unavailablef("read cpu.max: %q is no quota with a period", text)
		}
		v.CPUQuotaUS, v.CPUPeriodUS = &q, &p
	}
	for _, file := range unifiedFiles {
		if text, ok := r.texts[file]; ok {
			if v.Unified == nil {
				v.Unified = make(map[string]string)
			}
			v.Unified[file] = text
		}
	}
	return r.number("memory.current")
}

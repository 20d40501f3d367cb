package cgroup

import (
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
)

// File is one control file with its text.
type File struct {
	Name string
	Text string
}

// For returns the values in the form in which a tree holds and gives them back:
// on v2 a weight in place of shares, on v1 nothing that only v2 has, no swap
// limits where the tree has none; memory in whole pages, huge pages in whole huge
// pages and only of sizes that the tree has; quotas as systemd rounds them where
// it keeps them; no zeros that mean "leave as it is". For is idempotent. Maps that
// stay as they are are shared with v.
func (v Values) For(f Facts) Values {
	out := v
	if f.Version == V2 {
		out.toV2()
		out.Unified = unifiedFor(v.Unified, f)
	} else {
		out.CPUWeight, out.Unified = nil, nil
		if !slices.Contains(f.Controllers, "freezer") {
			out.Frozen = nil
		}
	}
	if !f.SwapLimits {
		out.MemorySwapBytes = nil
	}
	dropZero(&out.CPUShares)
	dropZero(&out.CPUWeight)
	dropZero(&out.CPUQuotaUS)
	dropZero(&out.CPUPeriodUS)
	if f.Driver == Systemd {
		out.systemdQuota()
	}
	wholePages(&out.MemoryBytes, f.PageBytes)
	wholePages(&out.MemorySwapBytes, f.PageBytes)
	if out.PIDs != nil {
		switch {
		case *out.PIDs < 0:
			out.PIDs = new(Unlimited)
		case *out.PIDs == 0:
			out.PIDs = new(int64(1))
		}
	}
	out.HugePages = hugePagesFor(v.HugePages, f)
	return out
}

// hugePagesFor gives limits in whole pages of the sizes that the tree has.
func hugePagesFor(limits map[int64]int64, f Facts) map[int64]int64 {
	return revised(limits, func(size, limit int64) (int64, bool) {
		if !slices.Contains(f.HugePageSizes, size) {
			return 0, false
		}
		if limit > 0 {
			limit -= limit % size
		}
		return limit, true
	})
}

// unifiedFor gives the files that the tree has, with texts as the kernel gives them
// back.
func unifiedFor(texts map[string]string, f Facts) map[string]string {
	return revised(texts, func(file, text string) (string, bool) {
		return normalText(file, text, f.PageBytes), f.SwapLimits || file != fileSwapMax
	})
}

// revised gives what is kept of a map, with new values; the map itself where nothing
// changes, as nearly always.
func revised[K, V comparable](m map[K]V, revise func(K, V) (V, bool)) map[K]V {
	out, own := m, false
	for k, v := range m {
		now, kept := revise(k, v)
		if kept && now == v {
			continue
		}
		if !own {
			out, own = maps.Clone(m), true
		}
		if kept {
			out[k] = now
		} else {
			delete(out, k)
		}
	}
	return out
}

// toV2 replaces what only v1 has.
func (v *Values) toV2() {
	if v.CPUWeight == nil && v.CPUShares != nil {
		v.CPUWeight = new(SharesToWeight(*v.CPUShares))
	}
	v.CPUShares, v.MemorySwapBytes = nil, nil
}

func dropZero[T uint64 | int64](p **T) {
	if *p != nil && **p == 0 {
		*p = nil
	}
}

// systemdQuota rounds a quota up to whole hundredths of a CPU, the unit in which
// systemd keeps it (systemd.resource-control(5), CPUQuota=). Without a quota it
// keeps no period either.
func (v *Values) systemdQuota() {
	const second, percent = 1_000_000, 10_000
	quota, period := v.CPUQuotaUS, period(*v)
	switch {
	case quota == nil:
	case *quota < 0 && v.CPUPeriodUS != nil:
		v.CPUPeriodUS = new(uint64(DefaultPeriodUS))
	case *quota < 0 || *quota > math.MaxInt64/second || period > math.MaxInt64/second:
	default:
		perSecond := *quota * second / int64(period)
		if rest := perSecond % percent; rest != 0 {
			perSecond += percent - rest
			v.CPUQuotaUS = new(perSecond * int64(period) / second)
		}
	}
}

// wholePages rounds a limit as the kernel does: down, but never to nothing,
// which would mean "leave as it is".
func wholePages(p **int64, page int64) {
	switch {
	case *p == nil:
	case **p == 0:
		*p = nil
	case **p < 0:
		*p = new(Unlimited)
	case page > 0 && **p >= page:
		*p = new(**p - **p%page)
	}
}

// normalText rounds the amounts that v2's memory files hold.
func normalText(file, text string, page int64) string {
	text = strings.TrimSpace(text)
	if bytes, err := strconv.ParseInt(text, 10, 64); err == nil && page > 0 && amountFiles[file] {
		return strconv.FormatInt(bytes-bytes%page, 10)
	}
	return text
}

// amountFiles are those of v2's memory files that hold bytes.
var amountFiles = map[string]bool{
	fileMemoryMin: true, fileMemoryLow: true, fileMemoryHigh: true, fileSwapMax: true,
}

// Files gives the control files by which a tree holds the values, in the order
// in which they are written. Huge page limits also go into the ".rsvd" file
// in addition to the one named, where the kernel has it.
func (v Values) Files(f Facts) []File { return v.For(f).files(f) }

// files is Files of values that are in the form of For.
func (v Values) files(f Facts) []File {
	if f.Version == V2 {
		return v.filesV2()
	}
	return v.filesV1()
}

func (v Values) filesV1() []File {
	var out []File
	add := func(name, text string) { out = addFile(out, name, text) }
	v.cpusetFiles(add)
	addNumber(add, "memory.limit_in_bytes", v.MemoryBytes, "-1")
	addNumber(add, "memory.memsw.limit_in_bytes", v.MemorySwapBytes, "-1")
	if v.CPUShares != nil {
		add("cpu.shares", strconv.FormatUint(*v.CPUShares, 10))
	}
	if v.CPUPeriodUS != nil {
		add("cpu.cfs_period_us", strconv.FormatUint(*v.CPUPeriodUS, 10))
	}
	addNumber(add, "cpu.cfs_quota_us", v.CPUQuotaUS, "-1")
	addNumber(add, "pids.max", v.PIDs, "max")
	v.hugePageFiles(add, ".limit_in_bytes", "-1")
	addFrozen(add, "freezer.state", v.Frozen, "FROZEN", "THAWED")
	return out
}

func (v Values) filesV2() []File {
	var out []File
	add := func(name, text string) { out = addFile(out, name, text) }
	addNumber(add, "pids.max", v.PIDs, "max")
	addNumber(add, "memory.max", v.MemoryBytes, "max")
	if v.CPUWeight != nil {
		add("cpu.weight", strconv.FormatUint(*v.CPUWeight, 10))
	}
	if v.CPUQuotaUS != nil || v.CPUPeriodUS != nil {
		quota, period := "max", uint64(DefaultPeriodUS)
		if v.CPUQuotaUS != nil && *v.CPUQuotaUS > 0 {
			quota = strconv.FormatInt(*v.CPUQuotaUS, 10)
		}
		if v.CPUPeriodUS != nil {
			period = *v.CPUPeriodUS
		}
		add("cpu.max", quota+" "+strconv.FormatUint(period, 10))
	}
	v.cpusetFiles(add)
	v.hugePageFiles(add, ".max", "max")
	for _, name := range slices.Sorted(maps.Keys(v.Unified)) {
		add(name, v.Unified[name])
	}
	addFrozen(add, "cgroup.freeze", v.Frozen, "1", "0")
	return out
}

func (v Values) cpusetFiles(add func(name, text string)) {
	if !v.CPUs.IsEmpty() {
		add("cpuset.cpus", v.CPUs.String())
	}
	if !v.Mems.IsEmpty() {
		add("cpuset.mems", v.Mems.String())
	}
}

func (v Values) hugePageFiles(add func(name, text string), suffix, unlimited string) {
	var room [4]int64
	sizes := room[:0]
	for size := range v.HugePages {
		sizes = append(sizes, size)
	}
	slices.Sort(sizes)
	for _, size := range sizes {
		limit := v.HugePages[size]
		addNumber(add, "hugetlb."+HugePageLabel(size)+suffix, &limit, unlimited)
	}
}

// addFile makes room for as many files as most cgroups are given, if any.
func addFile(to []File, name, text string) []File {
	if to == nil {
		to = make([]File, 0, 10)
	}
	return append(to, File{name, text})
}

// addFrozen comes last: processes run again when all values are in force.
func addFrozen(add func(name, text string), name string, frozen *bool, yes, no string) {
	switch {
	case frozen == nil:
	case *frozen:
		add(name, yes)
	default:
		add(name, no)
	}
}

func addNumber(add func(name, text string), name string, n *int64, unlimited string) {
	switch {
	case n == nil:
	case *n < 0:
		add(name, unlimited)
	default:
		add(name, strconv.FormatInt(*n, 10))
	}
}

// HugePageLabel gives the kernel's label of a page size as hugetlb files carry
// it: 2MB for 2097152. A size that is no whole number of its unit is given in the
// unit where it is.
func HugePageLabel(size int64) string {
	units := []string{"B", "KB", "MB", "GB", "TB", "PB"}
	i := 0
	for ; size >= 1024 && size%1024 == 0 && i < len(units)-1; i++ {
		size /= 1024
	}
	return strconv.FormatInt(size, 10) + units[i]
}

package cgroupfs

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/berthd/berth/managers/cgroup"
)

// Details implements cgroup.Meter. If a kernel lacks a file or uses another format, its part of
// the details is missing.
func (d *Driver) Details(ctx context.Context, name cgroup.Name) (out cgroup.Details, err error) {
	if out.Usage, err = d.Usage(ctx, name); err != nil {
		return out, err
	}
	v2 := d.facts.Version == cgroup.V2
	if text, ok := d.readOptional("cpu", name, "cpu.stat"); ok {
		out.Quota = throttling(text)
	}
	if text, ok := d.readOptional("memory", name, "memory.numa_stat"); ok {
		if v2 {
			out.NUMABytes = numaBytes(text, 1, "anon", "file", "kernel_stack", "pagetables", "slab_reclaimable", "slab_unreclaimable")
			out.MappedBytes, _ = cgroup.MappedBytes(text)
		} else {
			page := uint64(max(0, d.facts.PageBytes))
			out.NUMABytes = numaBytes(text, page, "hierarchical_total")
			out.MappedBytes = numaBytes(text, page, "hierarchical_anon", "hierarchical_unevictable") // locked pages are in the second one
			if text, ok := d.readOptional("memory", name, "memory.stat"); ok {
				out.UnmappedBytes = statBytes(text, "total_shmem")
			}
		}
	}
	for _, size := range d.facts.HugePageSizes {
		suffix := ".usage_in_bytes"
		if v2 {
			suffix = ".current"
		}
		text, ok := d.readOptional("hugetlb", name, "hugetlb."+cgroup.HugePageLabel(size)+suffix)
		if n, err := strconv.ParseUint(strings.TrimSpace(text), 10, 64); ok && err == nil {
			if out.HugePageBytes == nil {
				out.HugePageBytes = map[int64]uint64{}
			}
			out.HugePageBytes[size] = n
		}
	}
	if v2 {
		for file, to := range map[string]**time.Duration{
			"cpu.pressure": &out.CPUPressure, "memory.pressure": &out.MemoryPressure, "io.pressure": &out.IOPressure,
		} {
			if text, ok := d.readOptional("", name, file); ok {
				*to = stalled(text)
			}
		}
	}
	return out, nil
}

// readOptional reads a file that a kernel may lack.
func (t *tree) readOptional(controller string, name cgroup.Name, file string) (string, bool) {
	h, ok := t.hierarchy(controller)
	if !ok {
		return "", false
	}
	text, err := t.read(h, name, file)
	return text, err == nil
}

// throttling reads cpu.stat of either version (Documentation/scheduler/sched-bwc.rst); nil
// where the kernel cannot throttle.
func throttling(text string) *cgroup.Throttling {
	var out cgroup.Throttling
	found := false
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		n, err := strconv.ParseUint(value, 10, 63)
		if err != nil {
			continue
		}
		switch key {
		case "nr_periods":
			out.Periods, found = n, true
		case "nr_throttled":
			out.Throttled = n
		case "throttled_usec":
			out.Time = time.Duration(n) * time.Microsecond
		case "throttled_time":
			out.Time = time.Duration(n)
		}
	}
	if !found {
		return nil
	}
	return &out
}

// numaBytes sums lines of memory.numa_stat by node: "anon N0=4096 N1=0", or on v1 pages as
// "hierarchical_total=3 N0=2 N1=1".
func numaBytes(text string, unit uint64, keys ...string) map[int]uint64 {
	wanted := map[string]bool{}
	for _, k := range keys {
		wanted[k] = true
	}
	out := map[int]uint64{}
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		if key, _, _ := strings.Cut(fields[0], "="); !wanted[key] {
			continue
		}
		for _, field := range fields[1:] {
			node, amount, ok := strings.Cut(field, "=")
			id, err := strconv.Atoi(strings.TrimPrefix(node, "N"))
			n, err2 := strconv.ParseUint(amount, 10, 63)
			if ok && err == nil && err2 == nil && id >= 0 {
				out[id] += n * unit
			}
		}
	}
	return out
}

// statBytes returns a value of memory.stat; 0 if the kernel does not have it.
func statBytes(text, key string) uint64 {
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), key+" "); ok {
			n, _ := strconv.ParseUint(value, 10, 63)
			return n
		}
	}
	return 0
}

// stalled reads the total of the line "some" of a pressure file (Documentation/accounting/psi.rst),
// in microseconds; nil where there is none.
func stalled(text string) *time.Duration {
	for line := range strings.Lines(text) {
		rest, ok := strings.CutPrefix(strings.TrimSpace(line), "some ")
		if !ok {
			continue
		}
		for field := range strings.FieldsSeq(rest) {
			if value, ok := strings.CutPrefix(field, "total="); ok {
				if n, err := strconv.ParseUint(value, 10, 63); err == nil {
					d := time.Duration(n) * time.Microsecond
					return &d
				}
			}
		}
	}
	return nil
}

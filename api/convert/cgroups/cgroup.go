package cgroups

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	cgroupv1 "github.com/berthd/berth/api/berth/cgroup/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/errdefs"
)

// Name reads the name of a cgroup from a field of a request. Errors are of
// class Invalid and name the field.
func Name(field, name string) (cgroup.Name, error) {
	var vs errdefs.Violations
	n := cgroup.ParseCgroupfs(name)
	switch {
	case name == "":
		vs.Addf(field, "is required")
	case len(name) > maxName:
		vs.Addf(field, "%d characters: expected at most %d", len(name), maxName)
	default:
		if err := n.Check(); err != nil {
			vs.Addf(field, "%v", err)
		}
	}
	return n, vs.Err("request")
}

// maxName is the longest path on Linux.
const maxName = 4096

var cgroupStates = map[cgroup.State]cgroupv1.State{
	cgroup.Absent:  cgroupv1.State_STATE_ABSENT,
	cgroup.Invalid: cgroupv1.State_STATE_INVALID,
	cgroup.Valid:   cgroupv1.State_STATE_VALID,
}

// State returns the message form of a state.
func State(s cgroup.State) cgroupv1.State { return cgroupStates[s] }

// Values returns the message form of a cgroup's values.
func Values(v cgroup.Values) *typesv1.LinuxResources {
	out := &typesv1.LinuxResources{
		CpuShares: v.CPUShares, CpuWeight: v.CPUWeight, CpuQuotaMicroseconds: v.CPUQuotaUS, CpuPeriodMicroseconds: v.CPUPeriodUS,
		MemoryLimitBytes: v.MemoryBytes, MemorySwapLimitBytes: v.MemorySwapBytes, PidsLimit: v.PIDs,
		Unified:    v.Unified,
		CpusetCpus: convert.SomeCPUs(v.CPUs), CpusetMems: convert.SomeNodes(v.Mems),
	}
	for _, size := range slices.Sorted(maps.Keys(v.HugePages)) {
		limit := v.HugePages[size]
		out.HugepageLimits = append(out.HugepageLimits, &typesv1.HugepageLimit{PageSizeBytes: uint64(size), LimitBytes: &limit})
	}
	return out
}

// ReadValues reads values from a request; path leads to them. Errors are of
// class Invalid and name the field.
func ReadValues(path string, m *typesv1.LinuxResources) (cgroup.Values, error) {
	if m == nil {
		return cgroup.Values{}, nil
	}
	var vs errdefs.Violations
	v := cgroup.Values{
		CPUShares: m.CpuShares, CPUWeight: m.CpuWeight, CPUQuotaUS: m.CpuQuotaMicroseconds, CPUPeriodUS: m.CpuPeriodMicroseconds,
		MemoryBytes: m.MemoryLimitBytes, MemorySwapBytes: m.MemorySwapLimitBytes, PIDs: m.PidsLimit,
		Unified: maps.Clone(m.GetUnified()),
	}
	v.CPUs = convert.ReadCPUSet(path+".cpuset_cpus", m.GetCpusetCpus(), &vs)
	v.Mems = convert.ReadMask(path+".cpuset_mems", m.GetCpusetMems(), &vs)
	if m.OomScoreAdj != nil {
		vs.Addf(path+".oom_score_adj", "belongs to processes: expected no value for a cgroup")
	}
	readHugepages(path+".hugepage_limits", m.GetHugepageLimits(), &v, &vs)
	inRange(&vs, path+".cpu_shares", v.CPUShares, cgroup.MinShares, cgroup.MaxShares)
	inRange(&vs, path+".cpu_weight", v.CPUWeight, 1, 10000)
	inRange(&vs, path+".cpu_period_microseconds", v.CPUPeriodUS, 1000, 1_000_000)
	atLeast(&vs, path+".cpu_quota_microseconds", v.CPUQuotaUS, cgroup.MinQuotaUS)
	atLeast(&vs, path+".memory_limit_bytes", v.MemoryBytes, 1)
	atLeast(&vs, path+".memory_swap_limit_bytes", v.MemorySwapBytes, 1)
	atLeast(&vs, path+".pids_limit", v.PIDs, 0)
	for _, file := range slices.Sorted(maps.Keys(v.Unified)) {
		if !controlFile(file) {
			vs.Addf(fmt.Sprintf("%s.unified[%.80q]", path, file), "expected the name of a control file such as memory.min")
		}
	}
	return v, vs.Err("request")
}

// readHugepages reads limits by page size; each size may have one.
func readHugepages(path string, list []*typesv1.HugepageLimit, into *cgroup.Values, vs *errdefs.Violations) {
	for i, l := range list {
		at, size := fmt.Sprintf("%s[%d]", path, i), l.GetPageSizeBytes()
		_, twice := into.HugePages[int64(size)]
		switch {
		case size == 0 || size > math.MaxInt64:
			vs.Addf(at+".page_size_bytes", "is %d, expected the size of a page", size)
			continue
		case twice:
			vs.Addf(at+".page_size_bytes", "%d is given twice", size)
		case l.LimitBytes == nil:
			vs.Addf(at+".limit_bytes", "is required")
		default:
			atLeast(vs, at+".limit_bytes", l.LimitBytes, 0)
		}
		if into.HugePages == nil {
			into.HugePages = make(map[int64]int64, len(list))
		}
		into.HugePages[int64(size)] = l.GetLimitBytes()
	}
}

// controlFile reports whether a name can be that of a controller's file: letters,
// digits, dots and underscores. Files of the cgroup itself (cgroup.procs,
// cgroup.kill) hold no values.
func controlFile(name string) bool {
	if name == "" || name[0] == '.' || len(name) > 255 || strings.HasPrefix(name, "cgroup.") {
		return false
	}
	for _, c := range []byte(name) {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '.', c == '_':
		default:
			return false
		}
	}
	return true
}

func inRange(vs *errdefs.Violations, field string, n *uint64, least, most uint64) {
	if n != nil && (*n < least || *n > most) {
		vs.Addf(field, "is %d, expected %d to %d", *n, least, most)
	}
}

func atLeast(vs *errdefs.Violations, field string, n *int64, least int64) {
	if n != nil && *n < least && *n != cgroup.Unlimited {
		vs.Addf(field, "is %d, expected at least %d, or %d for no limit", *n, least, cgroup.Unlimited)
	}
}

// Writes returns the message form of ops, file by file.
func Writes(ops []cgroup.Op) []*cgroupv1.Write {
	var out []*cgroupv1.Write
	for _, op := range ops {
		create := op.Kind == cgroup.Create
		if create && len(op.Writes) == 0 {
			out = append(out, &cgroupv1.Write{Cgroup: op.Name.String(), Create: true})
		}
		for _, w := range op.Writes {
			out = append(out, &cgroupv1.Write{Cgroup: op.Name.String(), File: w.File, OldValue: w.Old, NewValue: w.New, Create: create})
			create = false
		}
	}
	return out
}

// Package ocicgroups writes the values of cgroups with the library of the Open Container Initiative.
package ocicgroups

import (
	"slices"
	"strings"

	"github.com/opencontainers/cgroups"
	cgroupsv1 "github.com/opencontainers/cgroups/fs"
	cgroupsv2 "github.com/opencontainers/cgroups/fs2"

	"github.com/berthd/berth/managers/cgroup"
)

// Setter implements cgroupfs.Setter.
type Setter struct{}

// SetV1 implements cgroupfs.Setter.
func (Setter) SetV1(v cgroup.Values, f cgroup.Facts, paths map[string]string) error {
	r := request(v, f)
	m, err := cgroupsv1.NewManager(&cgroups.Cgroup{Resources: r}, paths)
	if err != nil {
		return err
	}
	return m.Set(r)
}

// SetV2 implements cgroupfs.Setter.
func (Setter) SetV2(v cgroup.Values, f cgroup.Facts, dir string) error {
	r := request(v, f)
	m, err := cgroupsv2.NewManager(&cgroups.Cgroup{Resources: r}, dir)
	if err != nil {
		return err
	}
	return m.Set(r)
}

// Join implements cgroupfs.Setter.
func (Setter) Join(dir string, pid int) error { return cgroups.WriteCgroupProc(dir, pid) }

// request converts values for the library, in which zero means "leave as it is". Device rules are
// never requested. The library does not freeze, because it would wait for the result.
func request(v cgroup.Values, f cgroup.Facts) *cgroups.Resources {
	v = v.For(f)
	r := &cgroups.Resources{
		SkipDevices:     true,
		SkipFreezeOnSet: true,
		CpuShares:       value(v.CPUShares),
		CpuWeight:       value(v.CPUWeight),
		CpuQuota:        value(v.CPUQuotaUS),
		CpuPeriod:       value(v.CPUPeriodUS),
		Memory:          value(v.MemoryBytes),
		MemorySwap:      value(v.MemorySwapBytes),
		PidsLimit:       v.PIDs,
		CpusetCpus:      v.CPUs.String(),
		CpusetMems:      v.Mems.String(),
		Unified:         v.Unified,
	}
	for size, limit := range v.HugePages {
		if limit < 0 {
			limit = unlimitedHugePages
		}
		r.HugetlbLimit = append(r.HugetlbLimit, &cgroups.HugepageLimit{
			Pagesize: cgroup.HugePageLabel(size), Limit: uint64(limit),
		})
	}
	slices.SortFunc(r.HugetlbLimit, func(a, b *cgroups.HugepageLimit) int { return strings.Compare(a.Pagesize, b.Pagesize) })
	return r
}

// unlimitedHugePages is a number that the kernel cuts to its own largest one.
const unlimitedHugePages = 1<<63 - 1

func value[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

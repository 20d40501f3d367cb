package cgroups

import (
	"errors"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	cgroupv1 "github.com/berthd/berth/api/berth/cgroup/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/numa"
)

func optional[T any](t *rapid.T, label string, g *rapid.Generator[T]) *T {
	if !rapid.Bool().Draw(t, label+"?") {
		return nil
	}
	v := g.Draw(t, label)
	return &v
}

// limits are valid limits from a number on.
func limits(least int64) *rapid.Generator[int64] {
	return rapid.OneOf(rapid.Just(cgroup.Unlimited), rapid.Int64Range(least, 1<<60))
}

// Values survive the way there and back.
func TestCgroupValuesRoundTrip(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		v := cgroup.Values{
			CPUShares:       optional(t, "shares", rapid.Uint64Range(2, 262144)),
			CPUWeight:       optional(t, "weight", rapid.Uint64Range(1, 10000)),
			CPUQuotaUS:      optional(t, "quota", limits(1000)),
			CPUPeriodUS:     optional(t, "period", rapid.Uint64Range(1000, 1000000)),
			MemoryBytes:     optional(t, "memory", limits(1)),
			MemorySwapBytes: optional(t, "swap", limits(1)),
			PIDs:            optional(t, "pids", limits(0)),
			HugePages:       rapid.MapOf(rapid.SampledFrom([]int64{2 << 20, 1 << 30}), limits(0)).Draw(t, "huge pages"),
			Unified: rapid.MapOf(rapid.SampledFrom([]string{"memory.min", "memory.high"}),
				rapid.StringMatching(`[0-9]{1,9}|max`)).Draw(t, "unified"),
			Cpuset: cgroup.Cpuset{CPUs: cpuset.Of(rapid.SliceOf(rapid.IntRange(0, 99)).Draw(t, "cpus")...),
				Mems: numa.Mask(rapid.Uint64().Draw(t, "mems"))},
		}
		wire, err := proto.Marshal(Values(v))
		if err != nil {
			t.Fatal(err)
		}
		var m typesv1.LinuxResources
		if err := proto.Unmarshal(wire, &m); err != nil {
			t.Fatal(err)
		}
		got, err := ReadValues("resources", &m)
		if err != nil {
			t.Fatal(err)
		}
		if len(v.HugePages) == 0 {
			v.HugePages, got.HugePages = nil, nil
		}
		if len(v.Unified) == 0 {
			v.Unified, got.Unified = nil, nil
		}
		if !reflect.DeepEqual(got, v) {
			t.Errorf("got %+v, want %+v", got, v)
		}
	})
}

func TestBadCgroupValues(t *testing.T) {
	t.Parallel()
	p := func(n int64) *int64 { return &n }
	u := func(n uint64) *uint64 { return &n }
	m := &typesv1.LinuxResources{
		CpuShares: u(1), CpuWeight: u(10001), CpuQuotaMicroseconds: p(999), CpuPeriodMicroseconds: u(1), MemoryLimitBytes: p(0),
		MemorySwapLimitBytes: p(-2), PidsLimit: p(-2),
		HugepageLimits: []*typesv1.HugepageLimit{{PageSizeBytes: 2 << 20, LimitBytes: p(-7)}, {LimitBytes: p(1)},
			{PageSizeBytes: 1 << 30}, {PageSizeBytes: 2 << 20, LimitBytes: p(1)}},
		OomScoreAdj: proto.Int32(1),
		Unified:     map[string]string{"../escape": "1", "cgroup.procs": "1", "": "1", ".hidden": "1"},
		CpusetCpus:  &typesv1.CPUSet{List: "3-1"}, CpusetMems: &typesv1.NUMANodeSet{Ids: []uint32{64}},
	}
	_, err := ReadValues("resources", m)
	fe := new(errdefs.Error)
	if !errors.As(err, &fe) || fe.Class != errdefs.Invalid {
		t.Fatalf("got %v", err)
	}
	var fields []string
	for _, v := range fe.Fields {
		fields = append(fields, strings.TrimPrefix(v.Field, "resources."))
	}
	want := []string{
		"cpuset_cpus.list", "cpuset_mems", "oom_score_adj", "hugepage_limits[0].limit_bytes", "hugepage_limits[1].page_size_bytes",
		"hugepage_limits[2].limit_bytes",
		"hugepage_limits[3].page_size_bytes", "cpu_shares", "cpu_weight", "cpu_period_microseconds", "cpu_quota_microseconds",
		"memory_limit_bytes", "memory_swap_limit_bytes", "pids_limit",
		`unified[""]`, `unified["../escape"]`, `unified[".hidden"]`, `unified["cgroup.procs"]`,
	}
	if !slices.Equal(fields, want) {
		t.Errorf("got %q, want %q", fields, want)
	}
	if v, err := ReadValues("resources", nil); err != nil || !reflect.DeepEqual(v, cgroup.Values{}) {
		t.Errorf("no values: %+v, %v", v, err)
	}
}

func TestCgroupName(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]cgroup.Name{
		"/kubepods/poda": {"kubepods", "poda"}, "kubepods": {"kubepods"}, "/": {},
	} {
		if got, err := Name("name", text); err != nil || !got.Equal(want) {
			t.Errorf("%q: %q, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "/a//b", "/a/", "/a/../b", "/" + strings.Repeat("a/", 3000)} {
		if _, err := Name("name", text); errdefs.ClassOf(err) != errdefs.Invalid {
			t.Errorf("%.20q: %v", text, err)
		}
	}
}

func TestCgroupWrites(t *testing.T) {
	t.Parallel()
	ops := []cgroup.Op{
		{Kind: cgroup.Create, Name: cgroup.Name{"a"}, Writes: []cgroup.Write{{File: "x", New: "1"}, {File: "y", New: "2"}}},
		{Kind: cgroup.Create, Name: cgroup.Name{"b"}},
		{Kind: cgroup.Set, Name: cgroup.Name{"c"}, Writes: []cgroup.Write{{File: "x", Old: "1", New: "2"}}},
	}
	want := []*cgroupv1.Write{
		{Cgroup: "/a", File: "x", NewValue: "1", Create: true}, {Cgroup: "/a", File: "y", NewValue: "2"},
		{Cgroup: "/b", Create: true}, {Cgroup: "/c", File: "x", OldValue: "1", NewValue: "2"},
	}
	got := Writes(ops)
	if !slices.EqualFunc(got, want, func(a, b *cgroupv1.Write) bool { return proto.Equal(a, b) }) {
		t.Errorf("got %v, want %v", got, want)
	}
	for state := range maps.Keys(cgroupStates) {
		if State(state) == cgroupv1.State_STATE_UNSPECIFIED {
			t.Errorf("%s has no message form", state)
		}
	}
}

package cgroup_test

import (
	"maps"
	"strings"
	"testing"

	"github.com/berthd/berth/managers/cgroup"
)

// Of shared memory, only what is mapped counts: not files of a tmpfs, and not mapped files of disks.
func TestMappedBytes(t *testing.T) {
	t.Parallel()
	for text, row := range map[string]struct {
		want    map[int]uint64
		failure string // a part of it
	}{
		"anon N0=1 N1=2\nfile N0=500 N1=500\nshmem N0=100 N1=20\nfile_mapped N0=40 N1=30\n": {map[int]uint64{0: 41, 1: 22}, ""},
		"anon N0=1\nanon_thp N0=9\nunknown\n":                                               {map[int]uint64{0: 1}, ""},
		"anon N0=1\nshmem N0=100\n":                                                         {map[int]uint64{0: 1}, ""},
		"file N0=1\n":                                                                       {nil, "no line of anonymous memory"},
		"anon N0=x\n":                                                                       {nil, "memory.numa_stat has"},
		"anon N64=1\n":                                                                      {nil, "memory.numa_stat has"},
		"anon N0=1\nshmem N-1=1\n":                                                          {nil, "memory.numa_stat has"},
	} {
		got, err := cgroup.MappedBytes(text)
		if !maps.Equal(got, row.want) || (err != nil) != (row.failure != "") || err != nil && !strings.Contains(err.Error(), row.failure) {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
}

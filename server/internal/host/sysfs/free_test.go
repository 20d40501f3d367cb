package sysfs_test

import (
	"reflect"
	"testing"
	"testing/fstest"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/server/internal/host/sysfs"
)

func TestFreeHugePages(t *testing.T) {
	t.Parallel()
	pages := func(sizeKiB, count uint64) machine.HugePages {
		return machine.HugePages{SizeKiB: sizeKiB, Count: count}
	}
	for _, row := range []struct {
		name  string
		files map[string]string
		want  []machine.Node
	}{
		{"nodes with gaps", map[string]string{
			"devices/system/node/node0/hugepages/hugepages-2048kB/free_hugepages":     "5\n",
			"devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages":       "8\n",
			"devices/system/node/node0/hugepages/hugepages-1048576kB/free_hugepages":  "0\n",
			"devices/system/node/node10/hugepages/hugepages-2048kB/free_hugepages":    "512\n",
			"devices/system/node/node10/hugepages/hugepages-2048kB/surplus_hugepages": "1\n",
			"devices/system/node/node3/meminfo":                                       "Node 3 MemTotal: 16 kB\n",
			"kernel/mm/hugepages/hugepages-2048kB/free_hugepages":                     "517\n",
		}, []machine.Node{
			{ID: 0, HugePages: []machine.HugePages{pages(2048, 5), pages(1048576, 0)}},
			{ID: 10, HugePages: []machine.HugePages{pages(2048, 512)}},
			{ID: 3},
		}},
		{"no nodes", map[string]string{"kernel/mm/hugepages/hugepages-2048kB/free_hugepages": "7\n"},
			[]machine.Node{{HugePages: []machine.HugePages{pages(2048, 7)}}}},
		{"no huge pages", map[string]string{"devices/system/node/node1/cpulist": "0\n"}, []machine.Node{{ID: 1}}},
	} {
		sys := fstest.MapFS{}
		for name, text := range row.files {
			sys[name] = &fstest.MapFile{Data: []byte(text)}
		}
		if got, err := sysfs.FreeHugePages(sys); err != nil || !reflect.DeepEqual(got, row.want) {
			t.Errorf("%s: got %+v, %v; want %+v", row.name, got, err, row.want)
		}
	}
	for name, files := range map[string]fstest.MapFS{
		"no number": {"devices/system/node/node0/hugepages/hugepages-2048kB/free_hugepages": {Data: []byte("many")}},
		"no nodes":  {"kernel/mm/hugepages/hugepages-2048kB/free_hugepages": {Data: []byte("-1")}},
	} {
		if _, err := sysfs.FreeHugePages(files); err == nil || errdefs.ClassOf(err) != errdefs.Corrupt {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestHugePagesInUse: surplus pages are in use, and a page that is freed between the two readings is not.
func TestHugePagesInUse(t *testing.T) {
	t.Parallel()
	sys := fstest.MapFS{}
	for name, text := range map[string]string{
		"node0/hugepages/hugepages-2048kB/nr_hugepages":      "8\n",
		"node0/hugepages/hugepages-2048kB/free_hugepages":    "5\n",
		"node0/hugepages/hugepages-2048kB/surplus_hugepages": "1\n",
		"node2/hugepages/hugepages-2048kB/nr_hugepages":      "4\n",
		"node2/hugepages/hugepages-2048kB/free_hugepages":    "6\n",
		"node2/hugepages/hugepages-1048576kB/nr_hugepages":   "2\n",
		"node2/hugepages/hugepages-1048576kB/free_hugepages": "0\n",
	} {
		sys["devices/system/node/"+name] = &fstest.MapFile{Data: []byte(text)}
	}
	want := []machine.Node{
		{ID: 0, HugePages: []machine.HugePages{{SizeKiB: 2048, Count: 3}}},
		{ID: 2, HugePages: []machine.HugePages{{SizeKiB: 2048}, {SizeKiB: 1 << 20, Count: 2}}},
	}
	if got, err := sysfs.HugePagesInUse(sys); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
	delete(sys, "devices/system/node/node0/hugepages/hugepages-2048kB/free_hugepages")
	if _, err := sysfs.HugePagesInUse(sys); err == nil {
		t.Error("no number of free pages")
	}
}

func TestFree(t *testing.T) {
	t.Parallel()
	meminfo := []byte("Node 0 MemTotal: 64 kB\nNode 0 MemFree:  16 kB\n")
	sys := fstest.MapFS{
		"devices/system/node/node0/meminfo":                                   {Data: meminfo},
		"devices/system/node/node0/hugepages/hugepages-2048kB/free_hugepages": {Data: []byte("5\n")},
		"devices/system/node/node2/hugepages/hugepages-2048kB/free_hugepages": {Data: []byte("0\n")},
		"devices/system/node/node2/hugepages/hugepages-2048kB/nr_hugepages":   {Data: []byte("1\n")},
	}
	want := []machine.Node{
		{ID: 0, MemoryBytes: 16 << 10, HugePages: []machine.HugePages{{SizeKiB: 2048, Count: 5}}},
		{ID: 2, HugePages: []machine.HugePages{{SizeKiB: 2048}}},
	}
	if got, err := sysfs.Free(sys); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
	sys["devices/system/node/node2/meminfo"] = &fstest.MapFile{Data: []byte("Node 2 MemTotal: 64 kB\n")}
	if _, err := sysfs.Free(sys); errdefs.ClassOf(err) != errdefs.Corrupt {
		t.Errorf("a meminfo without MemFree: %v", err)
	}
}

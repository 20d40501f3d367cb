package main

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/numa"
)

// reader returns a reader of a directory with the files of some cgroups. Process 7 is in the cgroup own.
func reader(t *testing.T, own string, files map[string]string) *memoryReader {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	r, err := newMemoryReader(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.root.Close() })
	r.procOf = func(pid int) ([]byte, error) {
		if pid != 7 {
			return nil, fs.ErrNotExist
		}
		return []byte("0::" + own + "\n"), nil
	}
	return r
}

const numaStat = "anon N0=4096 N1=25165824\nfile N0=1 N1=2\nanon_thp N0=9 N1=9\nshmem N0=100 N1=20\nfile_mapped N0=40 N1=30\n"

// The cgroup of a container is found with both drivers. One that does not show the memory of the process is an error.
func TestMemoryOfContainers(t *testing.T) {
	t.Parallel()
	const plain, scope = "kubepods/poda/c1", "kubepods.slice/kubepods-poda.slice/cri-containerd-c1.scope"
	files := map[string]string{
		"cgroup.controllers":   "cpuset memory\n",
		plain + "/cpuset.mems": "1\n", plain + "/memory.numa_stat": numaStat,
		scope + "/cpuset.mems": "0-1\n", scope + "/memory.numa_stat": numaStat,
		"kubepods/poda/empty/cpuset.mems": "\n", "kubepods/poda/empty/memory.numa_stat": numaStat,
		"kubepods/poda/odd/cpuset.mems": "0\n", "kubepods/poda/odd/memory.numa_stat": "anon N0=x\n",
		"kubepods/poda/old/cpuset.mems": "0\n", "kubepods/poda/old/memory.numa_stat": "file N0=1\n",
	}
	for name, row := range map[string]struct {
		literal, own string
		pid          int
		nodes        numa.Mask
		failure      string // a part of it
	}{
		"cgroupfs":            {"/" + plain, "/" + plain, 7, numa.Of(1), ""},
		"below it":            {"/" + plain, "/" + plain + "/init.scope", 7, numa.Of(1), ""},
		"a cgroup namespace":  {"/" + plain, "/../../poda/c1", 7, numa.Of(1), ""},
		"systemd":             {"kubepods-poda.slice:cri-containerd:c1", "/" + scope, 7, numa.Of(0, 1), ""},
		"before the process":  {"/" + plain, "", 0, numa.Of(1), ""},
		"ended":               {"/" + plain, "", 8, 0, "not exist"},
		"elsewhere":           {"/" + plain, "/kubepods/poda/c11", 7, 0, "is not in the container's cgroup"},
		"no cgroup":           {"/kubepods/poda/c2", "/kubepods/poda/c2", 7, 0, "no such file"},
		"all nodes":           {"/kubepods/poda/empty", "/kubepods/poda/empty", 7, 0, "no memory nodes of its own"},
		"another format":      {"/kubepods/poda/odd", "/kubepods/poda/odd", 7, 0, "memory.numa_stat has"},
		"no anonymous memory": {"/kubepods/poda/old", "/kubepods/poda/old", 7, 0, "has no line of anonymous memory"},
		"no name":             {"", "/", 7, 0, "expected the name of a container's cgroup"},
		"the root":            {"/", "/", 7, 0, "expected the name of a container's cgroup"},
		"upwards":             {"/kubepods/../kubepods/poda/c1", "/" + plain, 7, 0, "expected the name of a directory"},
		"a slice upwards":     {"../kubepods-poda.slice:cri-containerd:../c1", "/" + plain, 7, 0, ""},
	} {
		got, err := reader(t, row.own, files).of(row.literal, row.pid)
		switch {
		case name == "a slice upwards":
			if err == nil {
				t.Errorf("%s: %v", name, got)
			}
		case row.failure != "":
			if err == nil || !strings.Contains(err.Error(), row.failure) {
				t.Errorf("%s: %v, %v", name, got, err)
			}
		case err != nil || got.Nodes != row.nodes || !maps.Equal(got.Bytes, map[int]uint64{0: 4096 + 40, 1: 24<<20 + 20}):
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
}

// A link does not lead out of the directory of cgroups.
func TestMemoryOfLinks(t *testing.T) {
	t.Parallel()
	outside := t.TempDir()
	for name, text := range map[string]string{"cpuset.mems": "1\n", "memory.numa_stat": numaStat} {
		if err := os.WriteFile(filepath.Join(outside, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	r := reader(t, "/kubepods/c1", map[string]string{"cgroup.controllers": "", "kubepods/x": ""})
	if err := os.Symlink(outside, filepath.Join(r.root.Name(), "kubepods", "c1")); err != nil {
		t.Fatal(err)
	}
	if got, err := r.of("/kubepods/c1", 7); err == nil {
		t.Errorf("got %v", got)
	}
}

// With cgroup v1 no memory of a runtime's container moves.
func TestMemoryOfV1(t *testing.T) {
	t.Parallel()
	_, err := reader(t, "/kubepods/c1", map[string]string{"cpuset/kubepods/c1/cpuset.mems": "0\n"}).of("/kubepods/c1", 7)
	if errdefs.ClassOf(err) != errdefs.Unsupported || !strings.Contains(err.Error(), "cgroup v1") || errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

// FuzzMemory: whatever the files and names are, the answer has nodes that there can be, and names do not lead upwards.
func FuzzMemory(f *testing.F) {
	f.Add(numaStat, "kubepods-poda.slice:cri-containerd:c1")
	f.Add("anon N64=1", "/a/../b")
	f.Fuzz(func(t *testing.T, text, literal string) {
		if bytes, err := cgroup.MappedBytes(text); err == nil {
			for id := range bytes {
				if id < 0 || id >= numa.MaxNodes {
					t.Errorf("node %d", id)
				}
			}
		}
		name, err := containerCgroup(literal)
		if err != nil {
			return
		}
		if len(name) < 2 || !filepath.IsLocal(filepath.Join(name...)) {
			t.Errorf("%q", name)
		}
	})
}

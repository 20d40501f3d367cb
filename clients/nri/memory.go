package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"

	"github.com/berthd/berth/clients/nri/policy"
	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/numa"
)

// memoryReader reads where the memory of containers is: Documentation/admin-guide/cgroup-v2.rst of the kernel, cpuset.mems
// and memory.numa_stat. It never writes.
type memoryReader struct {
	// root is where cgroups are mounted. No name leads out of it.
	root *os.Root
	// immovable is why no memory moves on this machine; nil if it does.
	immovable error
	// procOf reads /proc/PID/cgroup.
	procOf func(pid int) ([]byte, error)
}

// newMemoryReader opens the directory where cgroups are mounted.
func newMemoryReader(dir string) (*memoryReader, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("--cgroups: %w", err)
	}
	r := &memoryReader{root: root, procOf: func(pid int) ([]byte, error) { return os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid)) }}
	kernel, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return nil, fmt.Errorf("read the kernel's version: %w", err)
	}
	if _, err := root.Stat("cgroup.controllers"); errors.Is(err, fs.ErrNotExist) {
		r.immovable = errdefs.Unsupportedf("with cgroup v1, the kernel moves memory to other NUMA nodes only in cgroups with cpuset.memory_migrate, which a container runtime does not set")
	} else if !cgroup.MovesMemoryV2(string(kernel)) {
		r.immovable = errdefs.Unsupportedf("with cgroup v2, the kernel moves memory to other NUMA nodes from Linux 5.15 on")
	}
	return r, nil
}

// of implements policy.Host.Memory.
func (r *memoryReader) of(literal string, pid int) (out policy.Memory, err error) {
	if r.immovable != nil {
		return out, r.immovable
	}
	name, err := containerCgroup(literal)
	if err != nil {
		return out, err
	}
	if pid != 0 {
		// The memory of processes elsewhere is not counted there.
		text, err := r.procOf(pid)
		if err != nil {
			return out, err
		}
		if base := name[len(name)-1]; !inCgroup(string(text), base) {
			return out, errdefs.Preconditionf("process %d is not in the container's cgroup %q", pid, base)
		}
	}
	dir := path.Join(name...)
	text, err := r.root.ReadFile(path.Join(dir, "cpuset.mems"))
	if err != nil {
		return out, err
	}
	if out.Nodes, err = numa.Parse(strings.TrimSpace(string(text))); err != nil {
		return out, errdefs.Internalf("cpuset.mems of cgroup %q: %w", dir, err)
	}
	if out.Nodes.IsEmpty() {
		return out, errdefs.Preconditionf("cgroup %q has no memory nodes of its own", dir)
	}
	if text, err = r.root.ReadFile(path.Join(dir, "memory.numa_stat")); err != nil {
		return out, err
	}
	out.Bytes, err = cgroup.MappedBytes(string(text))
	return out, err
}

// containerCgroup returns the cgroup of a container. NRI names it as the OCI runtime does: by its path, or for systemd as
// SLICE:PREFIX:NAME, whose scope is in that slice.
func containerCgroup(literal string) (cgroup.Name, error) {
	name := cgroup.ParseCgroupfs(literal)
	if parts := strings.Split(literal, ":"); len(parts) == 3 {
		dir, err := cgroup.ParseSystemd(parts[0]).ToSystemd()
		if err != nil {
			return nil, err
		}
		name = append(cgroup.ParseCgroupfs(dir), parts[1]+"-"+parts[2]+".scope")
	}
	if len(name) < 2 {
		return nil, errdefs.Invalidf("cgroup %q: expected the name of a container's cgroup below another one", literal)
	}
	return name, name.Check()
}

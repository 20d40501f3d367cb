package cluster

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

const mount = "/sys/fs/cgroup"

// makeCgroup creates a cgroup in every hierarchy, and one below it for the cluster's programs. A cgroup
// of version 1 can have no process before it has CPUs and memory nodes (cpusets(7)), so it gets those of
// its parent.
func makeCgroup(path string) error {
	hierarchies, err := hierarchies()
	if err != nil {
		return err
	}
	for _, hierarchy := range hierarchies {
		parent := hierarchy
		for _, dir := range []string{filepath.Join(hierarchy, path), filepath.Join(hierarchy, path, "programs")} {
			if err := os.Mkdir(dir, 0o755); err != nil {
				return err
			}
			if err := inherit(parent, dir); err != nil {
				return err
			}
			parent = dir
		}
		if err := prefer(filepath.Join(hierarchy, path)); err != nil {
			return err
		}
	}
	return nil
}

// restrict lets the cluster's programs run on some CPUs. Pods are in other cgroups.
func restrict(path, cpus string) error {
	hierarchies, err := hierarchies()
	if err != nil {
		return err
	}
	for _, hierarchy := range hierarchies {
		if hierarchy == mount {
			for _, parent := range []string{"", path} {
				if err := os.WriteFile(filepath.Join(mount, parent, "cgroup.subtree_control"), []byte("+cpuset"), 0); err != nil {
					return err
				}
			}
		}
		file := filepath.Join(hierarchy, path, "programs", "cpuset.cpus")
		if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) {
			continue // of another controller
		}
		if err := os.WriteFile(file, []byte(cpus), 0); err != nil {
			return err
		}
	}
	return nil
}

// hierarchies lists where cgroups are mounted: one for each controller, or a single one for all. On a
// hybrid machine the hierarchy of version 2 has no controllers and is not used.
func hierarchies() (dirs []string, err error) {
	if _, err := os.Stat(filepath.Join(mount, "cgroup.controllers")); err == nil {
		return []string{mount}, nil
	}
	entries, err := os.ReadDir(mount)
	for _, e := range entries {
		dir := filepath.Join(mount, e.Name())
		if _, err := os.Stat(filepath.Join(dir, "cgroup.controllers")); e.IsDir() && errors.Is(err, fs.ErrNotExist) {
			dirs = append(dirs, dir)
		}
	}
	return dirs, err
}

// prefer gives a cgroup a large share of the CPUs. By default all programs of the cluster together get as much as one process
// of the machine's that is in no cgroup.
func prefer(dir string) error {
	for name, share := range map[string]string{"cpu.shares": "102400", "cpu.weight": "4000"} {
		path := filepath.Join(dir, name)
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err := os.WriteFile(path, []byte(share), 0); err != nil {
			return err
		}
	}
	return nil
}

// inherit copies the CPUs and memory nodes of a cgroup's parent.
func inherit(parent, dir string) error {
	for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
		value, err := os.ReadFile(filepath.Join(parent, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), value, 0)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/errdefs"
)

// podQuota changes the CPU quotas of pods' cgroups: cgroups(7), Documentation/scheduler/sched-bwc.rst and
// Documentation/admin-guide/cgroup-v2.rst of the kernel.
type podQuota struct {
	root *os.Root
	// file has the quota; version 2 has the period in it too, and calls no quota max.
	file, none string
}

// newPodQuota opens the directory where cgroups are mounted, or with version 1 the controllers.
func newPodQuota(dir string) (*podQuota, error) {
	q := &podQuota{file: "cpu.max", none: "max"}
	if _, err := os.Stat(path.Join(dir, "cgroup.controllers")); errors.Is(err, fs.ErrNotExist) {
		dir, q.file, q.none = path.Join(dir, "cpu"), "cpu.cfs_quota_us", "-1"
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("--cgroups: %w", err)
	}
	q.root = root
	return q, nil
}

// set implements policy.Host.PodQuota. The name of the cgroup is the runtime's: only the cgroup of a pod, as a kubelet
// names it, is read or changed.
func (q *podQuota) set(literal string, quota int64) (before int64, err error) {
	name, dir := cgroup.ParseCgroupfs(literal), literal
	if cgroup.IsSystemdStyle(literal) {
		name = cgroup.ParseSystemd(literal)
		if dir, err = name.ToSystemd(); err != nil {
			return 0, err
		}
	}
	if len(name) < 2 || !strings.HasPrefix(name[len(name)-1], "pod") {
		return 0, errdefs.Invalidf("cgroup %q: expected the name of a pod's cgroup below another one", literal)
	}
	file := strings.TrimPrefix(path.Join(dir, q.file), "/")
	text, err := q.root.ReadFile(file)
	if err != nil {
		return 0, err
	}
	value, _, _ := strings.Cut(strings.TrimSpace(string(text)), " ")
	if value == q.none {
		before = -1
	} else if before, err = strconv.ParseInt(value, 10, 64); err != nil {
		return 0, errdefs.Internalf("%s: %w", file, err)
	}
	if before == quota || quota == 0 {
		return before, nil
	}
	value = q.none
	if quota >= 0 {
		value = strconv.FormatInt(quota, 10)
	}
	return before, q.write(file, value)
}

func (q *podQuota) write(file, value string) error {
	f, err := q.root.OpenFile(file, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}

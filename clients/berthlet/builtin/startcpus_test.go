//go:build linux && cgo

package builtin_test

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/opencontainers/cgroups"

	"github.com/berthd/berth/clients/berthlet/container"
	"github.com/berthd/berth/hack/overlap"
	"github.com/berthd/berth/hack/testing/nodetest"
	"github.com/berthd/berth/managers/cpuset"
)

// cpusets is the hierarchy of cpusets.
func cpusets() string {
	if cgroups.IsCgroup2UnifiedMode() {
		return "/sys/fs/cgroup"
	}
	return "/sys/fs/cgroup/cpuset"
}

// needTwo skips what takes two CPUs and cgroups for them.
func needTwo(t *testing.T) {
	t.Helper()
	needRoot(t)
	if runtime.NumCPU() < 2 {
		t.Skipf("needs 2 CPUs; here are %d", runtime.NumCPU())
	}
	if cgroups.IsCgroup2UnifiedMode() {
		if text, err := os.ReadFile("/sys/fs/cgroup/cgroup.subtree_control"); err != nil || !strings.Contains(string(text), "cpuset") {
			t.Skipf("needs the controller cpuset: /sys/fs/cgroup/cgroup.subtree_control has %q, %v", text, err)
		}
	}
}

// narrow makes the cgroup of the pod with one CPU.
func (b *bench) narrow(t *testing.T, cpu string) {
	t.Helper()
	dir := filepath.Join(cpusets(), b.cgroup)
	must(t, os.MkdirAll(dir, 0o755))
	mems, err := os.ReadFile(filepath.Join(filepath.Dir(dir), "cpuset.mems"))
	if err == nil && len(strings.TrimSpace(string(mems))) > 0 {
		must(t, os.WriteFile(filepath.Join(dir, "cpuset.mems"), mems, 0))
	}
	must(t, os.WriteFile(filepath.Join(dir, "cpuset.cpus"), []byte(cpu), 0))
}

// allowed gives the CPUs of a process's threads.
func allowed(t *testing.T, pid int) (lists []string) {
	t.Helper()
	files, err := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/task/*/status")
	must(t, err)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // a thread that has ended
		}
		_, rest, _ := strings.Cut(string(text), "\nCpus_allowed_list:")
		list, _, _ := strings.Cut(rest, "\n")
		lists = append(lists, strings.TrimSpace(list))
	}
	return lists
}

// TestStartCPUs looks where a container's process waits for its start, and that its
// program has the CPUs of the cgroup.
func TestStartCPUs(t *testing.T) {
	t.Parallel()
	needTwo(t)
	all := "0-" + strconv.Itoa(runtime.NumCPU()-1)
	for _, row := range []struct {
		name    string
		choices []string
		pod     string // the only CPU of the pod's cgroup
		want    string
	}{
		{"the first choice", []string{"0", "1"}, "", "0"},
		{"the pod has no CPU of the first", []string{"0", "1"}, "1", "1"},
		{"no choice", nil, "", all},
		{"CPUs that there are not", []string{"4000"}, "", "error"},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			b := open(t)
			b.pod(t)
			if row.pod != "" {
				b.narrow(t, row.pod)
			}
			s := b.spec("a", "show", ",", "wait")
			s.StartCPUs = row.choices
			err := b.Create(ctx(t), s)
			if row.want == "error" {
				if err == nil || !strings.Contains(err.Error(), "CPUs 4000") {
					t.Errorf("create: %v", err)
				}
				must(t, b.Close(ctx(t), "u1"))
				return
			}
			must(t, err)
			for _, list := range allowed(t, b.until(t, "a", container.Created).PID) {
				if list != row.want {
					t.Errorf("the process waits on CPUs %s, want %s", list, row.want)
				}
			}
			own := all
			if row.pod != "" {
				own = row.pod
			}
			must(t, os.WriteFile(filepath.Join(cpusets(), s.CgroupPath, "cpuset.cpus"), []byte(own), 0))
			must(t, b.Start(ctx(t), "a"))
			must(t, said(ctx(t), s))
			must(t, nodetest.Await(ctx(t), func() bool {
				text, _ := os.ReadFile(s.LogPath)
				return strings.Contains(string(text), " waits\n")
			}))
			text, err := os.ReadFile(s.LogPath)
			must(t, err)
			if !strings.Contains(string(text), " affinity="+own+"\n") {
				t.Errorf("the program's CPUs are not %s:\n%s", own, text)
			}
			must(t, b.Remove(ctx(t), "a"))
			must(t, b.Close(ctx(t), "u1"))
		})
	}
}

// TestStartOverlaps records from their first instructions on where processes run that
// wait for their start, beside a container that holds a CPU.
func TestStartOverlaps(t *testing.T) {
	t.Parallel()
	needTwo(t)
	b := open(t)
	b.pod(t)
	d, err := overlap.Start(overlap.Config{
		Container: func(cgroup string) string {
			name, ours := strings.CutPrefix(cgroup, b.cgroup+"/")
			if !ours {
				return ""
			}
			return name
		},
		CPUs: cpuset.Of(1), FromBirth: true, Method: overlap.Trace,
	})
	if err != nil {
		t.Skipf("needs the kernel's events: %v", err)
	}
	d.Hold("holder", cpuset.Of(1))
	holder := b.spec("holder", "pulse", "5ms")
	must(t, b.Create(ctx(t), holder))
	must(t, os.WriteFile(filepath.Join(cpusets(), holder.CgroupPath, "cpuset.cpus"), []byte("1"), 0))
	must(t, b.Start(ctx(t), "holder"))
	b.until(t, "holder", container.Running)
	for i := range 5 {
		s := b.spec(fmt.Sprintf("c%d", i), "wait")
		s.StartCPUs = []string{"0"}
		must(t, b.Create(ctx(t), s))
		must(t, b.Remove(ctx(t), s.ID))
	}
	r, err := d.Stop()
	must(t, err)
	if len(r.Overlaps) > 0 || r.Holders != 1 || r.Lost > 0 {
		t.Error(r)
	}
	must(t, b.Remove(ctx(t), "holder"))
	must(t, b.Close(ctx(t), "u1"))
}

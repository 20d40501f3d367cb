package kubeletnode_test

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger/kubelet"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/server/internal/kubeletnode"
)

const (
	v2Pod = "sys/fs/cgroup/below.slice/below-kubepods.slice/below-kubepods-burstable.slice/below-kubepods-burstable-podu_1.slice/"
	v1Pod = "below/kubepods/burstable/podu-1/"
)

// TestRunning: containers are read from both versions of cgroups and for both drivers, below the configured root.
func TestRunning(t *testing.T) {
	t.Parallel()
	for name, files := range map[string]map[string]string{
		"v2": {
			"sys/fs/cgroup/cgroup.controllers":                         "cpuset cpu",
			v2Pod + "cpuset.mems.effective":                            "0-1",
			v2Pod + "crio-conmon-abc.scope/cgroup.procs":               "9",
			v2Pod + "cri-containerd-abc.scope/cpuset.cpus.effective":   "2-3",
			v2Pod + "cri-containerd-abc.scope/cpu.max":                 "50000 100000",
			v2Pod + "cri-containerd-abc.scope/cgroup.procs":            "",
			v2Pod + "cri-containerd-abc.scope/init.scope/cgroup.procs": "7\nx\n",
		},
		"v2, crun": {
			"sys/fs/cgroup/cgroup.controllers":                       "cpuset cpu",
			v2Pod + "cpuset.mems.effective":                          "0-1",
			v2Pod + "crio-abc.scope/cpuset.cpus.effective":           "0-7",
			v2Pod + "crio-abc.scope/cpu.max":                         "max 100000",
			v2Pod + "crio-abc.scope/cgroup.procs":                    "",
			v2Pod + "crio-abc.scope/container/cpuset.cpus.effective": "2-3",
			v2Pod + "crio-abc.scope/container/cpu.max":               "50000 100000",
			v2Pod + "crio-abc.scope/container/cgroup.procs":          "7",
		},
		"v1": {
			"sys/fs/cgroup/cpuset/" + v1Pod + "abc/cpuset.cpus":            "2-3",
			"sys/fs/cgroup/cpuset/" + v1Pod + "abc/cpuset.mems":            "0-1",
			"sys/fs/cgroup/cpuset/" + v1Pod + "abc/cgroup.procs":           "7",
			"sys/fs/cgroup/cpuset/" + v1Pod + "crio-conmon-1/cgroup.procs": "9",
			"sys/fs/cgroup/cpu/" + v1Pod + "abc/cpu.cfs_quota_us":          "50000",
		},
	} {
		root := fstest.MapFS{}
		for file, text := range files {
			root[file] = &fstest.MapFile{Data: []byte(text)}
		}
		for file, text := range map[string]string{
			"proc/uptime":          "100.50 1.00",
			"proc/7/stat":          "7 (a) b) S " + strings.Repeat("1 ", 18) + "9000 5",
			"proc/7/task/7/status": "Name:\ta) b\nCpus_allowed_list:\t2-3\n",
			"proc/7/task/8/status": "Name:\ta) b\nCpus_allowed_list:\t2-3\n",
			"proc/7/task/9/status": "Name:\tworker\nCpus_allowed_list:\t3\n",
		} {
			root[file] = &fstest.MapFile{Data: []byte(text)}
		}
		c := config.Default()
		c.Cgroups.Root = "/below"
		got, err := kubeletnode.Running(root, c)
		if err != nil || len(got) != 1 {
			t.Errorf("%s: got %+v, %v", name, got, err)
			continue
		}
		r := got[0]
		if r.Pod != "u-1" || r.ID != "abc" || r.CPUs != cpus(t, "2-3") || r.Nodes != numa.Of(0, 1) || !r.Quota || r.Age.Seconds() != 10.5 {
			t.Errorf("%s: got %+v", name, r)
		}
		if len(r.Threads) != 2 || r.Threads[0].Count != 2 || r.Threads[0].Command != "a) b" || r.Threads[1].CPUs != cpus(t, "3") {
			t.Errorf("%s: threads %+v", name, r.Threads)
		}
	}
}

func cpus(t *testing.T, list string) cpuset.Set {
	t.Helper()
	set, err := cpuset.Parse(list)
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// TestRunningUnseen: nothing is said about containers whose processes cannot be seen. A kernel shows those of another PID namespace as 0.
func TestRunningUnseen(t *testing.T) {
	t.Parallel()
	for name, procs := range map[string]string{"another namespace": "0\n0\n", "partly": "7\n0\n", "hidden": "8\n", "none": ""} {
		root := fstest.MapFS{
			"sys/fs/cgroup/cgroup.controllers":              &fstest.MapFile{Data: []byte("cpuset cpu")},
			v2Pod + "cri-containerd-abc.scope/cgroup.procs": &fstest.MapFile{Data: []byte(procs)},
			v2Pod + "cri-containerd-abc.scope/cpu.max":      &fstest.MapFile{Data: []byte("max 100000")},
			"proc/7/task/7/status":                          &fstest.MapFile{Data: []byte("Name:\ta\nCpus_allowed_list:\t2-3\n")},
		}
		c := config.Default()
		c.Cgroups.Root = "/below"
		got, err := kubeletnode.Running(root, c)
		if errdefs.ClassOf(err) != errdefs.NotFound || !strings.Contains(err.Error(), "processes") {
			t.Errorf("%s: got %+v, %v", name, got, err)
		}
	}
}

// TestRunningBounds: a copy without cgroups has no containers that run, and a container with too many cgroups ends the reading.
func TestRunningBounds(t *testing.T) {
	t.Parallel()
	c := config.Default()
	c.Cgroups.Root = "/below"
	if _, err := kubeletnode.Running(fstest.MapFS{}, c); errdefs.ClassOf(err) != errdefs.NotFound {
		t.Errorf("without cgroups: %v", err)
	}
	root := fstest.MapFS{"sys/fs/cgroup/cgroup.controllers": &fstest.MapFile{Data: []byte("cpu")}}
	if _, err := kubeletnode.Running(root, c); errdefs.ClassOf(err) != errdefs.NotFound {
		t.Errorf("without pods: %v", err)
	}
	// containerd with another driver makes /system.slice/kubepods-podUID.slice:cri-containerd:ID.
	root[v2Pod+"cgroup.procs"] = &fstest.MapFile{}
	if _, err := kubeletnode.Running(root, c); errdefs.ClassOf(err) != errdefs.NotFound || !strings.Contains(err.Error(), "cgroupDriver") {
		t.Errorf("pods without containers: %v", err)
	}
	for i := range 1001 {
		root[fmt.Sprintf("%scri-containerd-abc.scope/%d/cgroup.procs", v2Pod, i)] = &fstest.MapFile{}
	}
	if _, err := kubeletnode.Running(root, c); errdefs.ClassOf(err) != errdefs.Exhausted {
		t.Errorf("too many cgroups: %v", err)
	}
}

// TestPCINodes: the kernel's files are below a link, and an id that is no address leads to no file.
func TestPCINodes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{"0000:3b:02.1": "1\n", "0000:3b:02.2": "-1\n", "0000:3b:02.3": "x"} {
		device := filepath.Join(dir, "sys/devices/pci0000:3a", name)
		link := filepath.Join(dir, "sys/bus/pci/devices", name)
		if err := errors.Join(os.MkdirAll(device, 0o755), os.WriteFile(filepath.Join(device, "numa_node"), []byte(text), 0o600),
			os.MkdirAll(filepath.Dir(link), 0o755), os.Symlink("../../../devices/pci0000:3a/"+name, link)); err != nil {
			t.Fatal(err)
		}
	}
	d, err := kubeletnode.OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	shares := make([]string, 5000) // of a GPU: they are not looked up, so they leave room for the others
	for i := range shares {
		shares[i] = fmt.Sprintf("gpu0::%d", i)
	}
	got := kubeletnode.PCINodes(d, kubelet.DeviceState{Entries: []kubelet.DeviceEntry{{IDs: map[int64][]string{0: shares}}, {
		IDs: map[int64][]string{
			0: {"0000:3b:02.1", "0000:3b:02.2", "0000:3b:02.3", "0000:3b:02.4", "gpu0", "../devices/0000:3b:02.1"},
		}}}})
	if !maps.Equal(got, map[string]int{"0000:3b:02.1": 1}) {
		t.Errorf("got %v", got)
	}
}

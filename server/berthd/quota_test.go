package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
)

// quota reads a cgroup's CPU quota in microseconds from the kernel, "-1" or "max"
// for none.
func quota(t *testing.T, cgroup string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(cgroupMount, "cpu", cgroup, "cpu.cfs_quota_us"))
	if os.IsNotExist(err) {
		text, err = os.ReadFile(filepath.Join(cgroupMount, cgroup, "cpu.max"))
	}
	if err != nil || len(strings.Fields(string(text))) == 0 {
		t.Fatalf("the quota of %s: %q, %v", cgroup, text, err)
	}
	return strings.Replace(strings.Fields(string(text))[0], "max", "-1", 1)
}

// TestNoQuotaOnExclusiveCPUs follows the CPU quota from the admission through what
// a runtime is told to the kernel: a container with CPUs of its own has none, and
// so has its pod, also with a container beside it that shares and has its own.
func TestNoQuotaOnExclusiveCPUs(t *testing.T) {
	t.Parallel()
	needCPUs(t, 2)
	n := newNode(t)
	n.needKernel()
	d := n.start()
	half := map[string]string{"cpu": "500m", "memory": "16Mi"}
	mixed := guaranteed("mixed", 1, 0)
	mixed.Spec.Containers = append(mixed.Spec.Containers, &typesv1.Container{
		Name: "shares", Resources: &typesv1.ResourceRequirements{Requests: half, Limits: half},
	})
	for _, c := range []struct {
		pod       *typesv1.Pod
		container string
		exclusive bool
		told      int64 // microseconds of 100,000
		kernel    string
		podKernel string
	}{
		{mixed, "main", true, -1, "-1", "-1"},
		{mixed, "shares", false, 50000, "50000", "-1"},
		{pod("plain", half, half), "main", false, 50000, "50000", "50000"},
		{burstable("burstable"), "main", false, 0, "-1", "-1"},
	} {
		uid := c.pod.GetMetadata().GetUid()
		answer := d.admitted(c.pod)
		alloc, err := d.allocation.Allocate(d.ctx(),
			&allocationv1.AllocateRequest{Subject: &allocationv1.AllocateRequest_PodUid{PodUid: uid}, ContainerName: c.container})
		if err != nil {
			t.Fatal(err)
		}
		if got := alloc.GetAllocation().GetExclusiveCpus(); got != c.exclusive {
			t.Errorf("%s/%s has CPUs of its own: %t, want %t", uid, c.container, got, c.exclusive)
		}
		if got := alloc.GetResources(); got.GetCpuQuotaMicroseconds() != c.told || got.GetCpuPeriodMicroseconds() != 100000 {
			t.Errorf("%s/%s is told quota %d of %d, want %d of 100000", uid, c.container, got.GetCpuQuotaMicroseconds(),
				got.GetCpuPeriodMicroseconds(), c.told)
		}
		d.run(n.stopped(), uid, c.container, "id-"+uid+"-"+c.container)
		if got := quota(t, alloc.GetCgroupPath()); got != c.kernel {
			t.Errorf("container %s/%s has quota %s in the kernel, want %s", uid, c.container, got, c.kernel)
		}
		if got := quota(t, answer.GetCgroupParent()); got != c.podKernel {
			t.Errorf("pod %s has quota %s in the kernel, want %s", uid, got, c.podKernel)
		}
	}
	d.check()
}

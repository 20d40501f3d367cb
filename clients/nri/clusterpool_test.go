package main

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/berthd/berth/hack/cluster"
	"github.com/berthd/berth/hack/testing/containerd"
)

// huge2Mi is the file with the number of huge pages of 2 MiB of NUMA node 0.
const huge2Mi = "/sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages"

// makeHugePages adds pages of 2 MiB to NUMA node 0 until the end of the test.
func makeHugePages(t *testing.T, more int) {
	t.Helper()
	text, err := os.ReadFile(huge2Mi)
	if err != nil {
		t.Skipf("needs huge pages of 2 MiB: %v", err)
	}
	before, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	write := func(n int) int {
		if err := os.WriteFile(huge2Mi, []byte(strconv.Itoa(n)), 0); err != nil {
			t.Skipf("needs huge pages, and cannot make them: %v", err)
		}
		text, err := os.ReadFile(huge2Mi)
		if err != nil {
			t.Fatal(err)
		}
		n, err = strconv.Atoi(strings.TrimSpace(string(text)))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	t.Cleanup(func() {
		if left := write(before); left != before {
			t.Errorf("%d huge pages are left, before were %d", left, before)
		}
	})
	if got := write(before + more); got < before+more {
		t.Skipf("needs %d huge pages, and the kernel has memory for %d", before+more, got)
	}
}

// paged makes a claim on CPUs and huge pages with a mount, and a pod whose only container uses it.
func (k *kubernetes) paged(name, cpus, pages, command string) {
	k.t.Helper()
	k.Apply(fmt.Sprintf(`{"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": %q}, "spec": {"devices": {
		"requests": [{"name": "place", "exactly": {"deviceClassName": "cpu-memory.berthd.github.io",
			"capacity": {"requests": {"cpu": %q, "memory": "32Mi", "hugepages2Mi": %q}}}}],
		"config": [{"requests": ["place"], "opaque": {"driver": "dra.berthd.github.io", "parameters": {
			"apiVersion": "dra.berthd.github.io/v1alpha1", "kind": "BerthClaimParameters",
			"hugePageMounts": [{"pageSize": "2Mi", "path": "/pages"}]}}}]}}}`, name, cpus, pages))
	k.Apply(fmt.Sprintf(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": %q}, "spec": {"terminationGracePeriodSeconds": 1, "resourceClaims": [{"name": "place", "resourceClaimName": %q}], "containers": [
		{"name": "main", "image": %q, "imagePullPolicy": "Never", "command": [%s], "resources": {"claims": [{"name": "place"}]}}]}}`, name, name, containerd.ProbeImage, command))
}

// unscheduled waits until the scheduler has said why a pod waits.
func (k *kubernetes) unscheduled(pod string, why ...string) {
	k.t.Helper()
	k.Eventually("pod "+pod+" waits: "+strings.Join(why, " or "), func() bool {
		text, err := k.Kubectl("get", "pod", pod, "-o", "jsonpath={.status.conditions[?(@.type=='PodScheduled')].message}")
		for _, w := range why {
			if err == nil && strings.Contains(text, w) {
				return true
			}
		}
		return false
	})
}

// capacities waits until the node publishes an amount of CPUs and of huge pages; empty if it has no device.
func (k *kubernetes) capacities(want string) {
	k.t.Helper()
	got := ""
	k.Eventually("the node publishes "+want, func() bool {
		text, err := k.Kubectl("get", "resourceslices", "-o", "jsonpath={.items[*].spec.devices[*].capacity['cpu','hugepages2Mi'].value}")
		got = text
		return err == nil && text == want
	})
	k.t.Logf("published: %q", got)
}

// TestClusterOnePool: pods and claims have one pool, which has a CPU and 8 huge pages. Neither the scheduler nor berthd gives
// the CPU to a pod and a claim, and a claim has huge pages, with the limits of the kubelet.
func TestClusterOnePool(t *testing.T) {
	if runtime.NumCPU() < 2 {
		t.Skipf("needs two CPUs, one for the system; here are %d", runtime.NumCPU())
	}
	cluster.Need(t)
	makeHugePages(t, 8)
	last := runtime.NumCPU() - 1
	k := newKubernetes(t, map[string]any{"reservedSystemCPUs": "0-" + strconv.Itoa(last-1),
		"systemReserved": map[string]string{"memory": "256Mi"}}, "DRANodeAllocatableResources")
	cdi := k.givesClaims("{from: allocatable}")
	k.capacities("1 16Mi")

	// A pod without a claim takes the CPU, and nothing is left for claims.
	k.apply("classic", `{"limits": {"cpu": "1", "memory": "64Mi"}}`)
	if got := k.said("classic", "affinity"); got != strconv.Itoa(last) {
		t.Errorf("the pod without a claim runs on %s, want %d", got, last)
	}
	k.capacities("")
	show := `"/probe", "show", ",", "huge", "2097152", "4", ",", "huge", "2097152", "5", ",", "huge", "2097152", "4", "/pages", ",", "huge", "2097152", "5", "/pages", ",", "wait"`
	k.paged("first", "1", "8Mi", show)
	k.unscheduled("first", "cannot allocate all claims", "Insufficient cpu")
	if out, err := k.Kubectl("delete", "pod", "classic", "--wait=false"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}

	// The claim gets it, and its huge pages.
	if got := k.said("first", "affinity"); got != strconv.Itoa(last) {
		t.Errorf("the container with the claim runs on %s, want %d", got, last)
	}
	k.checkHugePages("first")
	text, err := k.Kubectl("get", "pod", "first", "-o",
		"jsonpath={.status.nodeAllocatableResourceClaimStatuses[0].mapping[?(@.name=='hugepages-2Mi')].quantity}")
	if err != nil || text != "8Mi" {
		t.Errorf("the scheduler has counted %q of hugepages-2Mi: %v", text, err)
	}
	k.capacities("1 16Mi")

	// Neither a pod nor another claim is scheduled onto the CPU of the claim, nor a claim on more huge pages than are left.
	k.apply("classic", `{"limits": {"cpu": "1", "memory": "64Mi"}}`)
	k.unscheduled("classic", "Insufficient cpu")
	k.paged("second", "1", "2Mi", show)
	k.unscheduled("second", "cannot allocate all claims", "Insufficient cpu")
	if out, err := k.berthctl("ledger", "check"); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	if out, err := k.Kubectl("delete", "pod", "classic", "--wait=false"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	k.deleteClaimed("second")

	// Crashes change nothing.
	for _, program := range []string{"berth-dra", "berthd", "berth-nri", "kubelet"} {
		_ = k.End(program, os.Kill)
	}
	k.StartProgram("kubelet")
	k.startBerthd()
	k.startPlugin()
	k.startDRA(cdi)
	k.capacities("1 16Mi")
	k.deleteClaimed("first")
	k.nothingLeft(cdi)
	k.apply("classic", `{"limits": {"cpu": "1", "memory": "64Mi"}}`)
	if got := k.said("classic", "affinity"); got != strconv.Itoa(last) {
		t.Errorf("after the claim, the pod runs on %s, want %d", got, last)
	}
	if text := k.Log("berth-dra").String(); strings.Contains(text, "level=ERROR") {
		t.Errorf("errors of berth-dra:\n%s", text)
	}
	k.ends("classic")
	k.capacities("1 16Mi")

	// Kubernetes 1.37.2 does not schedule pods with extended resources of the class.
	k.apply("extended", `{"limits": {"deviceclass.resource.kubernetes.io/cpu-memory.berthd.github.io": "1"}}`)
	k.unscheduled("extended", "<extended-resources>")
	k.ends("extended")
	k.nothingLeft(cdi)

	// Without the gate in the kubelet, nothing is published.
	k.kubelet(map[string]any{"featureGates": map[string]bool{}})
	_ = k.End("berth-dra", os.Kill)
	k.Eventually("the node does not declare the feature gate any more", func() bool {
		text, err := k.Kubectl("get", "node", cluster.Node, "-o", "jsonpath={.status.declaredFeatures}")
		return err == nil && !strings.Contains(text, "DRANodeAllocatableResources")
	})
	k.Start("berth-dra", k.dra(cdi))
	k.Eventually("berth-dra says why it publishes nothing", func() bool {
		return strings.Contains(k.Log("berth-dra").String(), "does not declare it (status.declaredFeatures)")
	})
	k.capacities("")
}

// checkHugePages compares what a container with 4 of the 8 huge pages says: of memory and of its mount, 4 and then 5.
func (k *kubernetes) checkHugePages(pod string) {
	k.t.Helper()
	var got []string
	k.Eventually("the container of "+pod+" has mapped huge pages four times", func() bool {
		text, err := k.Kubectl("logs", pod)
		got = nil
		for line := range strings.Lines(text) {
			if is, ok := strings.CutPrefix(strings.TrimSpace(line), "huge="); ok {
				got = append(got, is)
			}
		}
		return err == nil && len(got) == 4
	})
	k.t.Logf("huge pages: %q", got)
	for _, i := range []int{0, 2} {
		if got[i] != "4 on [0]" {
			k.t.Errorf("map %d says %q, want 4 on NUMA node 0", i, got[i])
		}
	}
	if strings.HasPrefix(got[3], "5 on") {
		k.t.Errorf("the mount has more than the claim: %q", got[3])
	}
	if _, err := os.Stat("/sys/fs/cgroup/hugetlb"); err != nil {
		k.t.Logf("the limit of the kubelet is not tried: this machine has no hugetlb controller: %v", err)
		return
	}
	if strings.HasPrefix(got[1], "5 on") {
		k.t.Errorf("a process has more huge pages than the claim: %q", got[1])
	}
}

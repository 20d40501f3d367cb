package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	"github.com/berthd/berth/clients/berth"
	"github.com/berthd/berth/hack/testing/containerd"
)

// amount has the requests and limits of a container, in milli-CPU and MiB.
type amount struct{ cpu, cpuLimit, memory, memoryLimit int64 }

func (a amount) requirements() map[string]any {
	return map[string]any{
		"requests": map[string]string{"cpu": fmt.Sprintf("%dm", a.cpu), "memory": fmt.Sprintf("%dMi", a.memory)},
		"limits":   map[string]string{"cpu": fmt.Sprintf("%dm", a.cpuLimit), "memory": fmt.Sprintf("%dMi", a.memoryLimit)},
	}
}

// amountIn reads an amount from requests and limits.
func amountIn(requests, limits map[string]string) (a amount, err error) {
	for _, f := range []struct {
		to   *int64
		text string
		unit int64
	}{{&a.cpu, requests["cpu"], 0}, {&a.cpuLimit, limits["cpu"], 0}, {&a.memory, requests["memory"], 1 << 20},
		{&a.memoryLimit, limits["memory"], 1 << 20}} {
		q, err := resource.ParseQuantity(f.text)
		if err != nil {
			return a, fmt.Errorf("%q: %w", f.text, err)
		}
		if *f.to = q.MilliValue(); f.unit > 0 {
			*f.to = q.Value() / f.unit
		}
	}
	return a, nil
}

func texts(list corev1.ResourceList) map[string]string {
	out := map[string]string{}
	for name, q := range list {
		out[string(name)] = q.String()
	}
	return out
}

// names are the containers in their order.
var names = []string{"init", "side", "main", "restarted", "other"}

// resizing is a pod with a claim. The containers main, restarted, side and init use the claim, and other does not. The
// container restarted is restarted by a change.
type resizing struct {
	*kubernetes
	berthd *berth.Client
	pod    string
	// onePool means that the kubelet adds the amounts of the claim to the limits of containers.
	onePool bool
	has     map[string]amount
	// restarts is how often the container restarted has been restarted.
	restarts int32
	moved    map[string]func() []string
}

// startResizing creates a pod, and waits until its containers have what they request.
func (k *kubernetes) startResizing(pod string, onePool bool, has map[string]amount) *resizing {
	k.t.Helper()
	client, err := berth.Dial(k.t.Context(), k.socket, berth.Options{})
	if err != nil {
		k.t.Fatal(err)
	}
	k.t.Cleanup(func() { _ = client.Close() })
	r := &resizing{kubernetes: k, berthd: client, pod: pod, onePool: onePool, has: has, moved: map[string]func() []string{}}
	k.claim(pod, `{"requests": [`+cpuRequest("place", "")+`]}`)
	var containers, init []map[string]any
	for _, name := range names {
		a, some := has[name]
		if !some {
			continue
		}
		resources := a.requirements()
		if name != "other" {
			resources["claims"] = []map[string]string{{"name": "place"}}
		}
		c := map[string]any{"name": name, "image": containerd.ProbeImage, "imagePullPolicy": "Never",
			"command": []string{"/probe", "show", ",", "wait"}, "resources": resources}
		switch name {
		case "init":
			c["command"] = []string{"/probe", "show"}
			init = append(init, c)
		case "side":
			c["restartPolicy"] = "Always"
			init = append(init, c)
		case "restarted":
			c["resizePolicy"] = []map[string]string{{"resourceName": "cpu", "restartPolicy": "RestartContainer"},
				{"resourceName": "memory", "restartPolicy": "RestartContainer"}}
			containers = append(containers, c)
		default:
			containers = append(containers, c)
		}
	}
	text, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"name": pod},
		"spec": map[string]any{
			"terminationGracePeriodSeconds": 1, "dnsPolicy": "Default", "enableServiceLinks": false, "automountServiceAccountToken": false,
			"resourceClaims": []map[string]string{{"name": "place", "resourceClaimName": pod}}, "initContainers": init,
			"containers": containers,
		}})
	if err != nil {
		k.t.Fatal(err)
	}
	k.create(podsPath, string(text))
	r.sized("at the start")
	for name := range has {
		if pid := r.process(r.get(), name); pid != 0 && name != "restarted" {
			r.moved[name] = k.watch(pid)
		}
	}
	return r
}

// get reads the pod at the API server.
func (r *resizing) get() (p corev1.Pod) {
	r.t.Helper()
	if err := r.Call(r.t.Context(), http.MethodGet, podsPath+"/"+r.pod, "", &p); err != nil {
		r.t.Fatal(err)
	}
	return p
}

// process returns the process of a container that runs; 0 if there is none.
func (r *resizing) process(p corev1.Pod, container string) int {
	for _, s := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		if s.Name != container || s.State.Running == nil {
			continue
		}
		_, id, _ := strings.Cut(s.ContainerID, "://")
		if pid, err := r.Containerd.Process(r.t.Context(), id); err == nil {
			return pid
		}
	}
	return 0
}

// request requests other amounts, as kubectl does.
func (r *resizing) request(to map[string]amount) {
	r.t.Helper()
	if out, err := r.patch(to); err != nil {
		r.t.Fatalf("%v: %s", err, out)
	}
}

// patch is request with the answer of the API server.
func (r *resizing) patch(to map[string]amount) (string, error) {
	r.t.Helper()
	lists := map[string][]any{}
	for _, name := range names { // the API server refuses another order
		a, some := to[name]
		if !some {
			continue
		}
		list := "containers"
		if name == "side" {
			list = "initContainers"
		}
		lists[list] = append(lists[list], map[string]any{"name": name, "resources": a.requirements()})
	}
	text, err := json.Marshal(map[string]any{"spec": lists})
	if err != nil {
		r.t.Fatal(err)
	}
	return r.Kubectl("patch", "pod", r.pod, "--subresource", "resize", "--patch", string(text))
}

// resize requests other amounts, and waits until the containers have them.
func (r *resizing) resize(when string, to map[string]amount) {
	r.t.Helper()
	r.request(to)
	maps.Copy(r.has, to)
	if _, some := to["restarted"]; some {
		r.restarts++
	}
	r.sized(when)
}

// pending returns the conditions of a resize that is not carried out.
func pending(p corev1.Pod) (out []string) {
	for _, c := range p.Status.Conditions {
		if (c.Type == corev1.PodResizePending || c.Type == corev1.PodResizeInProgress) && c.Status == corev1.ConditionTrue {
			out = append(out, fmt.Sprintf("%s %s: %s", c.Type, c.Reason, c.Message))
		}
	}
	return out
}

// sized waits until the containers have what they request: in the status of the pod, in berthd and in the kernel. Those with the claim have
// its CPUs without a quota. The claim is in no amount of a container, and is as it was.
func (r *resizing) sized(when string) {
	r.t.Helper()
	differs := ""
	defer func() {
		if differs != "" {
			r.t.Logf("%s: %s", when, differs)
		}
	}()
	r.Eventually(when+", the containers have what they request", func() bool {
		differs = r.differs()
		return differs == ""
	})
	r.readersAgree(r.pod)
	if out, err := r.berthctl("ledger", "check"); err != nil {
		r.t.Errorf("%s: %v: %s", when, err, out)
	}
	claims, err := r.berthctl("get", "claims", r.pod, "--no-headers")
	if err != nil || !strings.Contains(claims, "  1  memory=32Mi@0  ") || strings.Contains(claims, "/other") {
		r.t.Errorf("%s: berthd has the claim %v: %s", when, err, claims)
	}
	for name := range r.moved {
		if name != "other" && !strings.Contains(claims, "default/"+r.pod+"/"+name) {
			r.t.Errorf("%s: %s does not use the claim: %s", when, name, claims)
		}
	}
}

// differs describes the first container that does not have what it requests; empty if there is none.
func (r *resizing) differs() string {
	p := r.get()
	if p.Status.Phase != corev1.PodRunning {
		return "the pod is " + string(p.Status.Phase)
	}
	if list := pending(p); len(list) > 0 {
		return strings.Join(list, "; ")
	}
	known, err := r.berthd.Allocation().Get(r.t.Context(),
		&allocationv1.GetRequest{Subject: &allocationv1.GetRequest_PodUid{PodUid: string(p.UID)}})
	if err != nil {
		return err.Error()
	}
	for _, c := range known.GetPod().GetContainers() {
		name := c.GetContainerName()
		got, err := amountIn(c.GetResources().GetRequests(), c.GetResources().GetLimits())
		want := r.has[name]
		got.memory = want.memory // not in updates of the runtime: docs/nri.md
		if err != nil || got != want {
			return fmt.Sprintf("berthd counts %s with %v, want %v: %v", name, got, want, err)
		}
	}
	for _, s := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		if s.Name == "init" {
			continue
		}
		wants := int32(0)
		if s.Name == "restarted" {
			wants = r.restarts
		}
		if s.RestartCount != wants {
			return fmt.Sprintf("%s was restarted %d times, want %d", s.Name, s.RestartCount, wants)
		}
		pid := r.process(p, s.Name)
		if pid == 0 {
			return s.Name + " does not run"
		}
		if got, want := r.inKernel(pid), r.wanted(s.Name); got != want {
			return fmt.Sprintf("%s has %s, want %s", s.Name, got, want)
		}
		// The kubelet reads the limits in the status from the cgroup: without a quota, it keeps an older limit.
		a, err := amountIn(texts(s.AllocatedResources), texts(s.AllocatedResources))
		if want := r.has[s.Name]; err != nil || a.cpu != want.cpu || a.memory != want.memory {
			return fmt.Sprintf("the status of %s has %v, want %v: %v", s.Name, a, want, err)
		}
	}
	return ""
}

// inKernel describes what the kernel has for a process.
func (r *resizing) inKernel(pid int) string {
	read := func(controller, file1, file2 string) string {
		text, err := os.ReadFile(cgroupFile(r.t, pid, controller, file1, file2))
		if err != nil {
			return err.Error()
		}
		return strings.TrimSpace(string(text))
	}
	weight := cgroupFile(r.t, pid, "cpu", "cpu.shares", "cpu.weight")
	shares := "as requested" // a conversion of the runtime's on cgroup v2
	if filepath.Base(weight) == "cpu.shares" {
		shares = read("cpu", "cpu.shares", "cpu.weight")
	}
	return fmt.Sprintf("CPUs %s, memory nodes %s, shares %s, quota %s, %s bytes; the pod has the quota %s",
		allowed(pid), read("cpuset", "cpuset.mems", "cpuset.mems"), shares, quotaOf(r.t, pid),
		read("memory", "memory.limit_in_bytes", "memory.max"), podQuotaOf(r.t, pid))
}

// wanted describes what the kernel should have for a container.
func (r *resizing) wanted(name string) string {
	last := runtime.NumCPU() - 1
	a, cpus, quota := r.has[name], strconv.Itoa(last), "-1"
	switch {
	case name == "other":
		cpus, quota = range0(last-1), strconv.FormatInt(a.cpuLimit*100, 10)
	case r.onePool:
		a.memoryLimit += 32 // of the claim
	}
	shares := strconv.FormatInt(max(2, a.cpu*1024/1000), 10)
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		shares = "as requested"
	}
	return fmt.Sprintf("CPUs %s, memory nodes 0, shares %s, quota %s, %d bytes; the pod has the quota -1", cpus, shares, quota,
		a.memoryLimit<<20)
}

// range0 is the list of the CPUs from 0.
func range0(last int) string {
	if last == 0 {
		return "0"
	}
	return "0-" + strconv.Itoa(last)
}

// refused requests amounts that the pod cannot have, and checks that a condition of the pod says why.
func (r *resizing) refused(to map[string]amount, why string) {
	r.t.Helper()
	before := map[string]amount{}
	for name := range to {
		before[name] = r.has[name]
	}
	r.request(to)
	var got []string
	defer func() {
		if r.t.Failed() {
			r.t.Logf("the pod has the conditions %q", got)
		}
	}()
	r.Eventually("the pod cannot be resized: "+why, func() bool {
		got = pending(r.get())
		return slices.ContainsFunc(got, func(text string) bool { return strings.Contains(text, why) })
	})
	r.request(before)
	r.sized("after a resize that was refused")
}

// ends checks that no container has been moved, and ends the pod.
func (r *resizing) ends(cdi string) {
	r.t.Helper()
	for name, moved := range r.moved {
		if others := moved(); len(others) > 0 {
			r.t.Errorf("container %s was moved to the CPUs %v", name, others)
		}
	}
	r.deleteClaimed(r.pod)
	r.nothingLeft(cdi)
}

// TestClusterResize: a pod with a claim is resized in place. The containers with the claim stay on its CPUs, and no
// amount is counted twice, with CPUs that are divided between claims and pods, and with one pool. With one pool this
// machine has no CPU beside that of the claim, so containers only have limits of CPUs.
func TestClusterResize(t *testing.T) {
	if runtime.NumCPU() < 2 {
		t.Skipf("needs two CPUs, one for the system and one for claims; here are %d", runtime.NumCPU())
	}
	last := strconv.Itoa(runtime.NumCPU() - 1)
	for name, onePool := range map[string]bool{"division": false, "one pool": true} {
		t.Run(name, func(t *testing.T) {
			var k *kubernetes
			var cdi string
			cpu := int64(1)
			if onePool {
				k = newKubernetes(t, map[string]any{"reservedSystemCPUs": range0(runtime.NumCPU() - 2),
					"systemReserved": map[string]string{"memory": "256Mi"}}, "DRANodeAllocatableResources")
				cdi, cpu = k.givesClaims("{from: allocatable}"), 0
			} else {
				system := fmt.Sprintf("%dm", runtime.NumCPU()*1000-500)
				k = newKubernetes(t, map[string]any{"reservedSystemCPUs": "",
					"systemReserved": map[string]string{"cpu": system, "memory": "256Mi"}})
				cdi = k.givesClaims(`{cpus: "` + last + `", memory: [{numaNode: 0, limits: {memory: 128Mi}}]}`)
			}
			r := k.startResizing("first", onePool, map[string]amount{
				"init": {50 * cpu, 100, 16, 24}, "side": {30 * cpu, 60, 16, 24}, "main": {100 * cpu, 200, 32, 48},
				"restarted": {40 * cpu, 80, 16, 24}, "other": {60 * cpu, 120, 16, 24},
			})
			r.resize("with more", map[string]amount{"side": {35 * cpu, 70, 20, 30}, "main": {150 * cpu, 300, 40, 64},
				"restarted": {50 * cpu, 90, 20, 32}, "other": {70 * cpu, 140, 24, 40}})
			r.resize("with less", map[string]amount{"side": {30 * cpu, 50, 16, 24}, "main": {110 * cpu, 210, 32, 56},
				"other": {60 * cpu, 110, 20, 32}})
			r.resize("with less in one container, which is restarted", map[string]amount{"restarted": {40 * cpu, 70, 16, 24}})
			// The kubelet counts the claim with one pool. What the node never has is refused by the API server, which does not count it.
			if more := map[string]amount{"main": {600, 700, 32, 56}}; onePool {
				r.refused(more, "enough resource: cpu, requested: 1600,")
			} else if out, err := r.patch(more); err == nil || !strings.Contains(err.Error(), "cpu, requested: 730, allocatable: 500") {
				t.Errorf("a resize to more than the node has: %v: %s", err, out)
			}

			for _, program := range []string{"berth-dra", "berthd", "berth-nri", "kubelet"} {
				_ = k.End(program, os.Kill)
			}
			k.StartProgram("kubelet")
			k.startBerthd()
			k.startPlugin()
			k.Start("berth-dra", k.dra(cdi))
			r.sized("after restarts")
			_ = k.End("berth-nri", os.Kill)
			r.request(map[string]amount{"main": {120 * cpu, 240, 36, 60}})
			r.has["main"] = amount{120 * cpu, 240, 36, 60}
			_, memory, _ := strings.Cut(r.wanted("main"), "quota -1, ")
			memory, _, _ = strings.Cut(memory, ";")
			pid := r.process(r.get(), "main")
			k.Eventually("the kubelet has resized the pod while berth-nri does not run", func() bool {
				return len(pending(r.get())) == 0 && strings.Contains(r.inKernel(pid), memory)
			})
			k.startPlugin()
			r.sized("without berth-nri")
			r.resize("at the end", map[string]amount{"main": {130 * cpu, 250, 34, 52}, "restarted": {45 * cpu, 75, 18, 26}})
			r.ends(cdi)
			if onePool {
				return
			}
			// As kubelets with the static policies, berthd refuses other amounts of guaranteed pods.
			even := k.startResizing("second", false, map[string]amount{"main": {100, 100, 32, 32}, "other": {50, 50, 24, 24}})
			even.refused(map[string]amount{"main": {150, 150, 32, 32}}, "berth: resize container main")
			even.refused(map[string]amount{"main": {100, 100, 40, 40}}, "berth: resize container main")
			even.ends(cdi)
		})
	}
}

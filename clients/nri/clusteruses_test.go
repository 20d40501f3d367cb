package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/berthd/berth/hack/testing/containerd"
	"github.com/berthd/berth/managers/cpuset"
)

// userPod is a pod whose containers use requests of the claim called place.
type userPod struct {
	name string
	// claim has the requests: a ResourceClaim of this name.
	claim string
	// init and containers have the request of each container by its name: all for the whole claim, none for nothing.
	init, containers map[string]string
	annotations      map[string]string
}

// What a container uses of a claim, in place of the name of a request.
const (
	wholeClaim = "*"
	noClaim    = ""
)

// use creates a pod.
func (k *kubernetes) use(p userPod) {
	k.t.Helper()
	containers := func(requests map[string]string, command ...string) (out []map[string]any) {
		for name, request := range requests {
			c := map[string]any{"name": name, "image": containerd.ProbeImage, "imagePullPolicy": "Never",
				"command": append([]string{"/probe", "show"}, command...)}
			switch request {
			case noClaim:
			case wholeClaim:
				c["resources"] = map[string]any{"claims": []map[string]string{{"name": "place"}}}
			default:
				c["resources"] = map[string]any{"claims": []map[string]string{{"name": "place", "request": request}}}
			}
			out = append(out, c)
		}
		return out
	}
	text, err := json.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"name": p.name, "annotations": p.annotations},
		"spec": map[string]any{
			"terminationGracePeriodSeconds": 1, "dnsPolicy": "Default", "enableServiceLinks": false, "automountServiceAccountToken": false,
			"resourceClaims": []map[string]string{{"name": "place", "resourceClaimName": p.claim}},
			"initContainers": containers(p.init), "containers": containers(p.containers, ",", "wait"),
		},
	})
	if err != nil {
		k.t.Fatal(err)
	}
	k.create(podsPath, string(text))
}

// claim creates a claim with requests as JSON, and returns its uid.
func (k *kubernetes) claim(name, devices string) (uid string) {
	k.t.Helper()
	k.create(claimsPath+"/resourceclaims",
		fmt.Sprintf(`{"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": %q}, "spec": {"devices": %s}}`,
			name, devices))
	var claim resourceapi.ResourceClaim
	if err := k.Call(k.t.Context(), http.MethodGet, claimsPath+"/resourceclaims/"+name, "", &claim); err != nil {
		k.t.Fatal(err)
	}
	return string(claim.UID)
}

// printed waits until a container has printed everything, and returns its CPUs and its variables.
func (k *kubernetes) printed(pod, container string) (on cpuset.Set, env map[string]string) {
	k.t.Helper()
	k.Eventually("container "+container+" of "+pod+" prints its CPUs", func() bool {
		log, err := k.Open(k.t.Context(), http.MethodGet, podsPath+"/"+pod+"/log?container="+container, "")
		if err != nil {
			return false
		}
		defer log.Close()
		text, err := io.ReadAll(io.LimitReader(log, 1<<20))
		if err != nil || !strings.Contains(string(text), "shown=all") {
			return false
		}
		env = map[string]string{}
		for line := range strings.Lines(string(text)) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
			env[strings.TrimPrefix(name, "env.")] = value
		}
		on, err = cpuset.Parse(env["affinity"])
		return err == nil
	})
	return on, env
}

// cpuRequest is a request of a CPU, as JSON.
func cpuRequest(name, more string) string {
	return fmt.Sprintf(`{"name": %q, "exactly": {"deviceClassName": "cpu-memory.berthd.github.io", "capacity": {"requests": {"cpu": "1", "memory": "32Mi"}}%s}}`, name, more)
}

// TestClusterClaimUses: a claim with alternatives, that an init container, a container that names the request and a second
// pod use. A pod's author cannot use it by annotations. Then the same CPU is used by an extended resource.
func TestClusterClaimUses(t *testing.T) {
	k, cdi := withClaims(t)
	last := cpuset.Of(runtime.NumCPU() - 1)
	uid := k.claim("shared", `{"requests": [{"name": "place", "firstAvailable": [
		{"name": "large", "deviceClassName": "cpu-memory.berthd.github.io", "capacity": {"requests": {"cpu": "64", "memory": "32Mi"}}},
		{"name": "small", "deviceClassName": "cpu-memory.berthd.github.io", "capacity": {"requests": {"cpu": "1", "memory": "32Mi"}}}]}]}`)
	device := "dra.berthd.github.io/claim=" + uid + ":place"
	k.use(userPod{name: "first", claim: "shared", init: map[string]string{"init": wholeClaim},
		containers: map[string]string{"main": "place", "other": noClaim}})
	k.use(userPod{name: "second", claim: "shared", containers: map[string]string{"main": wholeClaim, "other": noClaim},
		annotations: map[string]string{"cdi.k8s.io/place": device, "cdi.k8s.io/other": device}})
	for _, of := range []string{"first/init", "first/main", "second/main", "first/other", "second/other"} {
		pod, container, _ := strings.Cut(of, "/")
		on, env := k.printed(pod, container)
		cpus, has := env["BERTH_PLACE_CPUS"]
		switch {
		case container != "other" && (on != last || cpus != last.String() || env["BERTH_CPUS"] != last.String()):
			t.Errorf("%s runs on %s, want %s; its variables say %q and %q", of, on, last, cpus, env["BERTH_CPUS"])
		case container == "other" && (has || on.Overlaps(last)):
			t.Errorf("%s, which does not use the claim, runs on %s with the variable %q", of, on, cpus)
		}
	}
	k.readersAgree("first")
	k.readersAgree("second")
	k.restartsWithoutPods("second", "main", cdi)
	k.ends("first")
	if on, err := k.berthctl("get", "claims", "shared", "--no-headers"); err != nil || !strings.Contains(on, "default/second/main") {
		t.Errorf("after the first pod has ended, the claim is not held: %v: %s", err, on)
	}
	k.ends("second")
	if err := k.Call(t.Context(), http.MethodDelete, claimsPath+"/resourceclaims/shared", "", nil); err != nil {
		t.Fatal(err)
	}
	k.nothingLeft(cdi)

	k.apply("extended", `{"limits": {"deviceclass.resource.kubernetes.io/cpu-memory.berthd.github.io": "1"}}`)
	if on, env := k.printed("extended", "main"); on != last || env["BERTH_CPUS"] != last.String() {
		t.Errorf("the container with an extended resource runs on %s, want %s; its variable says %q", on, last, env["BERTH_CPUS"])
	}
	k.readersAgree("extended")
	k.ends("extended")
	k.nothingLeft(cdi)
}

// restartsWithoutPods restarts containerd and berth-nri while the kubelet has no pods, because there is no API server. A container
// stays on the CPUs of its claim meanwhile, and after the kubelet has its pods again.
func (k *kubernetes) restartsWithoutPods(pod, container, cdi string) {
	k.t.Helper()
	var p corev1.Pod
	if err := k.Call(k.t.Context(), http.MethodGet, podsPath+"/"+pod, "", &p); err != nil {
		k.t.Fatal(err)
	}
	i := slices.IndexFunc(p.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool { return s.Name == container })
	if i < 0 {
		k.t.Fatalf("pod %s has no container %s", pod, container)
	}
	_, id, _ := strings.Cut(p.Status.ContainerStatuses[i].ContainerID, "://")
	pid, err := k.Containerd.Process(k.t.Context(), id)
	if err != nil {
		k.t.Fatal(err)
	}
	moved := k.watch(pid)
	_, _ = k.End("kube-apiserver", os.Kill), k.End("kubelet", os.Kill)
	k.StartProgram("kubelet")
	kubelet, err := newPodResources(k.Path("var", "lib", "kubelet", "pod-resources", "kubelet.sock"), nil, slog.New(slog.DiscardHandler))
	if err != nil {
		k.t.Fatal(err)
	}
	defer kubelet.close()
	k.Eventually("the kubelet has no pods", func() bool {
		_, err := kubelet.Devices(k.t.Context(), "default", pod)
		return errors.Is(err, errNoPod)
	})
	k.killForClaims("containerd", cdi)
	_ = k.End("berth-nri", os.Kill)
	k.startPlugin()
	if _, err := kubelet.Devices(k.t.Context(), "default", pod); !errors.Is(err, errNoPod) {
		k.t.Errorf("the kubelet has its pods too early: %v", err)
	}
	k.StartProgram("kube-apiserver")
	k.Eventually("the kubelet has its pods", func() bool {
		_, err := kubelet.pod(k.t.Context(), "default", pod)
		return err == nil
	})
	k.use(userPod{name: "later", claim: "shared", containers: map[string]string{"main": wholeClaim}})
	if on, _ := k.printed("later", "main"); on.String() != allowed(pid) {
		k.t.Errorf("a later container with the claim runs on %s, and the earlier one on %s", on, allowed(pid))
	}
	if others := moved(); len(others) > 0 {
		k.t.Errorf("container %s of pod %s has been moved to the CPUs %v", container, pod, others)
	}
	k.ends("later")
}

// ends deletes a pod, and waits until it is gone.
func (k *kubernetes) ends(name string) {
	k.t.Helper()
	if err := k.Call(k.t.Context(), http.MethodDelete, podsPath+"/"+name, "", nil); err != nil {
		k.t.Fatal(err)
	}
	k.Eventually("pod "+name+" is gone", func() bool {
		var pods corev1.PodList
		return k.Call(k.t.Context(), http.MethodGet, podsPath+"?fieldSelector=metadata.name%3D"+name, "", &pods) == nil &&
			len(pods.Items) == 0
	})
}

// usesSeveralNodes has containers use a claim of several NUMA nodes: two requests by name, one with a count, and all of them. Each
// gets the CPUs of what it uses, and no others.
func (m *clusterMachine) usesSeveralNodes() {
	m.t.Helper()
	m.claim("several", `{"requests": [`+cpuRequest("left", "")+`, `+cpuRequest("right", "")+`, `+cpuRequest("pair", `, "count": 2`)+`],
		"constraints": [{"requests": ["left", "right"], "distinctAttribute": "resource.kubernetes.io/numaNode"}]}`)
	uses := map[string]string{"left": "left", "right": "right", "pair": "pair", "all": wholeClaim, "other": noClaim}
	m.use(userPod{name: "several", claim: "several", init: map[string]string{"init": "right"}, containers: uses})
	on := map[string]cpuset.Set{}
	variables := map[string][]string{"left": {"LEFT"}, "right": {"RIGHT"}, "init": {"RIGHT"}, "pair": {"PAIR_0", "PAIR_1"},
		"all": {"LEFT", "RIGHT", "PAIR_0", "PAIR_1"}}
	var every cpuset.Set
	for _, name := range []string{"init", "left", "right", "pair", "all", "other"} {
		var env map[string]string
		on[name], env = m.printed("several", name)
		m.t.Logf("container %s runs on %s", name, on[name])
		var want, nodes cpuset.Set
		for _, v := range variables[name] {
			part, err := cpuset.Parse(env["BERTH_"+v+"_CPUS"])
			node, nodeErr := strconv.Atoi(env["BERTH_"+v+"_NUMA_NODE"])
			if err != nil || nodeErr != nil || node < 0 || node >= len(m.nodes) || part.Len() != 1 || !part.IsSubsetOf(m.nodes[node]) ||
				part.Overlaps(want) {
				m.t.Errorf("container %s: request %s has the CPUs %q of NUMA node %q", name, v, env["BERTH_"+v+"_CPUS"],
					env["BERTH_"+v+"_NUMA_NODE"])
				continue
			}
			want, nodes = want.Union(part), nodes.Union(cpuset.Of(node))
		}
		bound, err := cpuset.Parse(env["mems"])
		if name != "other" && (on[name] != want || env["BERTH_CPUS"] != want.String() || err != nil || bound != nodes) {
			m.t.Errorf("container %s runs on %s with memory of NUMA nodes %s, want %s and %s; its variable says %q", name, on[name],
				env["mems"], want, nodes, env["BERTH_CPUS"])
		}
		if name == "pair" && nodes.Len() != 2 {
			m.t.Errorf("the devices of a request with a count are of NUMA nodes %s, want two", nodes)
		}
		every = every.Union(want)
	}
	if on["all"] != every || every.Len() != 4 || on["init"] != on["right"] || on["left"] == on["right"] || on["other"].Overlaps(every) {
		m.t.Errorf("containers run on %v", on)
	}
	m.ends("several")
	if err := m.Call(m.t.Context(), http.MethodDelete, claimsPath+"/resourceclaims/several", "", nil); err != nil {
		m.t.Fatal(err)
	}
}

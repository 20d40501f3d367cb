package main

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/berthd/berth/managers/cpuset"
)

// health describes what the status of a pod says of the devices of a container: NAME DEVICE HEALTH MESSAGE.
func (k *kubernetes) health(pod, container string) (text string) {
	k.t.Helper()
	var p corev1.Pod
	if err := k.Call(k.t.Context(), http.MethodGet, podsPath+"/"+pod, "", &p); err != nil {
		return err.Error()
	}
	var all []string
	for _, s := range p.Status.ContainerStatuses {
		if s.Name != container {
			continue
		}
		for _, r := range s.AllocatedResourcesStatus {
			for _, d := range r.Resources {
				one := fmt.Sprintf("%s %s %s", r.Name, d.ResourceID, d.Health)
				if d.Message != nil {
					one += ": " + *d.Message
				}
				all = append(all, one)
			}
		}
	}
	return strings.Join(all, "; ")
}

// isHealth waits until the status of a pod says something of the device of its container main, which uses the claim as a whole.
func (k *kubernetes) isHealth(when, pod, device, health string) {
	k.t.Helper()
	got, want := "", "claim:place "+device+" "+health
	defer func() {
		if got != want {
			k.t.Logf("%s: the status of the pod has %q", when, got)
		}
	}()
	k.Eventually(when+", the status of the pod has "+want, func() bool {
		got = k.health(pod, "main")
		return got == want
	})
}

// offline is the health of a device while a CPU of a claim is offline.
func offline(cpu int, claim string) string {
	return fmt.Sprintf("Unhealthy: CPUs %d of claim default/%s are offline, or not for claims any more", cpu, claim)
}

// TestClusterClaimHealth: the kubelet writes the health of the devices of a claim into the status of its pods. The CPU of
// the claim is offline by what berthd reads, berthd ends, berth-dra ends, and all come back.
func TestClusterClaimHealth(t *testing.T) {
	k, cdi := withClaims(t)
	last := runtime.NumCPU() - 1
	every, err := cpuset.Parse(range0(last))
	if err != nil {
		t.Fatal(err)
	}
	all, others := range0(last), every.Minus(cpuset.Of(last)).String()
	online := k.Path("online")
	write := func(list string) {
		t.Helper()
		// Both lists have the same length, so that berthd reads one of them.
		f, err := os.OpenFile(online, os.O_WRONLY|os.O_CREATE, 0o600)
		if err == nil {
			_, err = f.WriteString(list + strings.Repeat("\n", 1+len(all)-len(list)))
			err = errors.Join(err, f.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	write(all)
	mount := exec.Command("mount", "--bind", online, "/sys/devices/system/cpu/online")
	if err := k.Spawn(mount); err != nil {
		t.Fatal(err)
	}
	if err := mount.Wait(); err != nil {
		t.Fatalf("mount in the cluster's namespace: %v", err)
	}

	device := "dra.berthd.github.io/claim=" + k.claim("first", `{"requests": [`+cpuRequest("place", "")+`]}`) + ":place"
	k.use(userPod{name: "first", claim: "first", containers: map[string]string{"main": wholeClaim, "part": "place", "other": noClaim}})
	k.printed("first", "main")
	is := func(when, health string) {
		t.Helper()
		k.isHealth(when, "first", device, health)
	}
	is("the pod runs", "Healthy")
	if part, other := k.health("first", "part"), k.health("first", "other"); part != "claim:place/place "+device+" Healthy" || other != "" {
		t.Errorf("a container with a request of the claim has %q, and one without the claim %q", part, other)
	}
	write(others)
	is("the CPU of the claim is offline", offline(last, "first"))
	write(all)
	is("the CPU is online", "Healthy")

	_ = k.End("berthd", os.Kill)
	is("berthd has ended", "Unknown: berthd does not answer")
	k.startBerthd()
	is("berthd runs again", "Healthy")
	_ = k.End("berth-dra", os.Kill)
	is("berth-dra has ended", "Unknown")
	k.startDRA(cdi)
	is("berth-dra runs again", "Healthy")

	// A kubelet does not start while a CPU of reservedSystemCPUs is offline.
	_ = k.End("kubelet", os.Kill)
	k.StartProgram("kubelet")
	k.Eventually("the kubelet runs again", func() bool {
		log, err := os.ReadFile(k.Path("kubelet.log"))
		return err == nil && strings.Count(string(log), "Starting kubelet main sync loop") == 2
	})
	write(others)
	is("the CPU went offline after a restart of the kubelet", offline(last, "first"))
	k.ends("first")
}

// goesOffline takes the CPU of a claim offline, and back.
func (m *clusterMachine) goesOffline() {
	m.t.Helper()
	device := "dra.berthd.github.io/claim=" + m.claim("offline", `{"requests": [`+cpuRequest("place", "")+`]}`) + ":place"
	m.use(userPod{name: "offline", claim: "offline", containers: map[string]string{"main": wholeClaim}})
	on, _ := m.printed("offline", "main")
	cpu, some := on.Min()
	if !some || on.Len() != 1 {
		m.t.Fatalf("the container runs on %s, want a CPU", on)
	}
	pid := m.pid("offline")
	m.isHealth("the pod runs", "offline", device, "Healthy")
	file := fmt.Sprintf("/sys/devices/system/cpu/cpu%d/online", cpu)
	if err := os.WriteFile(file, []byte("0"), 0); err != nil {
		m.t.Fatal(err)
	}
	m.isHealth("the CPU of the claim is offline", "offline", device, offline(cpu, "offline"))
	m.t.Logf("CPU %d is offline: the container runs on %s", cpu, allowed(pid))
	if err := os.WriteFile(file, []byte("1"), 0); err != nil {
		m.t.Fatal(err)
	}
	m.isHealth("the CPU is online", "offline", device, "Healthy")
	m.runsOn("the CPU is online", on.String(), pid)
	m.ends("offline")
	if err := m.Call(m.t.Context(), http.MethodDelete, claimsPath+"/resourceclaims/offline", "", nil); err != nil {
		m.t.Fatal(err)
	}
}

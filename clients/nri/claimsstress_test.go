package main

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berthd/berth/hack/stress"
	"github.com/berthd/berth/hack/testing/containerd"
)

// stressClaims is how many claims TestStressClaims has.
const stressClaims = 100

// TestStressClaims has claims on the only CPU for claims come and go, and kills berth-dra, berthd, the kubelet and containerd
// meanwhile. The runtime requires berth-nri. Each pod runs on that CPU, no two at a time, and in the end nothing of a claim is left.
func TestStressClaims(t *testing.T) {
	stress.Configured(t)
	k, cdi := withClaims(t)
	// Otherwise containerd starts containers before berth-nri is connected again.
	if err := errors.Join(k.End("berth-nri", os.Interrupt), k.Containerd.Configure(requirePlugin), k.Containerd.Kill(),
		k.Containerd.Start(t.Context())); err != nil {
		t.Fatal(err)
	}
	k.startPlugin()
	last := strconv.Itoa(runtime.NumCPU() - 1)
	k.Apply(`{"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": "place"}, "spec": {"spec": {"devices": {"requests": [
		{"name": "place", "exactly": {"deviceClassName": "cpu-memory.berthd.github.io", "capacity": {"requests": {"cpu": "1", "memory": "32Mi"}}}}]}}}}`)
	for i := range stressClaims {
		k.Apply(fmt.Sprintf(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "claimer-%d"}, "spec": {"terminationGracePeriodSeconds": 1, "restartPolicy": "OnFailure", "automountServiceAccountToken": false,
			"resourceClaims": [{"name": "place", "resourceClaimTemplateName": "place"}], "containers": [
			{"name": "main", "image": %q, "imagePullPolicy": "Never", "command": ["/probe", "show", ",", "burn", %q, "200ms"], "resources": {"claims": [{"name": "place"}]}}]}}`, i, containerd.ProbeImage, last))
	}
	began, kills, done := time.Now(), map[string]int{}, 0
	programs := []string{"berth-dra", "berthd", "kubelet", "containerd"}
	for done < stressClaims {
		before := done
		k.Eventually(fmt.Sprintf("more than %d pods have ended", before), func() bool {
			done = k.ended()
			return done > before
		})
		// One program for each four pods; the kubelet takes longest to come back.
		for sum := total(kills); sum < done/4 && done < stressClaims; sum++ {
			program := programs[sum%len(programs)]
			k.killForClaims(program, cdi)
			kills[program]++
		}
	}
	t.Logf("%d claims in %v; kills: %v", done, time.Since(began).Round(time.Second), kills)
	for i := range stressClaims {
		if text, err := k.Kubectl("logs", fmt.Sprintf("claimer-%d", i)); err != nil || !strings.Contains(text, "\naffinity="+last+"\n") {
			t.Errorf("pod %d: %v: %s", i, err, text)
		}
	}
	k.nothingLeft(cdi)
	if text, err := k.berthctl("ledger", "check"); err != nil {
		t.Errorf("check of the ledger: %v: %s", err, text)
	}
	k.logPrepareTimes()
}

func total(kills map[string]int) (sum int) {
	for _, n := range kills {
		sum += n
	}
	return sum
}

// ended counts the pods that have ended, and checks that no two others run. The scheduler allocates the CPU again when
// the API server knows that the pod before has ended.
func (k *kubernetes) ended() int {
	var pods corev1.PodList
	if k.Call(k.t.Context(), http.MethodGet, podsPath, "", &pods) != nil {
		return 0
	}
	ended, running := 0, []string(nil)
	for _, p := range pods.Items {
		switch {
		case p.Status.Phase == corev1.PodSucceeded:
			ended++
		case p.Status.Phase == corev1.PodFailed:
			k.t.Fatalf("pod %s has failed: %s: %s", p.Name, p.Status.Reason, p.Status.Message)
		case slices.ContainsFunc(p.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool { return s.State.Running != nil }):
			running = append(running, p.Name)
		}
	}
	if len(running) > 1 {
		k.t.Errorf("%v run on the CPU at the same time", running)
	}
	return ended
}

// killForClaims kills a program, and starts it again.
func (k *kubernetes) killForClaims(program, cdi string) {
	k.t.Helper()
	switch program {
	case "containerd":
		const synchronized = "synchronized with the runtime"
		before := strings.Count(k.Log("berth-nri").String(), synchronized)
		if err := k.Containerd.Kill(); err != nil {
			k.t.Fatal(err)
		}
		if err := k.Containerd.Start(k.t.Context()); err != nil {
			k.t.Fatal(err)
		}
		k.Eventually("berth-nri is connected again", func() bool {
			return strings.Count(k.Log("berth-nri").String(),
				synchronized) > before
		})
		return
	}
	const running = `"Started kubelet"`
	before := strings.Count(k.Log("kubelet").String(), running)
	_ = k.End(program, os.Kill)
	switch program {
	case "berth-dra":
		k.Start(program, k.dra(cdi))
	case "berthd":
		k.startBerthd()
	case "kubelet":
		k.StartProgram(program)
		// A kubelet ends if it finds no runtime, and the next program to be killed is containerd.
		k.Eventually("the kubelet runs again", func() bool {
			return strings.Count(k.Log("kubelet").String(), running) > before
		})
	}
}

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berthd/berth/hack/testing/containerd"
	"github.com/berthd/berth/hack/testing/nodetest"
)

// startKinds are pods that share CPUs, and pods with CPUs of their own.
var startKinds = []struct{ name, resources string }{
	{"burstable", `{"requests": {"cpu": "100m", "memory": "64Mi"}}`},
	{"exclusive", `{"limits": {"cpu": "1", "memory": "64Mi"}}`},
}

// BenchmarkClusterStart compares how long pods take to start with berth-nri and without: from their creation until
// the API server's status shows that they run. Each iteration starts a pod of each kind both ways, in turns: berth-nri is started
// and ended for that.
func BenchmarkClusterStart(b *testing.B) {
	k := newKubernetes(b, nil)
	took := map[string][]time.Duration{}
	pod := 0
	measure := func(with bool) {
		if with {
			k.startPlugin()
			defer func() {
				if err := k.End("berth-nri", os.Interrupt); err != nil {
					b.Fatal(err)
				}
			}()
		}
		// The first pod after a start finds no connections.
		pod++
		k.startLatency(fmt.Sprintf("p%d", pod), `{}`)
		for _, kind := range startKinds {
			pod++
			key := fmt.Sprintf("%s, %t", kind.name, with)
			took[key] = append(took[key], k.startLatency(fmt.Sprintf("p%d", pod), kind.resources))
		}
	}
	if err := k.End("berth-nri", os.Interrupt); err != nil {
		b.Fatal(err)
	}
	first := true
	for b.Loop() {
		measure(first)
		measure(!first)
		first = !first
	}
	milliseconds := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	for _, kind := range startKinds {
		without, with := median(took[kind.name+", false"]), median(took[kind.name+", true"])
		b.ReportMetric(milliseconds(without), kind.name+"-without-ms")
		b.ReportMetric(milliseconds(with), kind.name+"-with-ms")
		b.ReportMetric(milliseconds(with-without), kind.name+"-more-ms")
	}
	b.ReportMetric(0, "ns/op") // of both together it says nothing
}

func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}

// startLatency creates a pod, waits until it runs, and deletes it.
func (k *kubernetes) startLatency(name, resources string) time.Duration {
	k.t.Helper()
	ctx, cancel := context.WithTimeout(k.t.Context(), timeout)
	defer cancel()
	events, err := k.Open(ctx, http.MethodGet, podsPath+"?watch=1&fieldSelector=metadata.name%3D"+name, "")
	if err != nil {
		k.t.Fatal(err)
	}
	defer events.Close()
	text := fmt.Sprintf(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": %q}, "spec": {"terminationGracePeriodSeconds": 0, "automountServiceAccountToken": false, "containers": [
		{"name": "main", "image": %q, "imagePullPolicy": "Never", "command": ["/probe", "wait"], "resources": %s}]}}`, name, containerd.ProbeImage, resources)
	started := time.Now()
	if err := k.Call(ctx, http.MethodPost, podsPath, text, nil); err != nil {
		k.t.Fatal(err)
	}
	for decoder := json.NewDecoder(events); ; {
		var event struct{ Object podStatus }
		if err := decoder.Decode(&event); err != nil {
			k.t.Fatalf("watch pod %s: %v", name, err)
		}
		if s := event.Object.Status.ContainerStatuses; len(s) == 1 && s[0].State.Running != nil {
			break
		}
	}
	took := time.Since(started)
	if err := k.Call(ctx, http.MethodDelete, podsPath+"/"+name, "", nil); err != nil {
		k.t.Fatal(err)
	}
	// The next pod starts on a quiet node.
	k.Eventually("the pod's cgroup has gone", func() bool {
		return !slices.ContainsFunc(nodetest.Cgroups(k.Cgroup+"/kubepods"),
			func(dir string) bool { return strings.HasPrefix(filepath.Base(dir), "pod") })
	})
	return took
}

package driver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/berthd/berth/managers/machine/machinetest"
)

// ignored is a publisher whose slices nobody reads.
type ignored struct{}

func (ignored) PublishResources(context.Context, resourceslice.DriverResources) error { return nil }

// watchHealth plays a kubelet that watches the health of the devices, until the test ends. The function that it returns waits for a
// report.
func (p *place) watchHealth() (want func(what, want string)) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), time.Minute)
	reports, done := make(chan kubeletplugin.DeviceHealthReport), make(chan error, 2)
	go func() { done <- p.WatchHealthStatus(ctx, reports) }()
	go func() { p.Follow(ctx, ignored{}); done <- nil }()
	p.t.Cleanup(func() {
		cancel()
		for range 2 {
			if err := <-done; err != nil {
				p.t.Error(err)
			}
		}
	})
	return func(what, want string) {
		p.t.Helper()
		for got := ""; got != want; {
			select {
			case r := <-reports:
				got = text(r)
			case <-ctx.Done():
				p.t.Fatalf("%s: %s, want %s", what, got, want)
			}
		}
	}
}

// TestHealth: a device is unhealthy while a prepared claim holds CPUs or memory that claims cannot have any more, over a
// restart of berthd with another configuration.
func TestHealth(t *testing.T) {
	t.Parallel()
	p := newPlace(t, "")
	for uid, numa := range map[string]int{"a": 0, "b": 1} {
		if r := p.prepared(allocated(uid, numa, 2, "1Gi")); r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	want := p.watchHealth()
	want("nothing is wrong", "numa-0 Healthy; numa-1 Healthy")
	p.stop()
	want("berthd is away", "numa-0 Unknown: berthd does not answer; numa-1 Unknown: berthd does not answer")
	p.dra = `{cpus: "1-6,10-14", memory: [{numaNode: 0, limits: {memory: 8Gi}}, {numaNode: 1, limits: {memory: 512Mi}}]}`
	p.startBerthd("")
	off := "numa-0 Unhealthy: CPUs 9 of claim default/claim-a are offline, or not for claims any more; "
	want("less is for claims", off+"numa-1 Unhealthy: claims hold 1Gi of memory, and there is 512Mi for claims")
	p.unprepare("b")
	want("a claim is given back", off+"numa-1 Healthy")
	p.unprepare("a")
	want("all is given back", "numa-0 Healthy; numa-1 Healthy")
}

// TestHealthOffline: CPUs go offline and come back while berthd runs. A device is unhealthy only as long as a claim holds an
// offline CPU of it. A claim that berthd has lost meanwhile is admitted again with that CPU.
func TestHealthOffline(t *testing.T) {
	t.Parallel()
	const shape = "2s4c2t,mem=64Gi"
	p := newPlace(t, "")
	p.machine = filepath.Join(p.root, "machine.json")
	become := func(options ...machinetest.Option) {
		t.Helper()
		m, err := machinetest.Build(shape, options...).Marshal()
		if err == nil {
			err = errors.Join(os.WriteFile(p.machine+".new", m, 0o600), os.Rename(p.machine+".new", p.machine))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	become()
	p.stop()
	p.startBerthd("")
	if r := p.prepared(allocated("a", 0, 2, "1Gi")); r.Err != nil {
		t.Fatal(r.Err)
	}
	want := p.watchHealth()
	healthy := "numa-0 Healthy; numa-1 Healthy"
	want("nothing is wrong", healthy)
	become(machinetest.Offline("9,12"))
	off := "numa-0 Unhealthy: CPUs 9 of claim default/claim-a are offline, or not for claims any more; numa-1 Healthy"
	want("a CPU of the claim and a free one are offline", off)
	if r := p.prepared(allocated("b", 1, 6, "1Gi")); r.Err == nil || !strings.Contains(r.Err.Error(),
		"cpu on NUMA node 1: 6 needed, 5 free") {
		t.Errorf("more CPUs than are online: %v", r.Err)
	}
	become()
	want("all are online", healthy)
	become(machinetest.Offline("9"))
	want("the claim's CPU is offline again", off)
	p.lose()
	want("berthd has lost the claim", off)
	p.want("it is admitted again", "a: 1,9")
	p.unprepare("a")
	want("the claim is given back", healthy)
}

func text(r kubeletplugin.DeviceHealthReport) string {
	var out []string
	for _, d := range r.Devices {
		if d.PoolName != node || d.LastUpdated.IsZero() {
			return fmt.Sprintf("%+v", d)
		}
		one := d.DeviceName + " " + string(d.Health)
		if d.Message != "" {
			one += ": " + d.Message
		}
		out = append(out, one)
	}
	return strings.Join(out, "; ")
}

// TestHealthOfGoneDevices: a device that is not published any more is reported as long as a claim has a part of it. The node may have its
// memory and only no CPU: nothing is said of its memory.
func TestHealthOfGoneDevices(t *testing.T) {
	t.Parallel()
	p := newPlace(t, "")
	if r := p.prepared(allocated("a", 1, 2, "1Gi")); r.Err != nil {
		t.Fatal(r.Err)
	}
	p.mu.Lock()
	p.pools = map[uint32]pool{0: {bytes: 1}}
	p.assess()
	p.mu.Unlock()
	report, changed := p.health.get(time.Unix(1, 0))
	if got := text(report); got != "numa-0 Healthy; numa-1 Unhealthy: CPUs 4,12 of claim default/claim-a are offline, or not for claims any more" {
		t.Error(got)
	}
	p.unprepare("a")
	<-changed
	if report, _ = p.health.get(time.Unix(1, 0)); text(report) != "numa-0 Healthy" {
		t.Error(text(report))
	}
}

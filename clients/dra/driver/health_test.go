package driver

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
)

// ignored is a publisher whose slices nobody reads.
type ignored struct{}

func (ignored) PublishResources(context.Context, resourceslice.DriverResources) error { return nil }

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
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	reports, done := make(chan kubeletplugin.DeviceHealthReport), make(chan error, 2)
	go func() { done <- p.WatchHealthStatus(ctx, reports) }()
	go func() { p.Follow(ctx, ignored{}); done <- nil }()
	defer func() {
		cancel()
		for range 2 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	}()
	want := func(what, want string) {
		t.Helper()
		got := ""
		for got != want {
			select {
			case r := <-reports:
				got = text(r)
			case <-ctx.Done():
				t.Fatalf("%s: %s, want %s", what, got, want)
			}
		}
	}
	want("nothing is wrong", "numa-0 Healthy; numa-1 Healthy")
	p.stop()
	want("berthd is away", "numa-0 Unknown: berthd has not answered yet; numa-1 Unknown: berthd has not answered yet")
	p.dra = `{cpus: "1-6,10-14", memory: [{numaNode: 0, limits: {memory: 8Gi}}, {numaNode: 1, limits: {memory: 512Mi}}]}`
	p.startBerthd("")
	off := "numa-0 Unhealthy: CPUs 9 of claim default/claim-a are offline, or not for claims any more; "
	want("less is for claims", off+"numa-1 Unhealthy: claims hold 1Gi of memory, and there is 512Mi for claims")
	p.unprepare("b")
	want("a claim is given back", off+"numa-1 Healthy")
	p.unprepare("a")
	want("all is given back", "numa-0 Healthy; numa-1 Healthy")
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

// TestHealthOfGoneDevices: a device that is not published any more is reported as long as a claim has a part of it.
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
	if got := text(report); !strings.HasPrefix(got, "numa-0 Healthy; numa-1 Unhealthy: CPUs 4,12 of claim") || !strings.Contains(got, "claims hold 1Gi of memory, and there is 0 for claims") {
		t.Error(got)
	}
	p.unprepare("a")
	<-changed
	if report, _ = p.health.get(time.Unix(1, 0)); text(report) != "numa-0 Healthy" {
		t.Error(text(report))
	}
}

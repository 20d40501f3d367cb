package driver

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	nodev1 "github.com/berthd/berth/api/berth/node/v1"
	"github.com/berthd/berth/managers/cpuset"
)

// published collects what is published.
type published chan resourceslice.DriverResources

func (p published) PublishResources(ctx context.Context, r resourceslice.DriverResources) error {
	select {
	case p <- r:
	case <-ctx.Done():
	}
	return ctx.Err()
}

// TestPublish: each NUMA node is a device with what claims may have, in steps of a core where whole cores are given.
func TestPublish(t *testing.T) {
	t.Parallel()
	p := newPlace(t, `, options: {full-pcpus-only: "true"}`)
	out, done := make(published), make(chan struct{})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	go func() { defer close(done); p.Follow(ctx, out) }()
	got := <-out
	cancel()
	<-done
	devices := got.Pools[node].Slices[0].Devices
	if len(got.Pools) != 1 || len(devices) != 2 {
		t.Fatalf("%+v", got)
	}
	for i, d := range devices {
		a := d.Attributes
		cpu, memory := d.Capacity["cpu"], d.Capacity["memory"]
		if d.Name != fmt.Sprintf("numa-%d", i) || !*d.AllowMultipleAllocations ||
			*a["resource.kubernetes.io/numaNode"].IntValue != int64(i) || *a["socket"].IntValue != int64(i) ||
			*a["cores"].IntValue != 3 || *a["threadsPerCore"].IntValue != 2 || *a["cpuModel"].StringValue != "Quay 1" ||
			cpu.Value.Value() != 6 || cpu.RequestPolicy.ValidRange.Step.Value() != 2 || cpu.RequestPolicy.Default.Value() != 2 ||
			memory.Value.Value() != 8<<30 {
			t.Errorf("%+v", d)
		}
	}
	if r := p.prepared(allocated("odd", 0, 3, "1Gi")); r.Err == nil || !strings.Contains(r.Err.Error(), "SMTAlignmentError") {
		t.Errorf("half a core: %v", r.Err)
	}
}

// TestSockets: a NUMA node has a socket only if all of its CPUs are of one that the kernel knows.
func TestSockets(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		sockets []int // of CPUs 0 and 1 of NUMA node 0, and CPU 2 of NUMA node 1
		want    string
	}{
		{[]int{0, 0, 1}, "0"},
		{[]int{7, 7, 7}, "7"},
		{[]int{0, 1, 1}, "none"},
		{[]int{-1, -1, -1}, "none"},
		{[]int{-1, 0, 0}, "none"},
	} {
		machine := &nodev1.GetMachineResponse{}
		for i, s := range row.sockets {
			machine.Cpus = append(machine.Cpus, &nodev1.CPU{Cpu: uint32(i), Core: uint32(i), Socket: uint32(s), NumaNode: uint32(i / 2)})
		}
		got := map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{}
		locate(got, 0, cpuset.Of(1), machine) // claims may have CPU 1
		text := "none"
		if s, ok := got["socket"]; ok {
			text = fmt.Sprint(*s.IntValue)
		}
		if text != row.want || *got["cores"].IntValue != 1 || *got["threadsPerCore"].IntValue != 1 {
			t.Errorf("CPUs of the sockets %v: socket %s, want %s: %v", row.sockets, text, row.want, got)
		}
	}
}

// TestCapacity: a claim gets a multiple of the step. The API server refuses a range of values with less than two.
func TestCapacity(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		value, step  int64
		values, most int64 // values is the only one, most that of a range
	}{
		{value: 1, step: 1, values: 1},
		{value: 2, step: 2, values: 2},
		{value: 2, step: 1, most: 2},
		{value: 6, step: 2, most: 6},
	} {
		p := capacity(row.value, row.step, row.step, row.step, resource.DecimalSI).RequestPolicy
		if p.Default.Value() != row.step || (p.ValidRange != nil) != (row.most > 0) || (len(p.ValidValues) == 1) != (row.values > 0) {
			t.Fatalf("%+v: %+v", row, p)
		}
		if r := p.ValidRange; r != nil && (r.Min.Value() != row.step || r.Max.Value() != row.most ||
			r.Min.Value()+r.Step.Value() > row.value) {
			t.Errorf("%+v: %+v", row, r)
		}
		if v := p.ValidValues; len(v) == 1 && v[0].Value() != row.values {
			t.Errorf("%+v: %v", row, v)
		}
	}
}

package device_test

import (
	"maps"
	"reflect"
	"testing"

	"github.com/berthd/berth/managers/device"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/workload"
)

// TestUpdatePublished reads section 16 of the specification of devices: only a pod that
// holds devices changes anything, and then every resource that anybody holds.
func TestUpdatePublished(t *testing.T) {
	t.Parallel()
	const gpu, nic = "example.com/gpu", "example.com/nic"
	l := ledgertest.New(t, ledger.Rules{Machine: machinetest.Build("4c")})
	outside := ledgertest.Pod("outside", "c")
	outside.Claims = append(outside.Claims, ledger.Claim{
		Owner: ledger.Owner{Pod: "outside", Container: "c"}, Provider: "elsewhere", Resource: "example.com/tape",
		Devices: &ledger.Devices{Devices: []ledger.Device{{ID: "t0"}}},
	})
	for _, pod := range []*ledger.Pod{
		// The init container's device is the main container's too.
		ledgertest.With(ledgertest.Pod("a", "init:prepare", "main"), ledgertest.Devices("prepare", gpu, "g0"),
			ledgertest.Devices("main", gpu, "g0", "g1")),
		ledgertest.With(ledgertest.Pod("b", "main"), ledgertest.Devices("main", nic, "n0")),
		ledgertest.Pod("none", "main"), outside,
	} {
		if _, err := l.Update(t.Context(), func(d *ledger.Draft) error { d.PutPod(pod); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	tests := []struct {
		what, uid         string
		published, needed workload.Quantities
		raised            []string
	}{
		{"the plugin is away", "a", workload.Quantities{gpu: 0, nic: 0}, workload.Quantities{gpu: 2, nic: 1}, []string{gpu, nic}},
		{"enough", "a", workload.Quantities{gpu: 4, nic: 1}, workload.Quantities{gpu: 4, nic: 1}, nil},
		{"one is not published", "b", workload.Quantities{gpu: 1, "cpu": 3000}, workload.Quantities{gpu: 2, nic: 1, "cpu": 3000},
			[]string{gpu, nic}},
		{"nothing published", "b", nil, workload.Quantities{gpu: 2, nic: 1}, []string{gpu, nic}},
		{"a pod without devices", "none", workload.Quantities{gpu: 0}, workload.Quantities{gpu: 0}, nil},
		{"a pod with another provider's", "outside", workload.Quantities{gpu: 0}, workload.Quantities{gpu: 0}, nil},
		{"nobody", "nobody", workload.Quantities{gpu: 0}, workload.Quantities{gpu: 0}, nil},
	}
	for _, tt := range tests {
		before := maps.Clone(tt.published)
		needed, raised := device.UpdatePublished(l.View(), tt.uid, tt.published)
		if !reflect.DeepEqual(needed, tt.needed) || !reflect.DeepEqual(raised, tt.raised) {
			t.Errorf("%s: %v, raised %v, want %v, raised %v", tt.what, needed, raised, tt.needed, tt.raised)
		}
		if after := maps.Clone(tt.published); !maps.Equal(after, before) {
			t.Errorf("%s: the amounts given have become %v", tt.what, after)
		}
	}
}

package recovery_test

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/check"
	"github.com/berthd/berth/managers/ledger/claimrecord"
	"github.com/berthd/berth/managers/ledger/journal"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/recovery"
	"github.com/berthd/berth/managers/workload"
)

// forgedClaims are claims that a forged claim record may have: of this machine or not, of
// containers that the pod has or not.
func forgedClaims(uid string) *rapid.Generator[[]ledger.Claim] {
	one := rapid.Custom(func(t *rapid.T) ledger.Claim {
		c := ledger.Claim{
			Owner: ledger.Owner{Pod: uid, Container: rapid.SampledFrom([]string{"", "c", "d", "c/cpu", "·pod",
				"\x00"}).Draw(t, "container")},
			Provider: rapid.SampledFrom([]string{"", "cpu", "memory", "device", "device/x"}).Draw(t, "provider"),
			Resource: rapid.SampledFrom([]string{"", "cpu", "memory", gpu, "hugepages-2Mi", "cpu/cpu", "x"}).Draw(t, "resource"),
		}
		switch rapid.IntRange(0, 3).Draw(t, "payload") {
		case 0:
			set := rapid.SampledFrom([]cpuset.Set{cpuset.Of(0), cpuset.Of(2, 3), cpuset.Of(3, 4), cpuset.Of(8191),
				cpuset.Range(0, 8191)}).Draw(t, "CPUs")
			use := rapid.SampledFrom([]ledger.CPUUse{ledger.CPUExclusive, ledger.CPUPod, ledger.CPUPodExclusive,
				ledger.CPUPodShared}).Draw(t, "use")
			c.CPUs = &ledger.CPUs{Set: set, Use: use}
		case 1:
			bytes := rapid.SampledFrom([]uint64{0, 1 << 20, math.MaxUint64}).Draw(t, "bytes")
			c.Memory = []ledger.Block{{Nodes: numa.Of(rapid.SampledFrom([]int{0, 1, 63}).Draw(t, "node")), Bytes: bytes}}
		case 2:
			ids := rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"", "gpu-1", "gpu-2", "/"}), 1, 3, rapid.ID).Draw(t, "ids")
			slices.Sort(ids)
			c.Devices = &ledger.Devices{}
			for _, id := range ids {
				c.Devices.Devices = append(c.Devices.Devices, ledger.Device{ID: id})
			}
		default:
			c.Opaque = []byte("opaque")
		}
		return c
	})
	return rapid.Custom(func(t *rapid.T) []ledger.Claim {
		claims := rapid.SliceOfN(one, 0, 4).Draw(t, "claims")
		ledger.SortClaims(claims)
		return claims
	})
}

// forged is the observation of a pod with a forged claim record, with a checksum
// that holds.
func forged(t *rapid.T, uid string) recovery.Observation {
	o := recovery.Observation{
		UID: uid, QoS: workload.Guaranteed, Containers: kernel("6-7"),
		Processes: rapid.SampledFrom([]recovery.Processes{recovery.Running, recovery.Empty, recovery.Unseen}).Draw(t, "processes"),
	}
	r := &claimrecord.Record{
		Pod: uid, Namespace: "default", Name: "pod-" + uid, QoS: workload.Guaranteed,
		BootID:     rapid.SampledFrom([]string{boot, boot, "another", ""}).Draw(t, "boot"),
		Epoch:      rapid.SampledFrom([]ledger.EpochID{epoch, 0, math.MaxUint64}).Draw(t, "epoch"),
		Generation: rapid.SampledFrom([]uint64{0, 5, 6, 7, math.MaxUint64}).Draw(t, "generation"),
		Digest:     rapid.SampledFrom([]string{"digest-a", "x"}).Draw(t, "digest"),
		Claims:     forgedClaims(uid).Draw(t, "claims"),
		Bindings: []ledger.RecordedBinding{{ID: rapid.SampledFrom([]string{"id-1", "id-2"}).Draw(t, "id"), Container: "c",
			CgroupPath: "../../.."}},
	}
	data, err := r.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if o.Claims, err = claimrecord.Decode(uid, data); err == nil {
		o.Record = recovery.Whole
	} else {
		o.Record = recovery.Damaged
	}
	return o
}

// opened opens a ledger whose policy findings are allowed: claims of a forged record may be
// on CPUs and memory that the machine does not have.
func opened(t *rapid.T, j journal.Journal) (*ledger.Ledger, journal.Report) {
	l, report, err := journal.Open(t.Context(), journal.Options{Journal: j, Rules: rules(), EpochID: epoch, BootID: boot})
	if err != nil {
		t.Fatal(err)
	}
	return l, report
}

// TestForgedClaimRecords: for any claim records with a right checksum, a start comes to
// an end, the ledger that it leaves has no contradictions, and it can be read again as it
// was written.
func TestForgedClaimRecords(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		j := ledgertest.NewJournal()
		l, _ := opened(rt, j)
		for i := range 5 {
			_, err := l.Update(t.Context(), func(d *ledger.Draft) error {
				if d.SetUncertain(fmt.Sprint(i)); i == 4 {
					p := ledgertest.Pod("a", "c")
					p.Claims = claimsOf("2-3", "gpu-1")
					d.PutPod(p)
				}
				return nil
			})
			if err != nil {
				rt.Fatal(err)
			}
		}
		var observed []recovery.Observation
		for _, uid := range []string{"a", "b", "c"} {
			observed = append(observed, forged(rt, uid))
		}
		plan := recovery.Decide(recovery.Input{View: l.View(), Observed: observed, BootID: boot, Now: now})
		if _, err := l.Update(t.Context(), func(d *ledger.Draft) error { plan.Apply(d); return nil }); err != nil {
			rt.Fatalf("the start fails: %v", err)
		}
		after := l.View()
		for _, f := range check.View(after) {
			if f.Kind == check.Structural {
				rt.Fatalf("the start leaves: %v", f)
			}
		}
		again, report := opened(rt, j)
		if len(report.Damage)+len(report.Lost) > 0 {
			rt.Fatalf("damage after the start: %v %v", report.Damage, report.Lost)
		}
		want, err := journal.Dump(after)
		if err != nil {
			rt.Fatal(err)
		}
		have, err := journal.Dump(again.View())
		if err != nil || !slices.EqualFunc(want, have, func(a, b journal.Entry) bool {
			return a.Key == b.Key &&
				string(a.Value) == string(b.Value)
		}) {
			rt.Fatalf("another ledger: %v\n%s\n%s", err, want, have)
		}
	})
}

package recovery_test

import (
	"testing"

	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/claimrecord"
	"github.com/berthd/berth/managers/recovery"
)

// Claim records with digests of their devices: beside the same claims in the ledger they are whole. Otherwise the pod
// keeps what is known, and no devices are allocated until the agent names them.
func TestUnlistedDevices(t *testing.T) {
	t.Parallel()
	unlisted := func(change func(r *claimrecord.Record)) recovery.Observation {
		return record(func(r *claimrecord.Record) {
			r.Claims = append(r.Claims[:1:1], r.Claims[2:]...)
			r.Unlisted = []claimrecord.Unlisted{{
				Claim:  ledger.Claim{Owner: ledger.Owner{Pod: "a", Container: "c"}, Provider: "device", Resource: gpu},
				Digest: claimrecord.DigestOf(claimsOf("2-3", "gpu-1")[1]),
			}}
			if change != nil {
				change(r)
			}
		})
	}
	for name, row := range map[string]struct {
		known    bool
		seen     recovery.Observation
		want     recovery.Case
		devices  int // of the kept claims
		unlisted bool
	}{
		"the same":            {true, unlisted(nil), recovery.Agrees, 1, false},
		"another epoch, same": {true, unlisted(func(r *claimrecord.Record) { r.Epoch = 8 }), recovery.Agrees, 1, false},
		"another epoch, others": {true, unlisted(func(r *claimrecord.Record) {
			r.Epoch, r.Unlisted[0].Digest = 8, "other"
		}), recovery.OtherEpoch, 0, true},
		"a newer change": {true, unlisted(func(r *claimrecord.Record) {
			r.Generation, r.Unlisted[0].Digest = 6, "other"
		}), recovery.Unacknowledged, 1, true},
		"not in the ledger": {false, unlisted(nil), recovery.Unrecorded, 0, true},
	} {
		row.seen.Processes = recovery.Running
		plan := recovery.Decide(recovery.Input{View: world(t, row.known), Observed: []recovery.Observation{row.seen}, BootID: boot,
			Now: now})
		if len(plan.Decisions) != 1 {
			t.Fatalf("%s: %+v", name, plan.Decisions)
		}
		d, devices := plan.Decisions[0], 0
		for _, c := range d.Kept {
			if c.Devices != nil {
				devices++
			}
		}
		if d.Case != row.want || devices != row.devices || d.DevicesUnknown != row.unlisted || d.Waits != row.unlisted {
			t.Errorf("%s: %+v", name, d)
		}
	}
}

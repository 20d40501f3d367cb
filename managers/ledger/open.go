package ledger

import (
	"context"
	"slices"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/machine"
)

// Report is the result of a start.
type Report struct {
	// Generation of the loaded state; 0 for an empty journal.
	Generation uint64 `json:"generation"`
	// MigratedFrom is the schema version of an older state, otherwise nil.
	MigratedFrom *int `json:"migrated_from,omitempty"`
	// LastBootID is the kernel's id of the boot of the last commit; empty if unknown.
	LastBootID string `json:"last_boot_id,omitempty"`
	// MachineChanged and ConfigChanged are whether the last commit was made on another
	// machine or with another configuration.
	MachineChanged bool `json:"machine_changed,omitempty"`
	ConfigChanged  bool `json:"config_changed,omitempty"`
	// Memory is Rules.Memory at the last commit.
	Memory []NodeMemory `json:"memory,omitempty"`
	// Dropped is an earlier policy that is no longer in effect.
	Dropped *Override `json:"dropped,omitempty"`
	// Damage lists the damage of the stored state. The view of an opened ledger contains
	// none of it.
	Damage []Finding `json:"damage,omitempty"`
	// Renewed lists damaged entries that only compare the last commit with the present
	// (metaFacts), as sentences. The next commit writes them again; they are no damage of the state.
	Renewed []string `json:"renewed,omitempty"`
	// Whole is the number of kept pods; Lost are the others, by uid.
	Whole int       `json:"whole"`
	Lost  []LostPod `json:"lost,omitempty"`
	// Uncertain is why there may be pods without any readable data; empty if there are
	// none.
	Uncertain string `json:"uncertain,omitempty"`
	// Unread lists the unreadable parts of the journal's file, as sentences.
	Unread []string `json:"unread,omitempty"`
	// History is why the state before this start cannot be computed, if the history is damaged.
	History string `json:"history,omitempty"`
	// Grandfathered are claims that the current rules would not allow. They are kept.
	Grandfathered []Finding `json:"grandfathered,omitempty"`
	// Broken are claims on CPUs that are offline, and on CPUs or NUMA nodes that the machine no
	// longer has.
	Broken []Finding `json:"broken,omitempty"`
}

// Open loads the journal's state and checks it. It writes nothing.
//
// An error of class Corrupt means that the state is damaged. The report lists the damage,
// and what Salvage would keep. Unsupported means that a newer berth wrote the state,
// Invalid that Options are incomplete. Errors of Journal.Load keep their class. Changed
// rules are not an error, but in the report.
func Open(ctx context.Context, o Options) (*Ledger, Report, error) {
	if o.Journal == nil || o.Rules.Machine == nil {
		return nil, Report{}, errdefs.Invalidf("open ledger: journal and machine must be given")
	}
	if o.Traces <= 0 {
		o.Traces = DefaultTraces
	}
	if o.TraceBytes <= 0 {
		o.TraceBytes = DefaultTraceBytes
	}
	entries, err := o.Journal.Load(ctx)
	if err != nil {
		return nil, Report{}, &errdefs.Error{Class: errdefs.ClassOf(err), Message: "open ledger: " + err.Error(), Err: err}
	}
	st, err := load(entries, schemaVersion, migrations)
	if err != nil {
		return nil, Report{}, err
	}
	var report Report
	view := &st.view
	if st.fresh {
		view.epoch.base = o.Epoch
	}
	if view.override != nil && len(st.damage) == 0 {
		o.restore(&st, &report)
	}
	o.keep(&st)
	view.rules, view.traces.limits = o.Rules, traceLimits{o.Traces, o.TraceBytes}
	findings := st.resolve()
	st.fill(&report)
	report.Generation, report.LastBootID = view.generation, view.epoch.boot
	report.sort(findings)
	if len(report.Damage) > 0 {
		return nil, report, report.corrupt()
	}
	l := &Ledger{journal: o.Journal, newEpoch: o.NewEpochID, turn: make(chan struct{}, 1), pending: st.pending}
	if o.enter(view) || len(st.unread) > 0 || st.otherMachine(o.Rules.Machine) || st.machine != o.Rules.Machine.Fingerprint() ||
		st.config != o.Rules.ConfigDigest || !slices.Equal(st.memory, o.Rules.Memory) ||
		st.reservation != o.Rules.reservation() || !st.claimRules.equal(o.Rules.claims()) {
		report.MachineChanged = st.machineChanged(o.Rules)
		report.ConfigChanged = st.configChanged(o.Rules)
		facts, err := encodeFacts(view, st.rules().on(nil))
		if err != nil {
			return nil, report, errdefs.Internalf("open ledger: %w", err)
		}
		for _, f := range metaFacts { // what is absent now, such as the memory, must not stay damaged
			if st.unread[f.key] != nil {
				l.pending = append(l.pending, Entry{Bucket: BucketMeta, Key: f.key})
			}
		}
		l.pending = append(l.pending, facts...)
	}
	switch err := l.history.open(ctx, &o, view); {
	case errdefs.ClassOf(err) == errdefs.Corrupt: // the state does not depend on it
		report.History = err.Error()
	case err != nil:
		return nil, report, &errdefs.Error{Class: errdefs.ClassOf(err), Message: "open the ledger's history: " + err.Error(), Err: err}
	}
	if l.history.store == nil {
		report.History = ""
	} else if st.noRules() != nil {
		l.history.begins = true
	}
	l.started(&st, view)
	l.current.Store(view)
	return l, report, nil
}

// machineChanged returns whether the last commit was made on another machine, as far as that is known.
func (st *state) machineChanged(r Rules) bool {
	return !st.fresh && (st.unread[metaMachine] == nil || st.topology != nil) && st.machine != r.Machine.Fingerprint()
}

// configChanged returns whether the last commit was made with another configuration, as far as that is known.
func (st *state) configChanged(r Rules) bool {
	return !st.fresh && st.unread[metaConfig] == nil && st.config != r.ConfigDigest
}

// otherMachine returns whether the machine differs from the stored one, also in what no claim relies on.
func (st *state) otherMachine(m *machine.Topology) bool {
	return st.topology == nil || !machine.Compare(st.topology, m).Empty()
}

// restore replaces the current rules by those of an earlier policy, or drops that policy
// with the next commit.
func (o *Options) restore(st *state, r *Report) {
	if o.Restore != nil {
		if rules, ok := o.Restore(*st.view.override); ok {
			o.Rules = rules
			return
		}
	}
	r.Dropped, st.view.override = st.view.override, nil
	st.pending = append(st.pending, Entry{Bucket: BucketMeta, Key: metaOverride})
}

// keep lets the CPUs stay reserved that were reserved by the same configuration in this boot.
func (o *Options) keep(st *state) {
	if o.Keep == nil || st.fresh || !st.known[metaReservation] || st.config != o.Rules.ConfigDigest || st.view.epoch.boot != o.BootID ||
		st.reservation.Reserved == o.Rules.ReservedCPUs {
		return
	}
	if rules, ok := o.Keep(st.reservation.Reserved, st.view.override); ok {
		o.Rules = rules
	}
}

// sort sorts the policy findings of Check into the report.
func (r *Report) sort(findings []Finding) {
	for _, f := range findings {
		if f.Rule == RuleVanished || f.Rule == RuleOffline || f.Rule == RuleShared {
			r.Broken = append(r.Broken, f)
		} else {
			r.Grandfathered = append(r.Grandfathered, f)
		}
	}
}

package ledger

import (
	"context"
	"slices"

	"github.com/berthd/berth/managers/errdefs"
)

// Report says what a start found.
type Report struct {
	// Generation of the state that was found; 0 for an empty journal.
	Generation uint64 `json:"generation"`
	// MigratedFrom is the schema version of the state if it was an older one,
	// and nil otherwise.
	MigratedFrom *int `json:"migrated_from,omitempty"`
	// LastBootID is the kernel's id of the boot in which the last commit was made;
	// empty if that is not known.
	LastBootID string `json:"last_boot_id,omitempty"`
	// MachineChanged and ConfigChanged tell that the last commit was made on
	// another machine or under another configuration.
	MachineChanged bool `json:"machine_changed,omitempty"`
	ConfigChanged  bool `json:"config_changed,omitempty"`
	// Memory is Rules.Memory at the last commit.
	Memory []NodeMemory `json:"memory,omitempty"`
	// Dropped is a policy that was set before and does not hold any more.
	Dropped *Override `json:"dropped,omitempty"`
	// Damage is what is wrong with the stored state. None of it is in the view of a
	// ledger that was opened.
	Damage []Finding `json:"damage,omitempty"`
	// Whole counts the pods that are kept, Lost are those that are not, by uid.
	Whole int       `json:"whole"`
	Lost  []LostPod `json:"lost,omitempty"`
	// Uncertain tells why there may be pods of which the state says nothing at all;
	// empty: there are none.
	Uncertain string `json:"uncertain,omitempty"`
	// Unread tells, in sentences, which parts of the journal's file could not be read.
	Unread []string `json:"unread,omitempty"`
	// Grandfathered are claims that today's rules would not allow. They stay.
	Grandfathered []Finding `json:"grandfathered,omitempty"`
	// Broken are claims on CPUs or NUMA nodes that the machine has lost.
	Broken []Finding `json:"broken,omitempty"`
}

// Open loads the journal's state and checks it. It writes nothing.
//
// An error of class Corrupt means that the state is damaged; the report lists
// what is wrong, and what Salvage would keep of the state. Class Unsupported means that the state was written by a newer version of
// berth, class Invalid that Options lack something. Errors of Journal.Load come
// with their own class. Changed rules are no error: the report tells.
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
	view.rules, view.traces.limits = o.Rules, traceLimits{o.Traces, o.TraceBytes}
	findings := st.resolve()
	st.tell(&report)
	report.Generation, report.LastBootID = view.generation, view.epoch.boot
	report.sort(findings)
	if len(report.Damage) > 0 {
		return nil, report, report.corrupt()
	}
	l := &Ledger{journal: o.Journal, newEpoch: o.NewEpochID, turn: make(chan struct{}, 1), pending: st.pending}
	if o.enter(view) || st.machine != o.Rules.Machine.Fingerprint() || st.config != o.Rules.ConfigDigest || !slices.Equal(st.memory, o.Rules.Memory) {
		report.MachineChanged = !st.fresh && st.machine != o.Rules.Machine.Fingerprint()
		report.ConfigChanged = !st.fresh && st.config != o.Rules.ConfigDigest
		facts, err := encodeFacts(view, st.memory)
		if err != nil {
			return nil, report, errdefs.Internalf("open ledger: %w", err)
		}
		l.pending = append(l.pending, facts...)
	}
	l.current.Store(view)
	return l, report, nil
}

// restore puts the rules of a policy that was set before in the place of today's,
// or has the policy dropped with the next commit.
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

// sort puts the policy findings of Check where they belong.
func (r *Report) sort(findings []Finding) {
	for _, f := range findings {
		if f.Rule == RuleVanished {
			r.Broken = append(r.Broken, f)
		} else {
			r.Grandfathered = append(r.Grandfathered, f)
		}
	}
}

package journal

import (
	"context"
	"maps"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/internal/ordered"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/check"
	"github.com/berthd/berth/managers/machine"
)

// DefaultTraces and DefaultTraceBytes are the default limits of the newest traces, by
// number and total size.
const (
	DefaultTraces     = 256
	DefaultTraceBytes = 16 << 20
)

// Options configure how a ledger is opened.
type Options struct {
	// Journal stores the ledger's commits; the caller closes it after the last use of the
	// ledger.
	Journal Journal
	// Rules are the current rules; Rules.Machine must be set.
	Rules ledger.Rules
	// Restore returns the rules of a policy that was set before. If it returns false or is
	// nil, the override is dropped and Rules apply.
	Restore func(ledger.Override) (ledger.Rules, bool)
	// Keep returns the rules with the CPUs that were reserved at the last commit of this boot
	// under the same configuration, and the override in effect. It may be nil, and return false
	// to keep Rules.
	Keep func(reserved cpuset.Set, o *ledger.Override) (ledger.Rules, bool)
	// Epoch is the base of the revisions of an empty ledger, in units of 1024. Milliseconds
	// since 1970 keep them above those of earlier, lost ledgers. An existing ledger keeps
	// its own base.
	Epoch uint64
	// EpochID is the id of an empty ledger or one without an id: a random number. An
	// existing id is kept until RenewEpoch.
	EpochID ledger.EpochID
	// NewEpochID returns a random id for another epoch. It is needed if the journal has to
	// be created again (ErrDetached); without it commits fail then.
	NewEpochID func() ledger.EpochID
	// BootID is the kernel's id of this boot; empty if unused. It is written with the first
	// commit of each boot.
	BootID string
	// Traces is the number of newest traces to keep, in addition to those of current pods;
	// 0 means DefaultTraces.
	Traces int
	// TraceBytes limits the stored size of the newest traces, except the last one; 0 means
	// DefaultTraceBytes.
	TraceBytes int
	// History records the commits; nil if there is none.
	History Recorder
}

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
	// Settings are what has changed in the configuration, by name; none if it has not, or if that is not known.
	Settings []SettingChange `json:"settings,omitempty"`
	// Memory is Rules.Memory at the last commit.
	Memory []ledger.NodeMemory `json:"memory,omitempty"`
	// Dropped is an earlier policy that is no longer in effect.
	Dropped *ledger.Override `json:"dropped,omitempty"`
	// Damage lists the damage of the stored state. The view of an opened ledger contains
	// none of it.
	Damage []check.Finding `json:"damage,omitempty"`
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
	Grandfathered []check.Finding `json:"grandfathered,omitempty"`
	// Broken are claims on CPUs that are offline, and on CPUs or NUMA nodes that the machine no
	// longer has.
	Broken []check.Finding `json:"broken,omitempty"`
}

// Open loads the journal's state and checks it. It writes nothing.
//
// An error of class Corrupt means that the state is damaged. The report lists the damage,
// and what Salvage would keep. Unsupported means that a newer berth wrote the state,
// Invalid that Options are incomplete. Errors of Journal.Load keep their class. Changed
// rules are not an error, but in the report.
func Open(ctx context.Context, o Options) (*ledger.Ledger, Report, error) {
	if o.Journal == nil || o.Rules.Machine == nil {
		return nil, Report{}, errdefs.Invalidf("open ledger: journal and machine must be given")
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
	if st.fresh {
		st.Epoch.Base = o.Epoch
	}
	if st.Override != nil && len(st.damage) == 0 {
		o.restore(&st, &report)
	}
	o.keep(&st)
	report.Generation, report.LastBootID = st.Generation, st.Epoch.Boot
	// They are as before until they are counted again.
	o.Rules.TakenPages = st.rules.TakenPages
	st.Rules, st.TraceLimits = o.Rules, o.traceLimits()
	entered := o.enter(&st)
	view, findings := st.resolve()
	st.fill(&report)
	report.sort(findings)
	if len(report.Damage) > 0 {
		return nil, report, report.corrupt()
	}
	c := &committer{journal: o.Journal, newEpoch: o.NewEpochID, pending: st.pending}
	if now := view.PastRules(); entered || len(st.unread) > 0 || st.otherMachine(o.Rules.Machine) || !sameRules(&st.rules, now) ||
		st.otherSettings(o.Rules) {
		report.MachineChanged = st.machineChanged(o.Rules)
		report.ConfigChanged = st.configChanged(o.Rules)
		report.Settings = st.settingsChanged(o.Rules)
		for _, f := range metaFacts { // what is absent now, such as the memory, must not stay damaged
			if st.unread[f.key] != nil {
				c.pending = append(c.pending, Entry{Bucket: BucketMeta, Key: f.key})
			}
		}
		b := batch{entries: c.pending}
		if b.facts(o.Rules, st.rules.On(nil), view.Epoch()); b.err != nil {
			return nil, report, errdefs.Internalf("open ledger: %w", b.err)
		}
		c.pending = b.entries
	}
	report.History = ""
	if o.History != nil {
		start := Start{Journal: o.Journal, View: view, Unknown: st.noRules()}
		if !st.fresh {
			start.Rules, start.Machine = &st.rules, st.topology
		}
		switch kept, err := o.History.Open(ctx, start); {
		case errdefs.ClassOf(err) == errdefs.Corrupt: // the state does not depend on it
			report.History = err.Error()
		case err != nil:
			return nil, report, &errdefs.Error{Class: errdefs.ClassOf(err), Message: "open the ledger's history: " + err.Error(), Err: err}
		case kept && start.Unknown != nil:
			report.History = start.Unknown.Error()
		}
		c.history = o.History
	}
	return ledger.New(view, c), report, nil
}

// sameRules returns whether two rules are the same on the same machine, whatever override they are of.
func sameRules(a, b *ledger.PastRules) bool {
	return a.Machine == b.Machine && a.Reservation == b.Reservation && a.On(nil).Equal(b.On(nil))
}

// machineChanged returns whether the last commit was made on another machine, as far as that is known.
func (st *state) machineChanged(r ledger.Rules) bool {
	return !st.fresh && (st.unread[metaMachine] == nil || st.topology != nil) && st.rules.Machine != r.Machine.Fingerprint()
}

// configChanged returns whether the last commit was made with another configuration, as far as that is known.
func (st *state) configChanged(r ledger.Rules) bool {
	return !st.fresh && st.unread[metaConfig] == nil && st.rules.Config != r.ConfigDigest
}

// SettingChange is a setting of the configuration that has changed, with both values as JSON; an empty one is the default.
type SettingChange struct {
	Name string `json:"name"`
	Old  string `json:"old,omitempty"`
	New  string `json:"new,omitempty"`
}

// settingsChanged returns what has changed in the configuration since the last commit, as far as that is known.
func (st *state) settingsChanged(r ledger.Rules) (changes []SettingChange) {
	if !st.configChanged(r) || st.settings == nil || st.settings.Config != st.rules.Config || r.Settings == nil {
		return nil
	}
	names := maps.Clone(st.settings.Settings)
	if names == nil {
		names = map[string]string{}
	}
	maps.Copy(names, r.Settings)
	for _, name := range ordered.Keys(names) {
		if was, is := st.settings.Settings[name], r.Settings[name]; was != is {
			changes = append(changes, SettingChange{name, was, is})
		}
	}
	return changes
}

// otherSettings returns whether the stored settings are not those of the rules, because they are missing or damaged, or because an
// earlier berth has not written them.
func (st *state) otherSettings(r ledger.Rules) bool {
	return r.Settings != nil && (st.settings == nil || st.settings.Config != r.ConfigDigest)
}

// otherMachine returns whether the machine differs from the stored one, also in what no claim relies on.
func (st *state) otherMachine(m *machine.Topology) bool {
	return st.topology == nil || !machine.Compare(st.topology, m).Empty()
}

// restore replaces the current rules by those of an earlier policy, or drops that policy
// with the next commit.
func (o *Options) restore(st *state, r *Report) {
	if o.Restore != nil {
		if rules, ok := o.Restore(*st.Override); ok {
			o.Rules = rules
			return
		}
	}
	r.Dropped, st.Override = st.Override, nil
	st.pending = append(st.pending, Entry{Bucket: BucketMeta, Key: metaOverride})
}

// keep lets the CPUs stay reserved that were reserved by the same configuration in this boot.
func (o *Options) keep(st *state) {
	if o.Keep == nil || st.fresh || !st.known[metaReservation] || st.rules.Config != o.Rules.ConfigDigest || st.Epoch.Boot != o.BootID ||
		st.rules.Reservation.Reserved == o.Rules.ReservedCPUs {
		return
	}
	if rules, ok := o.Keep(st.rules.Reservation.Reserved, st.Override); ok {
		o.Rules = rules
	}
}

// sort sorts the policy findings of a check into the report.
func (r *Report) sort(findings []check.Finding) {
	for _, f := range findings {
		if f.Rule == check.RuleVanished || f.Rule == check.RuleOffline || f.Rule == check.RuleShared {
			r.Broken = append(r.Broken, f)
		} else {
			r.Grandfathered = append(r.Grandfathered, f)
		}
	}
}

// enter sets a loaded state's epoch and boot, and returns whether they differ from the
// stored ones.
func (o *Options) enter(st *state) (changed bool) {
	if st.Epoch.ID == 0 && o.EpochID != 0 {
		st.Epoch.ID, changed = o.EpochID, true
	}
	if o.BootID != "" && st.Epoch.Boot != o.BootID {
		st.Epoch.Boot, changed = o.BootID, true
	}
	return changed
}

func (o *Options) traceLimits() ledger.TraceLimits {
	limits := ledger.TraceLimits{Count: o.Traces, Bytes: o.TraceBytes}
	if limits.Count <= 0 {
		limits.Count = DefaultTraces
	}
	if limits.Bytes <= 0 {
		limits.Bytes = DefaultTraceBytes
	}
	return limits
}

// ReadEntries returns the state in a journal's entries, without rules, and the rules of the last commit. The history
// is not part of it. Class Corrupt means that the state is damaged, Unsupported that a newer berth
// wrote it, and NotFound that there is none.
func ReadEntries(entries []Entry) (ledger.State, ledger.PastRules, error) {
	st, err := load(entries, schemaVersion, migrations)
	switch {
	case err != nil:
	case st.fresh:
		err = errdefs.NotFoundf("the ledger is empty")
	case len(st.damage) > 0:
		err = errdefs.Corruptf("the ledger is damaged: %s", st.damage[0].Text)
	case st.noRules() != nil && st.unread[metaTopology] == nil: // PastRules have no topology
		err = errdefs.Corruptf("the ledger is damaged: %w", st.noRules())
	}
	return st.State, st.rules, err
}

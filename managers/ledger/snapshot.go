package ledger

import (
	"cmp"
	"encoding/json"
	"slices"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/machine"
)

// Snapshot is what decisions are made on, as JSON: a view without traces, leases, the answers of
// plugins and providers, and annotations that berth does not use.
type Snapshot struct {
	Revision uint64 `json:"revision"`
	// Epoch is the base of the revisions.
	Epoch uint64 `json:"epoch,omitempty"`
	// Recorded is the number of the last entry of the history that led to the view.
	Recorded uint64 `json:"recorded,omitempty"`
	// Machine is the fingerprint of the machine, and Config the digest of the configuration.
	Machine     string       `json:"machine"`
	Config      string       `json:"config"`
	Reservation Reservation  `json:"reservation"`
	Memory      []NodeMemory `json:"memory,omitempty"`
	Override    *Override    `json:"override,omitempty"`
	Uncertain   string       `json:"uncertain,omitempty"`

	Pods     []PodSnapshot     `json:"pods"`
	Unknown  []UnknownSnapshot `json:"unknown_living_pods,omitempty"`
	Bindings []BindingSnapshot `json:"containers,omitempty"`
	// Resources are the device resources that had plugins, and Providers the external providers.
	Resources []string           `json:"resources,omitempty"`
	Providers []ProviderSnapshot `json:"providers,omitempty"`
}

// PodSnapshot is the record of a pod with its claims.
type PodSnapshot struct {
	Record *Pod    `json:"record"`
	Claims []Claim `json:"claims,omitempty"`
}

// UnknownSnapshot is what is known of a running pod that is not admitted.
type UnknownSnapshot struct {
	UID string         `json:"uid"`
	Pod UnknownLivePod `json:"pod"`
}

// BindingSnapshot is a container with its id.
type BindingSnapshot struct {
	ID      string  `json:"id"`
	Binding Binding `json:"binding"`
}

// ProviderSnapshot is what decisions depend on of the registration of an external provider.
type ProviderSnapshot struct {
	Name      string   `json:"name"`
	Required  bool     `json:"required,omitempty"`
	Resources []string `json:"resources,omitempty"`
}

// Snapshot returns the view as a Snapshot. It shares data with the view, and must not be changed.
func (v *View) Snapshot() *Snapshot {
	s := v.snapshot()
	s.Machine, s.Config, s.Memory, s.Reservation = v.rules.Machine.Fingerprint(), v.rules.ConfigDigest, v.rules.Memory,
		v.rules.reservation()
	return s
}

// snapshot is Snapshot without the rules.
func (v *View) snapshot() *Snapshot {
	s := &Snapshot{
		Revision: v.Revision(), Epoch: v.epoch.base, Recorded: v.recorded,
		Override: v.override, Uncertain: v.uncertain, Pods: []PodSnapshot{},
	}
	for p := range v.Pods() {
		public := podBefore(p)
		s.Pods = append(s.Pods, PodSnapshot{public.Record, public.Claims})
	}
	for u := range v.UnknownLivePods() {
		u.Claims, u.holds = withoutAnswers(u.Claims), nil
		s.Unknown = append(s.Unknown, UnknownSnapshot{u.UID, u})
	}
	for b := range v.Bindings() {
		s.Bindings = append(s.Bindings, BindingSnapshot{b.ID, b})
	}
	for r := range v.SeenResources() {
		s.Resources = append(s.Resources, r.Name)
	}
	for p := range v.ExternalProviders() {
		s.Providers = append(s.Providers, ProviderSnapshot{p.Name, p.Required, p.Resources})
	}
	return s
}

// View returns the view that a snapshot is of, on a machine. If it is another machine than the
// snapshot's, claims may be on CPUs that it does not have. An error is of class Corrupt: the
// snapshot contradicts itself.
func (s *Snapshot) View(m *machine.Topology) (*View, error) {
	m, err := m.Without(s.Reservation.Offline)
	if err != nil {
		return nil, errdefs.Corruptf("offline CPUs %s: %w", s.Reservation.Offline, err)
	}
	d := NewDraft(Empty(Rules{
		Machine: m, ConfigDigest: s.Config, Memory: s.Memory,
		ReservedCPUs: s.Reservation.Reserved, StrictReservation: s.Reservation.Strict,
	}))
	for i, p := range s.Pods {
		switch {
		case p.Record == nil || p.Record.UID() == "":
			return nil, errdefs.Corruptf("pods[%d] has no record", i)
		case d.pods[p.Record.UID()] != nil:
			return nil, errdefs.Corruptf("pod %q is listed twice", p.Record.UID())
		}
		record := *p.Record
		record.Claims = withPayloads(p.Claims)
		d.PutPod(&record)
	}
	for _, u := range s.Unknown {
		pod := u.Pod
		if pod.UID = u.UID; u.UID == "" || d.pods[u.UID] != nil || d.unknown[u.UID] != nil {
			return nil, errdefs.Corruptf("the unknown living pod %q is listed twice, or has no uid", u.UID)
		}
		pod.Claims = withPayloads(pod.Claims)
		set(&d.unknown, u.UID, &pod)
	}
	for _, b := range s.Bindings {
		binding := b.Binding
		binding.ID = b.ID
		d.Bind(binding)
	}
	for _, name := range s.Resources {
		d.PutResource(SeenResource{Name: name})
	}
	for _, p := range s.Providers {
		d.PutExternalProvider(ExternalProvider{Name: p.Name, Required: p.Required, Resources: p.Resources})
	}
	v := d.apply(0)
	v.override, v.uncertain, v.recorded = s.Override, s.Uncertain, s.Recorded
	v.epoch.base = s.Epoch
	if s.Revision < s.Epoch<<epochShift || s.Epoch >= 1<<(64-epochShift) {
		return nil, errdefs.Corruptf("revision %d is none of epoch %d", s.Revision, s.Epoch)
	}
	v.back(s.Revision)
	if f, bad := firstStructural(Check(v)); bad {
		return nil, errdefs.Corruptf("%s", f.Text)
	}
	v.facts.settle()
	return v, nil
}

// withPayloads returns claims in which those that had only a provider's own data have some again.
func withPayloads(claims []Claim) []Claim {
	out := slices.Clone(claims)
	for i := range out {
		if c := &out[i]; c.CPUs == nil && c.Memory == nil && c.Devices == nil {
			c.Opaque = []byte{0}
		}
	}
	return out
}

// At returns the view as it was at a moment, from the entries that led to it, the newest first.
// Errors are those of Ledger.At.
func (v *View) At(m Moment, entries func(each func(*HistoryEntry, error) bool) error) (*View, error) {
	if m.Revision > v.Revision() {
		return nil, errdefs.Preconditionf("revision %d is none of this ledger, which is at %d", m.Revision,
			v.Revision()).Coded(errdefs.RevisionUnknown)
	}
	return NewRewinder(v).find(m, entries)
}

// ReadSnapshot returns the state in a journal's entries without opening the journal. The history
// is not part of it. Class Corrupt means that the state is damaged, Unsupported that a newer berth
// wrote it, and NotFound that there is none.
func ReadSnapshot(entries []Entry) (*Snapshot, error) {
	st, err := load(entries, schemaVersion, migrations)
	switch {
	case err != nil:
		return nil, err
	case st.fresh:
		return nil, errdefs.NotFoundf("the ledger is empty")
	case len(st.damage) > 0:
		return nil, errdefs.Corruptf("the ledger is damaged: %s", st.damage[0].Text)
	case st.noRules() != nil && st.unread[metaTopology] == nil: // a snapshot has no topology
		return nil, errdefs.Corruptf("the ledger is damaged: %w", st.noRules())
	}
	s := st.view.snapshot()
	s.Machine, s.Config, s.Memory, s.Reservation = st.machine, st.config, st.memory, st.reservation
	return s, nil
}

// EachRecorded calls each with the entries of the history in a journal's entries, the newest
// first, and with the damage of those that cannot be read.
func EachRecorded(entries []Entry, each func(*HistoryEntry, error)) {
	blocks := slices.DeleteFunc(slices.Clone(entries), func(e Entry) bool { return !OfHistory(e.Bucket) })
	// Of two blocks with a number, the one that gets more entries counts.
	slices.SortFunc(blocks, func(a, b Entry) int { return cmp.Or(cmp.Compare(b.Key, a.Key), cmp.Compare(b.Bucket, a.Bucket)) })
	below := ^uint64(0)
	for _, stored := range blocks {
		first, all, err := readBlock(stored)
		if first == 0 || first >= below {
			continue
		}
		if err != nil {
			each(&HistoryEntry{Number: first}, err)
		}
		for _, e := range slices.Backward(all) {
			if e.Number < below {
				each(e, nil)
			}
		}
		below = first
	}
}

// Requested returns the request of an entry; nil if it has none, or if it was too large.
func (e *HistoryEntry) Requested() (*HistoryRequest, error) {
	if len(e.Request) == 0 {
		return nil, nil
	}
	var req HistoryRequest
	if err := json.Unmarshal(e.Request, &req); err != nil {
		return nil, errdefs.Corruptf("the request is damaged: %w", err)
	}
	return &req, nil
}

package history

import (
	"cmp"
	"slices"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/check"
	"github.com/berthd/berth/managers/ledger/journal"
	"github.com/berthd/berth/managers/machine"
)

// Snapshot holds what decisions are made on, as JSON: a view without traces, leases, the answers of
// plugins and providers, and annotations that berth does not use.
type Snapshot struct {
	Revision uint64 `json:"revision"`
	// Epoch is the base of the revisions.
	Epoch uint64 `json:"epoch,omitempty"`
	// Recorded is the number of the last entry of the history that led to the view.
	Recorded uint64 `json:"recorded,omitempty"`
	// Machine is the fingerprint of the machine, and Config the digest of the configuration.
	Machine     string              `json:"machine"`
	Config      string              `json:"config"`
	Reservation ledger.Reservation  `json:"reservation"`
	Memory      []ledger.NodeMemory `json:"memory,omitempty"`
	TakenPages  []ledger.TakenPages `json:"taken_pages,omitempty"`
	Override    *ledger.Override    `json:"override,omitempty"`
	Uncertain   string              `json:"uncertain,omitempty"`

	Pods     []Pod     `json:"pods"`
	Unknown  []Unknown `json:"unknown_living_pods,omitempty"`
	Bindings []Binding `json:"containers,omitempty"`
	// Resources are the device resources that had plugins, and Providers the external providers.
	Resources []string   `json:"resources,omitempty"`
	Providers []Provider `json:"providers,omitempty"`
}

// Provider holds what decisions depend on of the registration of an external provider.
type Provider struct {
	Name      string   `json:"name"`
	Required  bool     `json:"required,omitempty"`
	Resources []string `json:"resources,omitempty"`
}

// SnapshotOf returns the snapshot of a view. It shares data with the view, and must not be changed.
func SnapshotOf(v *ledger.View) *Snapshot { return snapshot(v, v.PastRules()) }

func snapshot(v *ledger.View, rules *ledger.PastRules) *Snapshot {
	s := &Snapshot{
		Revision: v.Revision(), Epoch: v.Epoch().Base, Recorded: v.Recorded(), Uncertain: v.Uncertain(), Pods: []Pod{},
		Machine: rules.Machine, Config: rules.Config, Reservation: rules.Reservation, Memory: rules.Memory,
		TakenPages: rules.TakenPages, Override: rules.Override,
	}
	for p := range v.Pods() {
		public := podOf(p)
		public.UID = "" // the record has it
		s.Pods = append(s.Pods, public)
	}
	for u := range v.UnknownLivePods() {
		s.Unknown = append(s.Unknown, unknownOf(u))
	}
	for b := range v.Bindings() {
		s.Bindings = append(s.Bindings, Binding{b.ID, &b})
	}
	for r := range v.SeenResources() {
		s.Resources = append(s.Resources, r.Name)
	}
	for p := range v.ExternalProviders() {
		s.Providers = append(s.Providers, Provider{p.Name, p.Required, p.Resources})
	}
	return s
}

// View returns the view that a snapshot is of, on a machine. If it is another machine than the
// snapshot's, claims may be on CPUs that it does not have. An error is of class Corrupt: the
// snapshot contradicts itself.
func (s *Snapshot) View(m *machine.Topology) (*ledger.View, error) {
	state := ledger.State{
		Content: ledger.Content{
			Pods: map[string]*ledger.Pod{}, Unknown: map[string]*ledger.UnknownLivePod{}, Bindings: map[string]*ledger.Binding{},
			Resources: map[string]*ledger.SeenResource{}, ExternalProviders: map[string]*ledger.ExternalProvider{},
		},
		Rules: ledger.Rules{
			Machine: m, ConfigDigest: s.Config, Memory: s.Memory, TakenPages: s.TakenPages,
			ReservedCPUs: s.Reservation.Reserved, StrictReservation: s.Reservation.Strict,
		},
		Epoch: ledger.Epoch{Base: s.Epoch}, Recorded: s.Recorded, Override: s.Override, Uncertain: s.Uncertain,
	}
	var ok bool
	if state.Generation, ok = state.Epoch.Generation(s.Revision); !ok {
		return nil, errdefs.Corruptf("revision %d is not of epoch %d", s.Revision, s.Epoch)
	}
	for i, p := range s.Pods {
		switch {
		case p.Record == nil || p.Record.UID() == "":
			return nil, errdefs.Corruptf("pods[%d] has no record", i)
		case state.Pods[p.Record.UID()] != nil:
			return nil, errdefs.Corruptf("pod %q is listed twice", p.Record.UID())
		}
		record := *p.Record
		record.Claims = withPayloads(p.Claims)
		ledger.SortClaims(record.Claims)
		state.Pods[record.UID()] = &record
	}
	for _, u := range s.Unknown {
		pod := valueOf(u.Pod)
		if pod.UID = u.UID; u.UID == "" || state.Pods[u.UID] != nil || state.Unknown[u.UID] != nil {
			return nil, errdefs.Corruptf("the unknown living pod %q is listed twice, or has no uid", u.UID)
		}
		pod.Claims = withPayloads(pod.Claims)
		state.Unknown[u.UID] = &pod
	}
	for _, b := range s.Bindings {
		binding := valueOf(b.Binding)
		binding.ID = b.ID
		state.Bindings[b.ID] = &binding
	}
	for _, name := range s.Resources {
		state.Resources[name] = &ledger.SeenResource{Name: name}
	}
	for _, p := range s.Providers {
		state.ExternalProviders[p.Name] = &ledger.ExternalProvider{Name: p.Name, Required: p.Required, Resources: p.Resources}
	}
	v := ledger.NewView(state)
	if f, bad := check.FirstStructural(check.View(v)); bad {
		return nil, errdefs.Corruptf("%s", f.Text)
	}
	return v, nil
}

// valueOf is what a pointer leads to; the zero value for nil.
func valueOf[V any](p *V) (v V) {
	if p != nil {
		v = *p
	}
	return v
}

// withPayloads returns claims in which those that had only a provider's own data have some again.
func withPayloads(claims []ledger.Claim) []ledger.Claim {
	out := slices.Clone(claims)
	for i := range out {
		if c := &out[i]; c.CPUs == nil && c.Memory == nil && c.Devices == nil {
			c.Opaque = []byte{0}
		}
	}
	return out
}

// ReadSnapshot returns the state in a journal's entries without opening the journal. The history
// is not part of it. Class Corrupt means that the state is damaged, Unsupported that a newer berth
// wrote it, and NotFound that there is none.
func ReadSnapshot(entries []journal.Entry) (*Snapshot, error) {
	state, rules, err := journal.ReadEntries(entries)
	if err != nil {
		return nil, err
	}
	return snapshot(ledger.NewView(state), &rules), nil
}

// Each calls each with the entries of the history in a journal's entries, the newest
// first, and with the damage of those that cannot be read.
func Each(entries []journal.Entry, each func(*Entry, error)) {
	blocks := slices.DeleteFunc(slices.Clone(entries), func(e journal.Entry) bool { return !journal.OfHistory(e.Bucket) })
	// Of two blocks with a number, the one that gets more entries counts.
	slices.SortFunc(blocks, func(a, b journal.Entry) int {
		return cmp.Or(cmp.Compare(b.Key, a.Key), cmp.Compare(b.Bucket, a.Bucket))
	})
	below := ^uint64(0)
	for _, stored := range blocks {
		first, all, err := readBlock(stored)
		if first == 0 || first >= below {
			continue
		}
		if err != nil {
			each(&Entry{Number: first}, err)
		}
		for _, e := range slices.Backward(all) {
			if e.Number < below {
				each(e, nil)
			}
		}
		below = first
	}
}

package journal

import (
	"slices"
	"strings"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/internal/ordered"
	"github.com/berthd/berth/managers/ledger"
)

// Found is the readable part of a damaged journal.
type Found struct {
	// Entries belong to the journal's newest state.
	Entries []Entry
	// Loose are entries that probably belong to the newest state; the reference to them is
	// damaged.
	Loose []Entry
	// Stale are entries from freed parts of the file. They may have been removed or
	// replaced since; several may have the same key.
	Stale []Entry
	// Unread lists the unreadable parts, as sentences.
	Unread []string
	// Behind is why acknowledged commits may be missing; empty if none are.
	Behind string
}

// Saved is the result of a salvage.
type Saved struct {
	// Entries of a sound journal. It begins with Generation, in a new epoch.
	Entries    []Entry
	Generation uint64
	// Report lists the damage and the lost pods.
	Report Report
}

// Salvage builds a sound state from a damaged one. It keeps every pod with an intact record
// and intact claims, and every other entry with a correct checksum. Stale entries are never
// used as current: a pod with only stale entries is lost. If pods are lost or may be
// missing, the state is uncertain (View.Uncertain). Options.EpochID is the epoch of the new
// state. Options.Epoch is the base of its revisions if those of the damaged state are
// uncertain. An error of class Unsupported means a state of a newer berth; then nothing is
// salvaged.
func Salvage(o Options, f Found) (Saved, error) {
	if o.Rules.Machine == nil {
		return Saved{}, errdefs.Invalidf("salvage ledger: no machine given")
	}
	st, stale, err := f.load()
	if err != nil {
		return Saved{}, err
	}
	if st.fresh {
		st.lost, st.halves, st.restless = map[string]*LostPod{}, map[string]half{}, true
		st.uncertain = append(st.uncertain, "nothing could be read")
	}
	if f.Behind != "" {
		st.restless = true
		st.uncertain = append(st.uncertain, f.Behind)
	}
	st.recall(stale)
	st.Rules, st.TraceLimits = o.Rules, o.traceLimits()
	st.Rules.TakenPages = st.rules.TakenPages
	saved := Saved{Report: Report{Generation: st.Generation, LastBootID: st.Epoch.Boot}}
	_, findings := st.resolve()
	st.fill(&saved.Report)
	saved.Report.sort(findings)
	saved.Report.Unread = f.Unread

	saved.Report.MachineChanged = st.rules.Machine != "" && st.machineChanged(o.Rules)
	saved.Report.ConfigChanged = st.rules.Config != "" && st.configChanged(o.Rules)
	saved.Report.Settings = st.settingsChanged(o.Rules)
	st.Generation++
	st.Epoch.ID = o.EpochID
	if st.restless || saved.Report.Uncertain != "" || st.Epoch.Base == 0 {
		// Higher than any that was used, as long as the clock has not gone back.
		st.Epoch.Base = max(o.Epoch, st.Epoch.Base+1)
	}
	if len(saved.Report.Lost) > 0 || saved.Report.Uncertain != "" {
		text := "the ledger was damaged: " + saved.Report.Outcome()
		if st.Uncertain != "" && !strings.HasPrefix(st.Uncertain, "the ledger was damaged: ") {
			text = st.Uncertain + "; " + text
		}
		st.Uncertain = text
		st.Recorded = 0 // the history does not lead to this state
	}
	if st.noRules() != nil {
		st.Recorded = 0
	}
	saved.Generation = st.Generation
	saved.Entries, err = st.dump()
	saved.Entries = append(saved.Entries, f.history()...)
	return saved, err
}

// ValueStart is the beginning of every stored value.
const ValueStart = sealStart

// GenerationOf returns the ledger's generation in a generation entry; false for other and
// damaged entries.
func GenerationOf(e Entry) (uint64, bool) {
	var stored storedGeneration
	if e.Bucket != BucketMeta || e.Key != metaGeneration || Decode(e, &stored) != nil {
		return 0, false
	}
	return stored.Number, true
}

// Complete returns whether entries are a complete state: nothing is damaged, and everything
// of the last commit is there.
func Complete(entries []Entry) bool {
	st, err := load(entries, schemaVersion, migrations)
	return err == nil && st.whole()
}

// dump returns the entries of the state, with the machine, the configuration, the memory and the
// reserved CPUs of the last commit as far as they are known. The next start compares them with the
// current ones.
func (st *state) dump() ([]Entry, error) {
	entries, err := Dump(ledger.NewView(st.State))
	if err != nil {
		return nil, err
	}
	var b batch
	if st.rules.Machine != "" {
		b.put(BucketMeta, metaMachine, st.rules.Machine)
	}
	if st.topology != nil {
		b.put(BucketMeta, metaTopology, st.topology.Snapshot())
	} else {
		entries = slices.DeleteFunc(entries, func(e Entry) bool { return e.Bucket == BucketMeta && e.Key == metaTopology })
	}
	if st.rules.Config != "" {
		b.put(BucketMeta, metaConfig, st.rules.Config)
	}
	if st.settings != nil {
		b.put(BucketMeta, metaSettings, st.settings)
	}
	if len(st.rules.Memory) > 0 {
		b.put(BucketMeta, metaMemory, st.rules.Memory)
	}
	if st.known[metaReservation] && st.known[metaConfig] { // another configuration may reserve others
		b.put(BucketMeta, metaReservation, st.rules.Reservation)
	}
	if !st.rules.Claims.IsZero() {
		b.put(BucketMeta, metaClaims, st.rules.Claims)
	}
	if len(st.rules.TakenPages) > 0 {
		b.put(BucketMeta, metaTakenPages, st.rules.TakenPages)
	}
	if b.err != nil {
		return nil, errdefs.Internalf("salvage ledger: %w", b.err)
	}
	for _, e := range b.entries {
		entries = slices.DeleteFunc(entries, func(o Entry) bool { return CompareEntries(o, e) == 0 })
	}
	entries = append(entries, b.entries...)
	slices.SortFunc(entries, CompareEntries)
	return entries, nil
}

// whole returns whether nothing of the last commit is damaged or missing.
func (st *state) whole() bool {
	return !st.fresh && len(st.damage)+len(st.lost)+len(st.uncertain) == 0
}

// fits returns whether a state has at most the entries of the last commit. If their number
// is unknown, the state is uncertain in any case.
func (st *state) fits() bool {
	return st.counts == nil || st.missing >= 0 && st.found <= st.counts.Entries
}

// history returns the blocks of the history that are not damaged, also loose ones: blocks are not
// replaced, so an old one is as good as when it was written. Only the last block is: of several
// versions, the longest is the newest.
func (f *Found) history() (out []Entry) {
	all := map[[2]string]Entry{}
	var last string
	for _, e := range slices.Concat(f.Entries, f.Loose) {
		at := [2]string{e.Bucket, e.Key}
		if _, err := Unseal(e); err != nil || !OfHistory(e.Bucket) || len(e.Value) < len(all[at].Value) {
			continue
		}
		all[at] = e
		if e.Bucket == BucketHistoryOpen {
			last = max(last, e.Key)
		}
	}
	for _, e := range all {
		if e.Bucket == BucketHistory || e.Key == last {
			out = append(out, e)
		}
	}
	slices.SortFunc(out, CompareEntries)
	return out
}

// load decodes the entries, and adds missing ones from the loose entries if the state then
// has at most the entries of the last commit. Otherwise some loose entries had been
// removed. It returns the stale entries.
func (f *Found) load() (state, []Entry, error) {
	st, err := load(f.Entries, schemaVersion, migrations)
	if err != nil || len(f.Loose)+len(f.Stale) == 0 || st.whole() {
		return st, nil, err
	}
	all := slices.Concat(f.Loose, f.Stale)
	if len(f.Loose) == 0 {
		return st, all, nil
	}
	more, err := load(merge(f.Entries, f.Loose), schemaVersion, migrations)
	if err != nil || !more.fits() {
		return st, all, nil
	}
	return more, f.Stale, nil
}

// merge returns the entries, and those of the others whose keys are missing or damaged in
// entries.
func merge(entries, others []Entry) []Entry {
	at := make(map[[2]string]int, len(entries)+len(others))
	all := slices.Clone(entries)
	for i, e := range all {
		at[[2]string{e.Bucket, e.Key}] = i
	}
	for _, e := range others {
		key := [2]string{e.Bucket, e.Key}
		i, ok := at[key]
		if !ok {
			at[key] = len(all)
			all = append(all, e)
		} else if _, err := Unseal(all[i]); err != nil {
			all[i] = e
		}
	}
	return all
}

// tries limits the sets of stale claims that are compared with one record.
const tries = 1 << 10

// recall searches stale entries for missing ones. A stale claim is used only if the sum in
// a current record proves it. All others are reported as lost.
func (st *state) recall(entries []Entry) {
	if len(entries) == 0 {
		return
	}
	pods, claims := map[string]*storedPod{}, map[string][]storedClaim{}
	for _, e := range entries {
		switch e.Bucket {
		case BucketMeta:
			if number, ok := GenerationOf(e); ok && st.counts == nil {
				st.Generation = max(st.Generation, number)
			}
		case BucketPods:
			p := storedPod{Pod: &ledger.Pod{}}
			if Decode(e, &p) == nil && p.UID() == e.Key && p.laterThan(pods[e.Key]) {
				pods[e.Key] = &p
			}
		case BucketClaims:
			var c ledger.Claim
			if Decode(e, &c) == nil {
				claims[c.Owner.Pod] = append(claims[c.Owner.Pod], storedClaim{c, e})
			}
		}
	}
	for uid := range claims {
		if _, ok := pods[uid]; !ok {
			pods[uid] = nil
		}
	}
	// Only missing pods are searched.
	missed := st.counts == nil || st.missing > 0 || len(st.uncertain) > 0
	for _, uid := range ordered.Keys(pods) {
		_, here := st.Pods[uid]
		lost := st.lost[uid]
		switch {
		case here || lost == nil && !missed:
		case lost != nil && st.complete(lost, claims[uid]):
		default:
			st.lose(uid, "a stale copy is left").remember(pods[uid], claims[uid])
		}
	}
}

// laterThan returns whether a stale record is newer than another one of its pod.
func (p *storedPod) laterThan(o *storedPod) bool {
	switch {
	case o == nil:
		return true
	case newest(p.Pod) != newest(o.Pod):
		return newest(p.Pod) > newest(o.Pod)
	case p.TraceNumber == nil || o.TraceNumber == nil:
		return p.TraceNumber != nil
	}
	return *p.TraceNumber > *o.TraceNumber
}

// remember adds stale data of a pod.
func (l *LostPod) remember(p *storedPod, claims []storedClaim) {
	if l.Pod == nil && p != nil {
		l.Pod, l.PerhapsStale = p.Pod, true
	}
	for _, c := range claims {
		if !slices.ContainsFunc(l.Claims, func(o ledger.Claim) bool { return sameClaim(o, c.Claim) }) {
			l.add(c)
			l.PerhapsStale = true
		}
	}
}

// sameClaim returns whether two claims are equal.
func sameClaim(a, b ledger.Claim) bool {
	x, errX := Seal(BucketClaims, "", &a)
	y, errY := Seal(BucketClaims, "", &b)
	return errX == nil && errY == nil && string(x.Value) == string(y.Value)
}

// complete searches the stale claims for those that a lost pod lacks, and restores the pod
// if its record's sum proves them.
func (st *state) complete(lost *LostPod, stale []storedClaim) bool {
	half, ok := st.halves[lost.UID]
	if !ok {
		return false
	}
	var more []storedClaim
	for _, c := range stale {
		same := func(o storedClaim) bool {
			return CompareEntries(o.entry, c.entry) == 0 && string(o.entry.Value) == string(c.entry.Value)
		}
		if !slices.ContainsFunc(half.claims, same) && !slices.ContainsFunc(more, same) {
			more = append(more, c)
		}
	}
	if len(more) == 0 || len(more) > 20 {
		return false
	}
	for set := 1; set < 1<<len(more) && set < tries; set++ {
		claims := slices.Clone(half.claims)
		for i, c := range more {
			if set&(1<<i) != 0 {
				claims = append(claims, c)
			}
		}
		if sumOf(claims).String() != half.sum {
			continue
		}
		p := lost.Pod
		p.Claims = claimsOf(claims)
		if half.trace != nil {
			p.Trace = st.traceOf(lost.UID, *half.trace)
		}
		st.Pods[lost.UID] = p
		delete(st.lost, lost.UID)
		return true
	}
	return false
}

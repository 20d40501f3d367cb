package ledger

import (
	"iter"
	"slices"

	"github.com/berthd/berth/managers/internal/ordered"
)

// traces are the traces of a view: the newest ones, and those of current pods.
type traces struct {
	kept ordered.Map[uint64, *keptTrace] // by number, which is the key in the journal
	// ofPods has the numbers of the traces in pods' records, by uid.
	ofPods ordered.Map[string, uint64]
	next   uint64 // greater than all numbers ever used
	limits TraceLimits

	// The newest traces are those from this number on. They are kept even if their pod is
	// gone.
	newest uint64
	count  int // of the newest
	bytes  int // stored size of the newest
}

// TraceLimits limit the number of newest traces and their total size; at least one is kept. Up to a sixteenth more are
// kept until they are removed.
type TraceLimits struct{ Count, Bytes int }

type keptTrace struct {
	trace *Trace
	size  int // stored size in bytes; 0 until it is stored
}

func (t *traces) add(trace *Trace) {
	t.kept = t.kept.Set(t.next, &keptTrace{trace: trace})
	t.next++
	t.count++
}

// load adds a stored trace. Numbers must ascend.
func (t *traces) load(s StoredTrace) {
	t.kept = t.kept.Set(s.Number, &keptTrace{s.Trace, s.Size})
	t.next = s.Number + 1
	t.count++
	t.bytes += s.Size
}

// TraceChanges calls change for each trace that only one of two views keeps, in the order of their numbers: with nil for one
// that next does not keep. For a trace that is new, change returns the stored size. next gets these sizes: nobody else has it yet.
func TraceChanges(old, next *View, change func(number uint64, t *Trace) (size int)) {
	for c := range ordered.Diff(old.traces.kept, next.traces.kept) {
		switch {
		case !c.Is:
			change(c.Key, nil)
		case !c.Was:
			c.New.size = change(c.Key, c.New.trace)
			next.traces.bytes += c.New.size
		}
	}
}

// trim removes old traces without a current pod, and returns whether it removed any. It removes several at a time, because
// a commit that removes a trace writes two more pages.
func (t *traces) trim() (old bool) {
	if t.count <= t.limits.Count+t.limits.Count/16 && t.bytes <= t.limits.Bytes {
		return false
	}
	for number, kept := range t.kept.From(t.newest) {
		if t.count <= t.limits.Count && (t.bytes <= t.limits.Bytes || t.count == 1) {
			break
		}
		old = true
		t.newest = number + 1
		t.count--
		t.bytes -= kept.size
		t.drop(number, kept.trace.Pod)
	}
	return old
}

// grow adds older traces that fit again, after a large one was removed.
func (t *traces) grow() {
	for number, kept := range t.kept.Before(t.newest) {
		if t.count >= t.limits.Count || t.count > 0 && t.bytes+kept.size > t.limits.Bytes {
			return
		}
		t.newest = number
		t.count++
		t.bytes += kept.size
	}
}

// drop removes a trace, unless it is among the newest or in its pod's record.
func (t *traces) drop(number uint64, uid string) {
	if own, ok := t.ofPods.Get(uid); number < t.newest && !(ok && own == number) {
		t.kept = t.kept.Delete(number)
	}
}

// explain adds the traces of a draft, those of its pods first, and removes old ones.
func (t *traces) explain(d *Draft) {
	if !d.explains() {
		return
	}
	var added []*Trace
	parted := make(map[string]uint64) // numbers in the records of changed pods
	for _, uid := range ordered.Keys(d.changes.Pods) {
		p := d.changes.Pods[uid]
		old, ok := d.base.pods.Get(uid)
		if p != nil && ok && p.Trace == old.Trace {
			continue
		}
		if number, ok := t.ofPods.Get(uid); ok {
			parted[uid] = number
			t.ofPods = t.ofPods.Delete(uid)
		}
		if p != nil && p.Trace != nil {
			t.ofPods = t.ofPods.Set(uid, t.next)
			t.add(p.Trace)
			added = append(added, p.Trace)
		}
	}
	for _, trace := range d.traces {
		if !slices.Contains(added, trace) {
			t.add(trace)
			added = append(added, trace)
		}
	}
	if len(added)+len(parted) == 0 {
		return
	}
	if !t.trim() {
		t.grow()
	}
	for uid, number := range parted {
		t.drop(number, uid)
	}
}

// explains returns whether a draft has traces, or pods that have had one. A draft during
// planning has none.
func (d *Draft) explains() bool {
	if len(d.traces) > 0 {
		return true
	}
	for uid, p := range d.changes.Pods {
		if _, had := d.base.traces.ofPods.Get(uid); had || p != nil && p.Trace != nil {
			return true
		}
	}
	return false
}

// TraceNumber returns the number of the trace in a pod's record.
func (v *View) TraceNumber(uid string) (uint64, bool) { return v.traces.ofPods.Get(uid) }

// Traces yields the traces that are kept with their numbers, the newest first. A number
// names the same trace in every view of a ledger.
func (v *View) Traces() iter.Seq2[uint64, *Trace] {
	return func(yield func(uint64, *Trace) bool) {
		for number, kept := range v.traces.kept.Backward() {
			if !yield(number, kept.trace) {
				return
			}
		}
	}
}

// Trace returns the newest trace of an admission.
func (v *View) Trace(admissionID string) (*Trace, bool) {
	return v.traces.newestOf(func(t *Trace) bool { return t.AdmissionID == admissionID })
}

// TraceOfPod returns the newest trace of an admission of a pod. It may be the trace of a
// refusal although the pod is admitted. The trace of the successful admission is in the
// pod's record.
func (v *View) TraceOfPod(uid string) (*Trace, bool) {
	return v.traces.newestOf(func(t *Trace) bool { return t.Pod == uid })
}

// TraceOfName returns the newest trace of an admission of a pod by its name.
func (v *View) TraceOfName(namespace, name string) (*Trace, bool) {
	return v.traces.newestOf(func(t *Trace) bool { return t.Namespace == namespace && t.Name == name })
}

func (t *traces) newestOf(match func(*Trace) bool) (*Trace, bool) {
	for _, kept := range t.kept.Backward() {
		if match(kept.trace) {
			return kept.trace, true
		}
	}
	return nil, false
}

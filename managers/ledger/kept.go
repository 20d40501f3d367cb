package ledger

import (
	"slices"

	"github.com/berthd/berth/managers/internal/ordered"
)

// traces are those that a view keeps: the newest, and those of the pods that are
// here.
type traces struct {
	kept ordered.Map[uint64, keptTrace] // by their numbers, which name them in the journal
	// ofPods has, by uid, the numbers of those in the records of pods.
	ofPods ordered.Map[string, uint64]
	next   uint64 // above every number ever used
	limits traceLimits

	// The newest are those from this number on. They are kept whether or not their pod
	// is here.
	newest uint64
	count  int // of the newest
	bytes  int // as stored, of the newest
}

// traceLimits say how many of the newest are kept, and how large they may be together
// unless there is only one.
type traceLimits struct{ count, bytes int }

type keptTrace struct {
	trace *Trace
	size  int // in bytes, as stored; 0 until it is
}

// add keeps one more.
func (t *traces) add(trace *Trace) {
	t.kept = t.kept.Set(t.next, keptTrace{trace: trace})
	t.next++
	t.count++
}

// load keeps one that has a number, above those that were loaded before.
func (t *traces) load(number uint64, trace *Trace, size int) {
	t.kept = t.kept.Set(number, keptTrace{trace, size})
	t.next = number + 1
	t.count++
	t.bytes += size
}

// weigh notes the size of one of the newest.
func (t *traces) weigh(number uint64, size int) {
	kept, _ := t.kept.Get(number)
	kept.size = size
	t.kept = t.kept.Set(number, kept)
	t.bytes += size
}

// trim drops what is too old, unless its pod is here, and tells whether something is.
func (t *traces) trim() (old bool) {
	for number, kept := range t.kept.From(t.newest) {
		if t.count <= t.limits.count && (t.bytes <= t.limits.bytes || t.count == 1) {
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

// grow takes back what still fits: the one before the newest may have been large.
func (t *traces) grow() {
	for number, kept := range t.kept.Before(t.newest) {
		if t.count == t.limits.count || t.count > 0 && t.bytes+kept.size > t.limits.bytes {
			return
		}
		t.newest = number
		t.count++
		t.bytes += kept.size
	}
}

// drop drops a trace unless it is among the newest, or in the record of its pod.
func (t *traces) drop(number uint64, uid string) {
	if own, ok := t.ofPods.Get(uid); number < t.newest && !(ok && own == number) {
		t.kept = t.kept.Delete(number)
	}
}

// explain keeps what a draft explains, the traces of its pods first, and drops what is
// too old then.
func (v *View) explain(d *Draft) {
	t := &v.traces
	var added []*Trace
	parted := make(map[string]uint64) // what was in the records of pods
	for _, uid := range sortedKeys(d.pods) {
		p := d.pods[uid]
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

// Trace returns the newest trace of an admission.
func (v *View) Trace(admissionID string) (*Trace, bool) {
	return v.newestTrace(func(t *Trace) bool { return t.AdmissionID == admissionID })
}

// TraceOfPod returns the newest trace of an admission of a pod, which may be one
// that was refused although the pod is here. The trace of the admission that
// brought the pod here is in its record.
func (v *View) TraceOfPod(uid string) (*Trace, bool) {
	return v.newestTrace(func(t *Trace) bool { return t.Pod == uid })
}

// TraceOfName returns the newest trace of an admission of a pod by its name.
func (v *View) TraceOfName(namespace, name string) (*Trace, bool) {
	return v.newestTrace(func(t *Trace) bool { return t.Namespace == namespace && t.Name == name })
}

func (v *View) newestTrace(match func(*Trace) bool) (*Trace, bool) {
	for _, kept := range v.traces.kept.Backward() {
		if match(kept.trace) {
			return kept.trace, true
		}
	}
	return nil, false
}

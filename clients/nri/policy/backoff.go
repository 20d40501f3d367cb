package policy

import (
	"context"
	"crypto/sha256"
	"errors"
	"maps"
	"time"

	"google.golang.org/protobuf/proto"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	"github.com/berthd/berth/managers/errdefs"
)

// The kubelet tries to start a refused pod again every few seconds. As long as no resource has become
// free, berthd would decide the same, at the cost of a plan and a synced commit. So a refusal is
// repeated, at most for held, because changes without an event are possible (settings of a plugin).
const (
	held = time.Minute
	// maxRefusals bounds the stored refusals. A node has 110 pods by default.
	maxRefusals = 1024
)

// frees are the events after which a refused pod may fit.
var frees = map[allocationv1.EventType]bool{
	allocationv1.EventType_EVENT_TYPE_REMOVED: true, allocationv1.EventType_EVENT_TYPE_CHANGED: true,
	allocationv1.EventType_EVENT_TYPE_SHARED_CPUS: true, allocationv1.EventType_EVENT_TYPE_DEVICE_RESOURCE: true,
	allocationv1.EventType_EVENT_TYPE_DEVICE_HEALTH: true, allocationv1.EventType_EVENT_TYPE_POLICY: true,
	allocationv1.EventType_EVENT_TYPE_MACHINE: true,
}

// eventType returns the type of an event of berthd.
func eventType(e *allocationv1.Event) allocationv1.EventType {
	switch e.GetEvent().(type) {
	case *allocationv1.Event_Removed:
		return allocationv1.EventType_EVENT_TYPE_REMOVED
	case *allocationv1.Event_Changed:
		return allocationv1.EventType_EVENT_TYPE_CHANGED
	case *allocationv1.Event_SharedCpus:
		return allocationv1.EventType_EVENT_TYPE_SHARED_CPUS
	case *allocationv1.Event_DeviceResource:
		return allocationv1.EventType_EVENT_TYPE_DEVICE_RESOURCE
	case *allocationv1.Event_DeviceHealth:
		return allocationv1.EventType_EVENT_TYPE_DEVICE_HEALTH
	case *allocationv1.Event_Policy:
		return allocationv1.EventType_EVENT_TYPE_POLICY
	case *allocationv1.Event_Machine:
		return allocationv1.EventType_EVENT_TYPE_MACHINE
	}
	return allocationv1.EventType_EVENT_TYPE_UNSPECIFIED
}

// refused is the last refusal of a pod.
type refused struct {
	request [sha256.Size]byte
	room    uint64 // Policy.room when it was decided
	until   time.Time
	err     error
}

// repeatedError is a refusal that was answered without a new decision.
type repeatedError struct{ error }

func (r repeatedError) Unwrap() error { return r.error }

// repeated reports whether an error repeats a stored refusal.
func repeated(err error) bool {
	var r repeatedError
	return errors.As(err, &r)
}

// digest identifies the contents of a request to berthd.
func digest(req *admissionv1.AdmitRequest) ([sha256.Size]byte, error) {
	text, err := proto.MarshalOptions{Deterministic: true}.Marshal(req)
	if err != nil {
		return [sha256.Size]byte{}, errdefs.Internalf("digest of an admission: %w", err)
	}
	return sha256.Sum256(text), nil
}

// decide admits a pod, unless the same pod was refused and nothing has become free since. A
// process that has ended without an event frees its CPUs, so processes are checked first. The
// caller holds mu.
func (p *Policy) decide(ctx context.Context, s *sandbox, req *admissionv1.AdmitRequest) error {
	uid, now := req.GetPod().GetMetadata().GetUid(), p.Now()
	request, err := digest(req)
	if err != nil {
		return err
	}
	if last, ok := p.refusals[uid]; ok && last.request == request && now.Before(last.until) {
		p.sweepFor(ctx, s)
		if last.room == p.room.Load() {
			p.tally("", true)
			return repeatedError{last.err}
		}
	}
	room := p.room.Load()
	err = p.tryToAdmit(ctx, s, req)
	p.noteRefusal(uid, refused{request, room, now.Add(held), err})
	return err
}

// noteRefusal stores the result of an admission, if it is a refusal.
func (p *Policy) noteRefusal(uid string, r refused) {
	reason, rejected := errdefs.ReasonOf(r.err)
	if !rejected {
		delete(p.refusals, uid)
		return
	}
	p.tally(string(reason), false)
	now := p.Now()
	maps.DeleteFunc(p.refusals, func(_ string, r refused) bool { return !now.Before(r.until) })
	if len(p.refusals) < maxRefusals {
		p.refusals[uid] = r
	}
}

// tally counts a refusal.
func (p *Policy) tally(reason string, repeated bool) {
	if p.Refused != nil {
		p.Refused(reason, repeated)
	}
}

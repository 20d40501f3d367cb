package policy

import (
	"crypto/sha256"
	"errors"
	"maps"
	"time"

	"google.golang.org/protobuf/proto"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	"github.com/berthd/berth/managers/errdefs"
)

// refusals are the last refusals of pods, by the uids of berthd's pods.
type refusals struct {
	*common
	stored map[string]refused
	count  func(reason string, repeated bool) // Config.Refused
}

// The kubelet tries to start a refused pod again every few seconds. As long as no resource has become
// free, berthd would decide the same, at the cost of a plan and a synced commit. So a refusal is
// repeated, at most for held, because changes without an event are possible (settings of a plugin).
const (
	held = time.Minute
	// maxRefusals bounds the stored refusals. A node has 110 pods by default.
	maxRefusals = 1024
)

// refused is the last refusal of a pod.
type refused struct {
	request [sha256.Size]byte
	room    uint64 // agenda.room when it was decided
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

// note stores the result of an admission, if it is a refusal.
func (rf *refusals) note(uid string, r refused) {
	reason, rejected := errdefs.ReasonOf(r.err)
	if !rejected {
		delete(rf.stored, uid)
		return
	}
	rf.tell(string(reason), false)
	now := rf.now()
	maps.DeleteFunc(rf.stored, func(_ string, r refused) bool { return !now.Before(r.until) })
	if len(rf.stored) < maxRefusals {
		rf.stored[uid] = r
	}
}

// tell counts a refusal.
func (rf *refusals) tell(reason string, repeated bool) {
	if rf.count != nil {
		rf.count(reason, repeated)
	}
}

package policy

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	"github.com/berthd/berth/api/convert"
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

const (
	// maxRefusal bounds the text of a refusal in bytes. It becomes the message of an event of the
	// pod, and the API server takes 1 KiB of it; the runtime and the kubelet add some words.
	maxRefusal = 800
	// The most elements of each kind in a refusal.
	shownMissing     = 3
	shownSuggestions = 2
	shownDevices     = 4
	// maxMissing bounds the text of a shortage in bytes: it names up to eight holders.
	maxMissing = 160
)

// rejection is the text for a rejected pod: the reason, the missing amounts on each node, a change that
// would help, and the devices that determine the nodes.
func rejection(answer *admissionv1.AdmitResponse, devices []*admissionv1.ExternalDevices) string {
	parts := []string{answer.GetReason() + ": " + answer.GetMessage()}
	missing := answer.GetTrace().GetMissing()
	for _, text := range missing[:min(len(missing), shownMissing)] {
		parts = append(parts, cut(text, maxMissing))
	}
	var help []string
	for _, s := range answer.GetTrace().GetSuggestions() {
		if len(help) < shownSuggestions {
			help = append(help, s.GetText())
		}
	}
	if len(help) > 0 {
		parts = append(parts, "it would fit "+strings.Join(help, ", or "))
	}
	if text := fixedBy(devices); text != "" {
		parts = append(parts, text)
	}
	return strings.Join(parts, "; ")
}

// fixedBy names the first devices of the kubelet that have NUMA nodes.
func fixedBy(devices []*admissionv1.ExternalDevices) string {
	var out []string
	for _, c := range devices {
		for _, d := range c.GetDevices() {
			if nodes := convert.Nodes(d.GetNumaNodes()); !nodes.IsEmpty() && len(out) < shownDevices {
				out = append(out, fmt.Sprintf("%.100s %.64s is on NUMA node %s", d.GetResource(), d.GetId(), nodes))
			}
		}
	}
	return strings.Join(out, ", ")
}

// refusal returns an error for the runtime. It names berth as the source, because it becomes an event of the pod.
func refusal(what string, err error) error {
	text := fmt.Sprintf("berth: %s: %v", what, err)
	if len(text) <= maxRefusal {
		return fmt.Errorf("berth: %s: %w", what, err)
	}
	return &shortened{cut(text, maxRefusal), err}
}

// cut returns at most so many bytes of a text.
func cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	end := most - len("…")
	for end > 0 && !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + "…"
}

// shortened is an error whose text is cut.
type shortened struct {
	text  string
	cause error
}

func (s *shortened) Error() string { return s.text }

func (s *shortened) Unwrap() error { return s.cause }

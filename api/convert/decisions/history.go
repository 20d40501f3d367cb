package decisions

import (
	"strings"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	inspectv1 "github.com/berthd/berth/api/berth/inspect/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/managers/ledger/history"
)

// HistoryEntry returns the message form of an entry; damage is why it cannot be read.
func HistoryEntry(e *history.Entry, damage error) *inspectv1.HistoryEntry {
	if damage != nil {
		return &inspectv1.HistoryEntry{Number: e.Number, Damage: valid(damage.Error())}
	}
	out := &inspectv1.HistoryEntry{
		Number: e.Number, Time: timestamppb.New(e.Decided()), Revision: e.Revision, Call: valid(e.Call),
		PodUid: valid(e.Pod), Namespace: valid(e.Namespace), Name: valid(e.Name), ContainerName: valid(e.Container),
		Verdict: convert.EnumOf[admissionv1.Verdict](e.Verdict), Reason: valid(e.Reason), Message: valid(e.Message),
		AdmissionId: valid(e.AdmissionID), RequestDigest: valid(e.Digest), Omitted: e.Omitted,
		Request: valid(string(e.Request)), RequestBytes: uint64(max(0, e.RequestBytes)), Begins: e.Begins,
	}
	if e.Took > 0 {
		out.Duration = durationpb.New(e.Took)
	}
	if c := e.Caller; c != nil {
		out.Caller = &inspectv1.HistoryCaller{Uid: c.UID, Gid: c.GID, Pid: c.PID, Name: valid(c.Name)}
	}
	for _, s := range e.Steps {
		out.Steps = append(out.Steps, &inspectv1.HistoryStep{Step: s.Step, Provider: valid(s.Provider), Duration: durationpb.New(s.Took)})
	}
	return out
}

// valid returns a text that a message can hold.
func valid(text string) string { return strings.ToValidUTF8(text, "\uFFFD") }

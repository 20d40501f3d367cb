package app

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/workload"
	rpcadmission "github.com/berthd/berth/server/rpc/admission"
)

// answers is an engine that always says the same.
type answers struct {
	rpcadmission.Engine
	verdict admission.Verdict
	err     error
}

func (a answers) Admit(context.Context, admission.Request) (admission.Verdict, error) {
	return a.verdict, a.err
}

func TestRejectionsAreLogged(t *testing.T) {
	t.Parallel()
	pod := workload.Pod{UID: "u1", Namespace: "default", Name: "worker"}
	no := admission.Verdict{Outcome: admission.Rejected, Reason: errdefs.TopologyAffinityError, Message: "no place"}
	for name, row := range map[string]struct {
		answers
		dryRun bool
		want   string
	}{
		"rejected": {
			answers: answers{verdict: no},
			want:    `level=INFO msg="pod rejected" pod=default/worker uid=u1 reason=TopologyAffinityError message="no place" request_id=""` + "\n",
		},
		"only asked": {answers: answers{verdict: no}, dryRun: true},
		"admitted":   {answers: answers{verdict: admission.Verdict{Outcome: admission.Admitted}}},
		"deferred":   {answers: answers{verdict: admission.Verdict{Outcome: admission.Deferred, Reason: "Wait"}}},
		"admitted without": {
			answers: answers{verdict: admission.Verdict{Outcome: admission.Admitted, Notes: []admission.Note{
				{Text: "of others", Expected: true}, {Text: "no gpu"}, {Text: "no fpga"},
			}}},
			want: `level=WARN msg="pod admitted without something that it asks for" pod=default/worker uid=u1 notes="no gpu; no fpga" request_id=""` + "\n",
		},
		"only what is configured": {answers: answers{verdict: admission.Verdict{
			Outcome: admission.Admitted, Notes: []admission.Note{{Text: "of others", Expected: true}},
		}}},
		"again": {answers: answers{verdict: admission.Verdict{
			Outcome: admission.Admitted, Notes: []admission.Note{{Text: "no gpu"}}, Repeated: true,
		}}},
		"no verdict": {answers: answers{err: errors.New("the disk is full")}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var log bytes.Buffer
			e := logRejections(row.answers, logTo(&log), time.Now)
			v, err := e.Admit(t.Context(), admission.Request{Pod: pod, DryRun: row.dryRun})
			if v.Outcome != row.verdict.Outcome || v.Message != row.verdict.Message || !errors.Is(err, row.err) {
				t.Errorf("answered %+v, %v", v, err)
			}
			if got := log.String(); got != row.want {
				t.Errorf("logged %q, want %q", got, row.want)
			}
		})
	}
}

// TestFloodOfRejections: who asks without end gets his answers, and the log tells how
// much it has left out.
func TestFloodOfRejections(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	now := time.Unix(1_000_000, 0)
	e := logRejections(answers{verdict: admission.Verdict{Outcome: admission.Rejected, Reason: "OutOfcpu"}},
		logTo(&log), func() time.Time { return now })
	reject := func(times int) (lines []string) {
		log.Reset()
		for range times {
			if v, err := e.Admit(t.Context(), admission.Request{}); err != nil || v.Reason != "OutOfcpu" {
				t.Fatalf("answered %+v, %v", v, err)
			}
		}
		return strings.Split(strings.TrimSpace(log.String()), "\n")
	}
	if got := reject(rejectionLogBurst + 7); len(got) != rejectionLogBurst || strings.Contains(log.String(), "omitted") {
		t.Errorf("%d lines of a flood, want %d:\n%s", len(got), rejectionLogBurst, got[len(got)-1])
	}
	now = now.Add(rejectionLogEvery)
	if got := reject(1); len(got) != 1 || !strings.HasSuffix(got[0], "omitted=7") {
		t.Errorf("the next line: %q, want one that tells of 7 more", got)
	}
	now = now.Add(rejectionLogEvery)
	if got := reject(1); len(got) != 1 || strings.Contains(got[0], "omitted") {
		t.Errorf("the one after that: %q, want nothing of others", got)
	}
}

// logTo writes lines without times.
func logTo(out *bytes.Buffer) *slog.Logger {
	return slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		},
	}))
}

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
	"github.com/berthd/berth/managers/live"
	"github.com/berthd/berth/managers/workload"
	rpcadmission "github.com/berthd/berth/server/internal/rpc/admission"
)

// answers is an engine that always returns the same.
type answers struct {
	rpcadmission.Engine
	verdict admission.Verdict
	err     error
}

func (a answers) Admit(context.Context, admission.Request) (admission.Verdict, error) {
	return a.verdict, a.err
}

func (a answers) Resize(context.Context, live.ResizeRequest) (live.Resized, error) {
	return live.Resized{Verdict: a.verdict}, a.err
}

// counts is how many verdicts were counted.
type counts struct{ admissions, resizes int }

func (c *counts) Admission(*workload.Pod, admission.Verdict, time.Duration, error) { c.admissions++ }

func (c *counts) Resize(live.Resized, time.Duration, error) { c.resizes++ }
func TestRejectedResizesAreLogged(t *testing.T) {
	t.Parallel()
	verdict := func(o admission.Outcome) answers {
		return answers{verdict: admission.Verdict{Outcome: o, Reason: "R", Message: "m"}}
	}
	for name, row := range map[string]struct {
		answers
		dryRun bool
		want   string
	}{
		"rejected": {answers: verdict(admission.Rejected),
			want: `level=INFO msg="resize rejected" event=verdict verdict=rejected uid=u1 reason=R message=m request_id=""` + "\n"},
		"deferred": {answers: verdict(admission.Deferred),
			want: `level=INFO msg="resize deferred" event=verdict verdict=deferred uid=u1 reason=R message=m retry_after=0s request_id=""` + "\n"},
		"admitted":   {answers: verdict(admission.Admitted)},
		"only asked": {answers: verdict(admission.Rejected), dryRun: true},
		"no verdict": {answers: answers{err: errors.New("the disk is full")}},
	} {
		var log bytes.Buffer
		_, err := newVerdicts(row.answers, &counts{}, logTo(&log), time.Now).Resize(t.Context(),
			live.ResizeRequest{UID: "u1", DryRun: row.dryRun})
		if !errors.Is(err, row.err) || log.String() != row.want {
			t.Errorf("%s: %v, logged %q, want %q", name, err, log.String(), row.want)
		}
	}
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
			want:    `level=INFO msg="pod rejected" event=verdict verdict=rejected pod=default/worker uid=u1 reason=TopologyAffinityError message="no place" request_id=""` + "\n",
		},
		"only asked": {answers: answers{verdict: no}, dryRun: true},
		"admitted":   {answers: answers{verdict: admission.Verdict{Outcome: admission.Admitted}}},
		"deferred": {
			answers: answers{verdict: admission.Verdict{Outcome: admission.Deferred, Reason: "Wait", Message: "a plugin is silent",
				RetryAfter: 5 * time.Second}},
			want: `level=INFO msg="pod deferred" event=verdict verdict=deferred pod=default/worker uid=u1 reason=Wait message="a plugin is silent" retry_after=5s request_id=""` + "\n",
		},
		"admitted without": {
			answers: answers{verdict: admission.Verdict{Outcome: admission.Admitted, Notes: []admission.Note{
				{Text: "of others", Expected: true}, {Text: "no gpu"}, {Text: "no fpga"},
			}}},
			want: `level=WARN msg="pod admitted without a resource that it requests" event=verdict verdict=admitted pod=default/worker uid=u1 notes="no gpu; no fpga" request_id=""` + "\n",
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
			var n counts
			e := newVerdicts(row.answers, &n, logTo(&log), time.Now)
			v, err := e.Admit(t.Context(), admission.Request{Pod: pod, DryRun: row.dryRun})
			if v.Outcome != row.verdict.Outcome || v.Message != row.verdict.Message || !errors.Is(err, row.err) {
				t.Errorf("answered %+v, %v", v, err)
			}
			if want := map[bool]int{false: 1}[row.dryRun]; n.admissions != want {
				t.Errorf("%d admissions are counted, want %d", n.admissions, want)
			}
			if got := log.String(); got != row.want {
				t.Errorf("logged %q, want %q", got, row.want)
			}
		})
	}
}

// TestFloodOfRejections: an agent that calls without end gets its answers, and the log reports how
// much it has left out.
func TestFloodOfRejections(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	now := time.Unix(1_000_000, 0)
	e := newVerdicts(answers{verdict: admission.Verdict{Outcome: admission.Rejected, Reason: "OutOfcpu"}}, &counts{},
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

package errdefs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"reflect"
	"testing"
)

func TestClassOf(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		err  error
		want Class
		name string
	}{
		{Internalf("x"), Internal, "internal"},
		{Invalidf("x"), Invalid, "invalid"},
		{NotFoundf("x"), NotFound, "not found"},
		{Refuse(OutOfCPU, "x"), Refused, "refused"},
		{Existsf("x"), Exists, "exists"},
		{Conflictf("x"), Conflict, "conflict"},
		{Preconditionf("x"), Precondition, "precondition"},
		{Unsupportedf("x"), Unsupported, "unsupported"},
		{Unavailablef("x"), Unavailable, "unavailable"},
		{Exhaustedf("x"), Exhausted, "exhausted"},
		{PermissionDeniedf("x"), PermissionDenied, "permission denied"},
		{Deadlinef("x"), Deadline, "deadline"},
		{Corruptf("x"), Corrupt, "corrupt"},
		{Gonef("x"), Gone, "gone"},
		{context.Canceled, Canceled, "canceled"},
		{context.DeadlineExceeded, Deadline, "deadline"},
		{io.EOF, Internal, "internal"},
		{nil, Internal, "internal"},
		{&Error{Message: "no class given"}, Internal, "internal"},
		// The outer class wins: a plugin's deadline may be an unavailable plugin to the caller.
		{Unavailablef("ask plugin: %w", context.DeadlineExceeded), Unavailable, "unavailable"},
	} {
		for _, err := range []error{row.err, fmt.Errorf("plan cpu for pod/c: %w", row.err)} {
			if got := ClassOf(err); got != row.want || got.String() != row.name {
				t.Errorf("ClassOf(%v) = %v, want %v", err, got, row.name)
			}
		}
	}
	if got := Class(99).String(); got != "class(99)" {
		t.Errorf("unknown class prints as %q", got)
	}
	if got := Class(-1).String(); got != "class(-1)" {
		t.Errorf("negative class prints as %q", got)
	}
}

func TestCodeOf(t *testing.T) {
	t.Parallel()
	bound := func() *Error { return Existsf("id is bound").Coded(ContainerIDBound, "container_id", "c1") }
	for name, row := range map[string]struct {
		err  error
		want Code
		id   string
	}{
		"given":                   {bound(), ContainerIDBound, "c1"},
		"given, wrapped":          {fmt.Errorf("start: %w", bound()), ContainerIDBound, "c1"},
		"same class around it":    {Existsf("start: %w", bound()), ContainerIDBound, "c1"},
		"other class around it":   {Unavailablef("start: %w", bound()), "TEMPORARILY_UNAVAILABLE", ""},
		"class":                   {Existsf("x"), "OBJECT_EXISTS", ""},
		"no class":                {io.EOF, "INTERNAL_ERROR", ""},
		"deadline":                {context.DeadlineExceeded, "TIMED_OUT", ""},
		"rejected":                {Refuse(OutOfCPU, "x"), "POD_REJECTED", ""},
		"deferred":                {&Error{Class: Unavailable, Reason: "NoHealthyDevice"}, "POD_DEFERRED", ""},
		"deferred by uncertainty": {&Error{Class: Unavailable, Reason: "StateUncertain"}, "LEDGER_UNCERTAIN", ""},
	} {
		code, metadata := CodeOf(row.err, ClassOf(row.err))
		if code != row.want || metadata["container_id"] != row.id {
			t.Errorf("%s: %s with %v, want %s", name, code, metadata, row.want)
		}
	}
	for c := range codes {
		if codes[c] == "" {
			t.Errorf("class %s has no code", Class(c))
		}
	}
}

func TestErrorKeepsCauses(t *testing.T) {
	t.Parallel()
	err := error(Unavailablef("write %s: %w", "ledger", fs.ErrPermission))
	if got, want := err.Error(), "write ledger: permission denied"; got != want {
		t.Errorf("text %q, want %q", got, want)
	}
	if !errors.Is(err, fs.ErrPermission) {
		t.Error("the wrapped cause is out of reach")
	}
	err = Corruptf("%w and %w", io.EOF, fs.ErrClosed)
	if !errors.Is(err, io.EOF) || !errors.Is(err, fs.ErrClosed) {
		t.Error("one of two wrapped causes is out of reach")
	}
	if cause := errors.Unwrap(NotFoundf("pod %s is not known", "a")); cause != nil {
		t.Errorf("an error that wraps nothing has the cause %v", cause)
	}
}

func TestVerdict(t *testing.T) {
	t.Parallel()
	smt := Refuse(SMTAlignmentError, "SMT Alignment Error: requested 3 cpus not multiple cpus per core = 2")
	for _, row := range []struct {
		err     error
		reason  Reason
		typed   bool
		message string
	}{
		{smt, SMTAlignmentError, true, smt.Message},
		{fmt.Errorf("plan cpu for pod/c: %w", smt), SMTAlignmentError, true, smt.Message},
		{Unavailablef("provider cpu: %w", fmt.Errorf("plan: %w", smt)), SMTAlignmentError, true, smt.Message},
		{Refuse(OutOf("example.com/gpu"), "none left"), "OutOfexample.com/gpu", true, "none left"},
		{Refuse("", "not enough cpus"), UnexpectedAdmissionError, false, "Allocate failed due to not enough cpus, which is unexpected"},
		{io.EOF, UnexpectedAdmissionError, false, "Allocate failed due to EOF, which is unexpected"},
	} {
		if reason, message := Verdict(row.err); reason != row.reason || message != row.message {
			t.Errorf("Verdict(%v) = %q, %q; want %q, %q", row.err, reason, message, row.reason, row.message)
		}
		if reason, ok := ReasonOf(row.err); ok != row.typed || ok && reason != row.reason {
			t.Errorf("ReasonOf(%v) = %q, %v", row.err, reason, ok)
		}
	}
}

func TestViolations(t *testing.T) {
	t.Parallel()
	var vs Violations
	if err := vs.Err("pod a"); err != nil {
		t.Fatalf("no violation, yet %v", err)
	}
	vs.Addf("pod.metadata.uid", "is required")
	if got, want := vs.Err("pod a").Error(), "pod a is invalid: pod.metadata.uid: is required"; got != want {
		t.Errorf("one violation: %q, want %q", got, want)
	}
	vs.Addf("pod.spec.containers", "%d are too many", 7)
	err := fmt.Errorf("admit: %w", vs.Err("pod a"))
	if got, want := err.Error(), "admit: pod a is invalid: pod.metadata.uid: is required (and 1 more)"; got != want {
		t.Errorf("two violations: %q, want %q", got, want)
	}
	var e *Error
	want := []Violation{{"pod.metadata.uid", "is required"}, {"pod.spec.containers", "7 are too many"}}
	if !errors.As(err, &e) || e.Class != Invalid || !reflect.DeepEqual(e.Fields, want) {
		t.Errorf("fields %v, class %v; want %v, invalid", e.Fields, ClassOf(err), want)
	}
}

package main

import (
	"reflect"
	"strings"
	"testing"

	"github.com/berthd/berth/hack/vm/job"
)

const verbose = `=== RUN   TestA
=== PAUSE TestA
=== RUN   TestB
=== RUN   TestB/one
=== RUN   TestB/two
    b_test.go:9: needs a second CPU
=== CONT  TestA
=== NAME  TestC
    c_test.go:3: needs the moon
=== CONT  TestA
--- PASS: TestA (0.01s)
--- SKIP: TestC (0.00s)
--- FAIL: TestB (0.00s)
    --- FAIL: TestB/one (0.00s)
    --- SKIP: TestB/two (0.00s)
FAIL
`

func TestCount(t *testing.T) {
	t.Parallel()
	want := counts{passed: 1, failed: 1, skipped: []skip{
		{"TestC", "c_test.go:3: needs the moon"}, {"TestB/two", "b_test.go:9: needs a second CPU"},
	}}
	if got := count(verbose); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestSkipsOfOneReason(t *testing.T) {
	t.Parallel()
	c := counts{skipped: []skip{{"TestA", "x"}, {"TestB", "y"}, {"TestC", "x"}, {"TestD", "x"}}}
	if got, want := c.skips(), []string{"TestA and 2 more: x", "TestB: y"}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestVerdicts(t *testing.T) {
	t.Parallel()
	const good = "--- PASS: TestA (0.01s)\n"
	for name, c := range map[string]struct {
		text   string
		status int
		noSkip bool
		passed bool
		says   string
	}{
		"passed":           {good, 0, false, true, "1 passed\n"},
		"failed":           {good + "--- FAIL: TestB (0.01s)\n", 1, false, false, "1 passed, 1 failed (exit status 1)"},
		"killed":           {good, 137, false, false, "(exit status 137)"},
		"nothing ran":      {"testing: warning: no tests to run\n", 0, false, false, "0 passed"},
		"skip":             {good + "--- SKIP: TestB (0.01s)\n", 0, false, true, "1 passed, 1 skipped"},
		"skip not allowed": {good + "--- SKIP: TestB (0.01s)\n", 0, true, false, "1 passed, 1 skipped"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out strings.Builder
			r := &report{out: &out, jobs: []job.Test{{Package: "p"}}, noSkip: c.noSkip, passed: true}
			for _, e := range []job.Event{{Kind: job.Start}, {Kind: job.Output, Text: c.text}, {Kind: job.End, Status: c.status}} {
				r.handle(e)
			}
			if r.passed != c.passed || !strings.Contains(out.String(), c.says) {
				t.Errorf("passed %t, want %t; printed\n%s", r.passed, c.passed, out.String())
			}
		})
	}
}

func TestTroubleAndDeathAreReported(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	r := &report{out: &out, jobs: []job.Test{{Package: "p"}, {Package: "q"}}, passed: true}
	r.handle(job.Event{Kind: job.Trouble, Text: "no cgroups"})
	r.handle(job.Event{Kind: job.Start, Test: 1})
	r.handle(job.Event{Kind: job.Output, Test: 1, Text: "=== RUN   TestA\n"})
	if r.passed || !strings.Contains(out.String(), "no cgroups") {
		t.Errorf("passed in spite of trouble:\n%s", out.String())
	}
	if got := r.unfinished(); !strings.Contains(got, "q was running") || !strings.Contains(got, "TestA") {
		t.Errorf("%q does not tell what ran when the VM died", got)
	}
}

func TestBadCommandLines(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		args []string
		says string
	}{
		"no package":    {nil, "no package"},
		"cgroup":        {[]string{"-cgroup", "v3", "p"}, "want v1, hybrid or v2"},
		"shape":         {[]string{"-shape", "cube", "p"}, "n4mem"},
		"nodes":         {[]string{"-nodes", "3", "p"}, "4 CPUs on 3 nodes"},
		"huge pages":    {[]string{"-hugepages", "4K=1", "p"}, "2M="},
		"unknown flag":  {[]string{"-fly", "p"}, "-fly"},
		"no such value": {[]string{"-cpus", "many", "p"}, "many"},
	} {
		var out, errs strings.Builder
		if code := command(t.Context(), c.args, &out, &errs); code != 2 || !strings.Contains(errs.String(), c.says) {
			t.Errorf("%s: status %d, %s; want 2 and a word about %q", name, code, errs.String(), c.says)
		}
	}
}

func TestOptional(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	for flag, want := range map[string]int{"-optional=true": 0, "-optional=false": 1} {
		var out, errs strings.Builder
		code := command(t.Context(), []string{flag, "p"}, &out, &errs)
		if said := out.String() + errs.String(); code != want || !strings.Contains(said, "missing: qemu") {
			t.Errorf("%s: status %d, %s; want %d and what is missing", flag, code, said, want)
		}
	}
}

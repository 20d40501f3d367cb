package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/berthd/berth/hack/vm/job"
)

// report prints what the VM says in the manner of go test.
type report struct {
	out             io.Writer
	jobs            []job.Test
	verbose, noSkip bool
	started         time.Time

	passed  bool
	running int // index of the test that runs, if text is kept for one
	text    strings.Builder
}

// handle takes the VM's next event.
func (r *report) handle(e job.Event) {
	switch e.Kind {
	case job.Boot:
		fmt.Fprintf(r.out, "booted in %.1fs: %s\n", time.Since(r.started).Seconds(), release(e.Text))
	case job.Start:
		r.running = e.Test
		r.text.Reset()
	case job.Output:
		if r.verbose {
			fmt.Fprint(r.out, e.Text)
		}
		r.text.WriteString(e.Text)
	case job.End:
		r.end(e)
	case job.Trouble:
		fmt.Fprintln(r.out, "VM:", e.Text)
		r.passed = false
	}
}

// release shortens /proc/version to the name of the system and its release.
func release(version string) string {
	name, _, _ := strings.Cut(version, " (")
	return name
}

// end prints the result of a test binary.
func (r *report) end(e job.Event) {
	c := count(r.text.String())
	ok := e.Status == 0 && c.passed+len(c.skipped) > 0 && !(r.noSkip && len(c.skipped) > 0)
	word := "ok  "
	if !ok {
		word = "FAIL"
		r.passed = false
		if !r.verbose {
			fmt.Fprint(r.out, r.text.String())
		}
	}
	line := fmt.Sprintf("%s\t%s\t%.2fs\t%d passed", word, r.jobs[e.Test].Package, e.Seconds, c.passed)
	if c.failed > 0 {
		line += fmt.Sprintf(", %d failed", c.failed)
	}
	if len(c.skipped) > 0 {
		line += fmt.Sprintf(", %d skipped", len(c.skipped))
	}
	if e.Status != 0 {
		line += fmt.Sprintf(" (exit status %d)", e.Status)
	}
	fmt.Fprintln(r.out, line)
	for _, s := range c.skips() {
		fmt.Fprintln(r.out, "\tskipped", s)
	}
	r.text.Reset()
}

// unfinished is what the test had printed that was running when the VM died.
func (r *report) unfinished() string {
	if r.text.Len() == 0 || r.verbose {
		return ""
	}
	return fmt.Sprintf("\n%s was running:\n%s", r.jobs[r.running].Package, r.text.String())
}

// counts of a test binary's output. Parents of subtests do not count.
type counts struct {
	passed, failed int
	skipped        []skip
}

// skip is a test that did not run, with the last that it said.
type skip struct{ test, reason string }

// skips gives one line for each reason, with one of the tests and the number of
// the others.
func (c counts) skips() (lines []string) {
	others := map[string]int{}
	for _, s := range c.skipped {
		others[s.reason]++
	}
	for _, s := range c.skipped {
		n := others[s.reason]
		delete(others, s.reason)
		switch {
		case n == 1:
			lines = append(lines, s.test+": "+s.reason)
		case n > 1:
			lines = append(lines, fmt.Sprintf("%s and %d more: %s", s.test, n-1, s.reason))
		}
	}
	return lines
}

// count reads the output of a test binary that runs with -test.v.
func count(text string) (c counts) {
	type result struct{ verdict, name string }
	var results []result
	parents := map[string]bool{}
	said := map[string]string{} // a test's last line
	current := ""
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if mark, ok := strings.CutPrefix(line, "=== "); ok { // RUN, PAUSE, CONT, NAME
			_, current, _ = strings.Cut(mark, " ")
			current = strings.TrimSpace(current)
			continue
		}
		verdict, rest, ok := strings.Cut(strings.TrimPrefix(line, "--- "), ": ")
		if !ok || !strings.HasPrefix(line, "--- ") {
			said[current] = line
			continue
		}
		name, _, _ := strings.Cut(rest, " ")
		results = append(results, result{verdict, name})
		for i, r := range name {
			if r == '/' {
				parents[name[:i]] = true
			}
		}
	}
	for _, r := range results {
		switch {
		case parents[r.name]:
		case r.verdict == "PASS":
			c.passed++
		case r.verdict == "FAIL":
			c.failed++
		case r.verdict == "SKIP":
			c.skipped = append(c.skipped, skip{r.name, said[r.name]})
		}
	}
	return c
}

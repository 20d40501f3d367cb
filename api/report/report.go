// Package report has the result of a check before a start: berthd's and berth-nri's. It is printed, and written in one line to files:
// that which the kubelet reads as the message of a container's end, and one that berth-nri reads.
package report

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/pflag"

	"github.com/berthd/berth/api/trust"
)

// Passed and failed begin the line in a file.
const (
	Passed = "passed"
	failed = "failed"
)

// MaxLine bounds the line in bytes: the kubelet takes 4 KiB of a message, and all containers of a pod 12 KiB.
const MaxLine = 1 << 10

// Result reports what a check has found.
type Result struct{ failures, notes []string }

// Fail adds a reason not to start.
func (r *Result) Fail(format string, args ...any) {
	r.failures = append(r.failures, fmt.Sprintf(format, args...))
}

// Note adds something else that is worth knowing.
func (r *Result) Note(format string, args ...any) {
	r.notes = append(r.notes, fmt.Sprintf(format, args...))
}

// AddFlag declares the flag that names the files.
func AddFlag(f *pflag.FlagSet, files *[]string) {
	f.StringSliceVar(files, "report", nil,
		"files to which the result is written in one line; the exit code is then 0 also if the check has failed, so that the start goes on")
	trust.Mark(f, trust.Output, "report")
}

// Finish prints the result and writes it to the files. Without files, a failure is the error.
func (r Result) Finish(out io.Writer, files []string) error {
	for _, n := range r.notes {
		fmt.Fprintln(out, "note:", n)
	}
	if len(files) == 0 {
		if len(r.failures) == 0 {
			return nil
		}
		return errors.New(strings.Join(r.failures, "; "))
	}
	for _, f := range r.failures {
		fmt.Fprintln(out, "failed:", f)
	}
	var errs error
	for _, file := range files {
		if err := os.WriteFile(file, []byte(r.Line()+"\n"), 0o644); err != nil {
			errs = errors.Join(errs, fmt.Errorf("--report: %w", err))
		}
	}
	return errs
}

// Line is the result in one line.
func (r Result) Line() string {
	begin, parts := Passed, r.notes
	if len(r.failures) > 0 {
		begin, parts = failed, r.failures
	}
	line := strings.Join(strings.Fields(begin+": "+strings.Join(parts, "; ")), " ")
	line = strings.TrimSuffix(line, ":") // nothing is worth knowing
	if len(line) > MaxLine {
		const more = "…"
		line = strings.ToValidUTF8(line[:MaxLine-len(more)], "") + more
	}
	return line
}

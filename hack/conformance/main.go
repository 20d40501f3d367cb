package main

import (
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// caseDeadline is far above what any case needs.
const caseDeadline = 2 * time.Minute

// shown is how much of an expectation or answer is printed without -v.
const shown = 2000

type flags struct {
	dir, suite      string
	verbose, noSkip bool
}

func main() {
	var f flags
	flag.StringVar(&f.dir, "dir", "", "folder of recordings (default ../shared/conformance beside the module)")
	flag.StringVar(&f.suite, "suite", "", "run only this suite")
	flag.BoolVar(&f.verbose, "v", false, "print every case, and failures in full")
	flag.BoolVar(&f.noSkip, "no-skip", false, "a skipped case fails the run")
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "conformance: unexpected argument %q\n", flag.Arg(0))
		os.Exit(2)
	}
	ok, err := f.run(os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		os.Exit(2)
	}
	if !ok {
		os.Exit(1)
	}
}

// run runs the suites of the directory and prints the results; ok is the overall verdict.
func (f flags) run(out io.Writer) (ok bool, err error) {
	root, err := moduleRoot()
	if err != nil {
		return false, err
	}
	if f.dir == "" {
		f.dir = filepath.Join(root, "..", "shared", "conformance")
	}
	env, err := loadEnv(root, f.dir)
	if err != nil {
		return false, err
	}
	total, report := newResult(""), f.reporter(out)
	r := &runner{dir: f.dir, env: env, deadline: caseDeadline, report: func(name, id string, o outcome) {
		total.count(o)
		report(name, id, o)
	}}
	files, err := r.files(f.suite)
	if err != nil {
		return false, err
	}
	for _, file := range files {
		res, err := r.run(file)
		if err != nil {
			return false, err
		}
		printResult(out, res)
	}
	printCounts(out, "listed differences, counted as passed", total.Listed)
	printCounts(out, "skipped", total.Skips)
	fmt.Fprintf(out, "%d passed, %d failed, %d skipped\n", total.Passed, total.Failed, total.Skips.total())
	return total.Failed == 0 && (!f.noSkip || len(total.Skips) == 0), nil
}

// reporter prints the cases that failed, or all with -v.
func (f flags) reporter(out io.Writer) func(name, id string, o outcome) {
	cut := func(s string) string {
		if f.verbose || len(s) <= shown {
			return s
		}
		return fmt.Sprintf("%s… (%d bytes more, see -v)", s[:shown], len(s)-shown)
	}
	words := map[verdict]string{passed: "pass", skipped: "skip", listed: "listed difference"}
	return func(name, id string, o outcome) {
		switch {
		case o.verdict == failed:
			fmt.Fprintf(out, "FAIL %s %s: %s\n", name, id, cut(o.note))
			if o.want != "" || o.got != "" {
				fmt.Fprintf(out, "  expected %s\n  got      %s\n", cut(o.want), cut(o.got))
			}
		case f.verbose && id != "":
			fmt.Fprintf(out, "%s %s %s", words[o.verdict], name, id)
			if o.note != "" {
				fmt.Fprintf(out, ": %s", o.note)
			}
			fmt.Fprintln(out)
		}
	}
}

func printResult(out io.Writer, r Result) {
	fmt.Fprintf(out, "%-28s %5d passed, %5d failed, %5d skipped", r.Name, r.Passed, r.Failed, r.Skips.total())
	if differ := r.Listed.total(); differ > 0 {
		fmt.Fprintf(out, ", %d listed differences", differ)
	}
	fmt.Fprintf(out, "  (%s)\n", r.Took.Round(time.Millisecond))
}

// printCounts prints counts by reason, the most frequent first.
func printCounts(out io.Writer, title string, counts tally) {
	if len(counts) == 0 {
		return
	}
	reasons := slices.Sorted(maps.Keys(counts))
	slices.SortStableFunc(reasons, func(a, b string) int { return counts[b] - counts[a] })
	fmt.Fprintln(out, title+":")
	for _, reason := range reasons {
		fmt.Fprintf(out, "  %6d  %s\n", counts[reason], reason)
	}
}

// Command bench runs the benchmarks of server/internal/bench and clients/dra/driver and prints their medians as
// tables: a line for each operation, a column for each size, and what berth
// promises beside them. Benchmarks that repeat what they measure by themselves, in rounds, run once. hack/kubeletbench compares
// berth with kubelets.
//
// Usage: go run ./hack/bench [-bench REGEXP] [-count N] [-benchtime D] [-against COMMIT]
//
// With -against, the benchmarks of server/internal/bench run in turns with those of a commit, and only the ratios are printed.
//
// Times are processor time where a benchmark reports that (see measure in
// server/internal/bench), else time on the clock. It fails if a benchmark fails. A promise that is not kept is marked and does
// not fail the run: a machine may be busy.
package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"
)

func main() {
	bench := flag.String("bench", ".", "benchmarks to run, a regular expression")
	count := flag.Int("count", 5, "runs of each; medians are printed")
	benchtime := flag.String("benchtime", "200ms", "length of a run")
	commit := flag.String("against", "", "commit to compare with, in turns")
	flag.Parse()
	do := func() error { return run(os.Stdout, *bench, *count, *benchtime) }
	if *commit != "" {
		do = func() error {
			ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			return against(ctx, os.Stdout, *commit, *bench, *count, *benchtime)
		}
	}
	if err := do(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// inRounds are the benchmarks that run once, whatever -count is.
var inRounds = []string{"BenchmarkBadUser", "BenchmarkRest"}

func run(w io.Writer, bench string, count int, benchtime string) error {
	names, err := goTest("-list", "^Benchmark")
	if err != nil {
		return err
	}
	var others []string
	for name := range strings.FieldsSeq(names) {
		if strings.HasPrefix(name, "Benchmark") && !slices.Contains(inRounds, name) {
			others = append(others, name)
		}
	}
	var results results
	for _, part := range []struct {
		skip  []string
		count int
	}{{inRounds, count}, {others, 1}} {
		out, err := goTest("-run", "^$", "-bench", bench, "-skip", "^("+strings.Join(part.skip, "|")+")$", "-benchmem",
			"-count", fmt.Sprint(part.count), "-benchtime", benchtime, "-timeout", "30m")
		if err != nil {
			return err
		}
		for line := range strings.Lines(out) {
			results.read(strings.TrimSuffix(line, "\n"))
		}
	}
	results.print(w)
	return nil
}

// goTest runs go test on the benchmarks and returns its output.
func goTest(args ...string) (string, error) {
	cmd := exec.Command("go", append(append([]string{"test"}, args...), "./server/internal/bench", "./clients/dra/driver")...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, os.Stderr
	// What collects garbage beside the measured work is counted as part of it.
	cmd.Env = append(os.Environ(), "GOMAXPROCS=1")
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%w\n%s", err, out.Bytes())
	}
	return out.String(), nil
}

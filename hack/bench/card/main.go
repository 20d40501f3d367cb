// Command card runs the benchmarks of hack/bench and prints their medians as
// tables: a line for each operation, a column for each size, and what berth
// promises and the kubelet took beside them.
//
// Usage: go run ./hack/bench/card [-bench REGEXP] [-count N] [-benchtime D]
//
// Times are processor time where a benchmark reports that (see measure in
// hack/bench), else time on the clock. It fails if a benchmark fails. A promise that is not kept is marked and does
// not fail the run: a machine may be busy.
package main

import (
	"bufio"
	"bytes"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
)

func main() {
	bench := flag.String("bench", ".", "benchmarks to run, a regular expression")
	count := flag.Int("count", 5, "runs of each; medians are printed")
	benchtime := flag.String("benchtime", "200ms", "length of a run")
	flag.Parse()
	if err := run(os.Stdout, *bench, *count, *benchtime); err != nil {
		fmt.Fprintln(os.Stderr, "card:", err)
		os.Exit(1)
	}
}

func run(w io.Writer, bench string, count int, benchtime string) error {
	cmd := exec.Command("go", "test", "-run", "^$", "-bench", bench, "-benchmem",
		"-count", fmt.Sprint(count), "-benchtime", benchtime, "./hack/bench")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, os.Stderr
	// What collects garbage beside the measured work is counted as part of it.
	cmd.Env = append(os.Environ(), "GOMAXPROCS=1")
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%w\n%s", err, out.Bytes())
	}
	var results results
	for lines := bufio.NewScanner(&out); lines.Scan(); {
		results.read(lines.Text())
	}
	results.print(w)
	return nil
}

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"text/tabwriter"
)

// measured is the package whose benchmarks are compared with those of a commit.
const measured = "server/internal/bench"

// side is one state of the sources, and what its benchmarks gave.
type side struct {
	tree, program string
	results
}

// against runs the benchmarks of this tree and of a commit in turns, so that a slow moment of the machine slows both, and prints
// the ratios. When ctx ends, it removes what it has made.
func against(ctx context.Context, w io.Writer, commit, bench string, count int, benchtime string) (err error) {
	dir, err := os.MkdirTemp("", "bench")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	here, err := os.Getwd()
	if err != nil {
		return err
	}
	then := &side{tree: filepath.Join(dir, "tree"), program: filepath.Join(dir, "then")}
	if _, err := output(ctx, here, "git", "worktree", "add", "--detach", then.tree, commit); err != nil {
		return err
	}
	defer func() {
		_, removed := output(context.WithoutCancel(ctx), here, "git", "worktree", "remove", "--force", then.tree)
		err = errors.Join(err, removed)
	}()
	now := &side{tree: here, program: filepath.Join(dir, "now")}
	for _, s := range []*side{now, then} {
		// Without paths, both trees share what is cached of packages that are the same.
		if _, err := output(ctx, s.tree, "go", "test", "-c", "-trimpath", "-o", s.program, "./"+measured); err != nil {
			return err
		}
	}
	for range count {
		for _, s := range []*side{then, now} {
			text, err := outputOn(ctx, 1, filepath.Join(s.tree, measured), s.program, "-test.run", "^$", "-test.bench", bench,
				"-test.benchmem", "-test.benchtime", benchtime)
			if err != nil {
				return err
			}
			for line := range bytes.Lines(text) {
				s.read(string(bytes.TrimSuffix(line, []byte("\n"))))
			}
		}
	}
	printRatios(w, &now.results, &then.results, commit)
	return nil
}

// printRatios writes the medians of both sides, and how many times the time and the allocations of the commit this tree takes.
func printRatios(w io.Writer, now, then *results, commit string) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "Benchmark\t%s\tnow\ttimes\tallocations\tnow\n", commit)
	for _, n := range now.order {
		a, ok := then.median(n)
		b, _ := now.median(n)
		if !ok || a.ns == 0 {
			continue
		}
		fmt.Fprintf(t, "%s, %s of %s, %s\t%s\t%s\tx%.2f\t%d\t%d\n",
			n.subject, n.operation, n.size, n.implementation, short(a.ns), short(b.ns), b.ns/a.ns, a.allocs, b.allocs)
	}
	_ = t.Flush() // w has the error, too
}

// output runs a program in a directory and returns what it prints.
func output(ctx context.Context, dir, name string, args ...string) ([]byte, error) {
	return outputOn(ctx, 0, dir, name, args...)
}

// outputOn is output on so many processors; on those of the machine, if the number is 0.
func outputOn(ctx context.Context, processors int, dir, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	if processors > 0 {
		cmd.Env = append(os.Environ(), fmt.Sprint("GOMAXPROCS=", processors)) // as goTest
	}
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w\n%s%s", name, err, out, errs.Bytes())
	}
	return out, nil
}

// Command mutants plants defects into the managers and into berth-nri, one by one, and makes sure that
// the recorded vectors, or named tests, find each of them.
//
//	go run ./hack/mutants [-run REGEXP] [-parallel N] [-limit TIME]
//
// Nothing in the tree is changed: a defect is an overlay of the build (go help
// build). The defects are in list.go; each names the suites of hack/conformance, or the
// tests, that run on it. A defect that no suite finds, that does not compile, or whose text is not
// in its file any more fails the run. Before the defects, each suite and test runs once without one, and has to pass. A run that
// takes longer than -limit has found its defect, if there is one: a test that hangs does not pass. The recordings are those of
// ../shared/conformance beside the module; without them the run is skipped.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

func main() {
	pattern := flag.String("run", "", "only defects whose name or file matches")
	parallel := flag.Int("parallel", 2, "defects tried at a time")
	limit := flag.Duration("limit", 10*time.Minute, "longest time of a run of a suite or a test")
	flag.Parse()
	if err := run(*pattern, *parallel, *limit); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

// recordings are the directories of ../shared with recordings.
var recordings = []string{"conformance", "conformance-1.37/cpu", "conformance-1.37/rest"}

func run(pattern string, parallel int, limit time.Duration) (err error) {
	only, err := regexp.Compile(pattern)
	if err != nil {
		return err
	}
	root, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		return fmt.Errorf("find the module: %w", err)
	}
	w := workspace{root: strings.TrimSpace(string(root)), limit: limit}
	first := filepath.Join(w.root, "..", "shared", recordings[0])
	if _, err := os.Stat(first); errors.Is(err, os.ErrNotExist) {
		fmt.Println("skipped: there are no recordings at", first)
		return nil
	}
	if w.dir, err = os.MkdirTemp("", "mutants"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(w.dir)) }()

	begin := time.Now()
	var chosen []mutant
	for _, m := range mutants {
		if only.MatchString(m.name) || only.MatchString(m.file) {
			chosen = append(chosen, m)
		}
	}
	if err := w.control(chosen); err != nil {
		return err
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	tried, missed := 0, 0
	free := make(chan int, parallel) // numbers of workers, by which their files are named
	for i := range parallel {
		free <- i
	}
	for _, m := range chosen {
		wg.Go(func() {
			worker := <-free
			defer func() { free <- worker }()
			text, ok := w.try(worker, m)
			mu.Lock()
			defer mu.Unlock()
			if tried++; !ok {
				missed++
			}
			fmt.Printf("%-12s %s (%s)\n", text, m.name, m.file)
		})
	}
	wg.Wait()
	fmt.Printf("%d defects in %s, %d not found\n", tried, time.Since(begin).Round(time.Second), missed)
	if missed > 0 {
		return fmt.Errorf("%d defects pass every suite: a vector or a rule is missing, or the text of a defect is out of date", missed)
	}
	return nil
}

// workspace is the module and a folder for what is built of it.
type workspace struct {
	root, dir string
	limit     time.Duration
}

// control runs all suites and tests of some defects without a defect: one that fails would find everything.
func (w workspace) control(chosen []mutant) error {
	var suites []string
	for _, m := range chosen {
		suites = append(suites, m.suites...)
	}
	slices.Sort(suites)
	program, built := filepath.Join(w.dir, "control.bin"), ""
	for _, suite := range slices.Compact(suites) {
		target, runs := w.judges(suite)
		if target != built {
			if err := w.build(target, program); err != nil {
				return err
			}
			built = target
		}
		for _, args := range runs {
			found, err := w.run(target, program, args)
			if err == nil && found {
				err = errors.New("it fails")
			}
			if err != nil {
				return fmt.Errorf("%s without a defect: %w", suite, err)
			}
		}
	}
	return nil
}

// build builds a package of judge.
func (w workspace) build(target, program string, flags ...string) error {
	args := append(builds(target), flags...)
	build := exec.Command("go", append(args, "-o", program, target)...)
	build.Dir = w.root
	out, err := build.CombinedOutput()
	if err != nil {
		return fmt.Errorf("build %s: %s", target, out)
	}
	return nil
}

// run runs a judge, and reports whether it has found something: it fails, or takes too long. A test runs in the directory
// of its package, as with go test.
func (w workspace) run(target, program string, args []string) (found bool, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), w.limit)
	defer cancel()
	judge := exec.CommandContext(ctx, program, args...)
	judge.Dir = w.root
	if target != runner {
		judge.Dir = filepath.Join(w.root, target)
		judge.Env = append(os.Environ(), "BERTH_LONG=1") // some defects are found by few of many random histories
	}
	err = judge.Run()
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil, errors.As(err, &exit) && exit.ExitCode() == 1:
		return true, nil
	case errors.As(err, &exit) && exit.ExitCode() == 2 && target != runner: // a panic
		return true, nil
	}
	return false, err
}

// try plants one defect and returns what found it.
func (w workspace) try(worker int, m mutant) (found string, ok bool) {
	file := filepath.Join(w.root, m.file)
	source, err := os.ReadFile(file)
	if err != nil {
		return err.Error(), false
	}
	if n := strings.Count(string(source), m.old); n != 1 {
		return fmt.Sprintf("STALE: its text is there %d times", n), false
	}
	at := filepath.Join(w.dir, fmt.Sprint(worker))
	planted, overlay, program := at+".go", at+".json", at+".bin"
	replace, err := json.Marshal(map[string]map[string]string{"Replace": {file: planted}})
	if err != nil {
		return err.Error(), false
	}
	if err := errors.Join(
		os.WriteFile(planted, []byte(strings.Replace(string(source), m.old, m.new, 1)), 0o600),
		os.WriteFile(overlay, replace, 0o600),
	); err != nil {
		return err.Error(), false
	}
	built := ""
	for _, suite := range m.suites {
		target, runs := w.judges(suite)
		if target != built {
			if err := w.build(target, program, "-overlay", overlay); err != nil {
				return "BROKEN: " + err.Error(), false
			}
			built = target
		}
		for _, args := range runs {
			found, err := w.run(target, program, args)
			switch {
			case found:
				return suite, true
			case err != nil:
				return "BROKEN: " + err.Error(), false
			}
		}
	}
	return "NOT FOUND", false
}

// runner is the package of the conformance runner.
const runner = "./hack/conformance"

// judges returns the package of what may find a defect, a suite of the conformance runner or a test, and the arguments
// of each run: a suite runs on each set of recordings that has it.
func (w workspace) judges(suite string) (target string, runs [][]string) {
	if dir, test, ok := strings.Cut(suite, "."); ok {
		return "./" + dir, [][]string{{"-test.run", "^" + test + "$"}}
	}
	for _, set := range recordings {
		dir := filepath.Join(w.root, "..", "shared", filepath.FromSlash(set))
		if _, err := os.Stat(filepath.Join(dir, suite+".jsonl.gz")); err == nil {
			runs = append(runs, []string{"-dir", dir, "-suite", suite})
		}
	}
	return runner, runs
}

// builds is the command that builds a package of judge.
func builds(target string) []string {
	if target == runner {
		return []string{"build"}
	}
	return []string{"test", "-c"}
}

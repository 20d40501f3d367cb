package main

import (
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"time"
)

// noSuite is the reason why the cases of a file fail that has no suite.
const noSuite = "no suite of this name, see suites.go"

// Result is what became of the cases of one file.
type Result struct {
	// Name of the suite; with "unstable/" before it for a file in that folder.
	Name string
	// Passed includes the listed differences.
	Passed, Failed int
	// Skips counts by reason, Listed by entry of docs/deviations.md.
	Skips, Listed tally
	Took          time.Duration
}

func newResult(name string) Result { return Result{Name: name, Skips: tally{}, Listed: tally{}} }

// tally counts cases by a text.
type tally map[string]int

func (t tally) total() (n int) {
	for _, some := range t {
		n += some
	}
	return n
}

// file is one file of recordings, with the name of its suite; label is that of its results.
type file struct{ path, name, label string }

// runner runs the recordings of a directory.
type runner struct {
	dir string
	env *Env
	// deadline cuts a case that takes longer.
	deadline time.Duration
	// report is called for every case, in the order of the file.
	report func(name, id string, o outcome)
}

// files returns the files of the directory, sorted; only those of the suite only, if it is not
// empty. No file is an error.
func (r *runner) files(only string) ([]file, error) {
	var out []file
	for _, sub := range []string{"", "unstable"} {
		entries, err := os.ReadDir(filepath.Join(r.dir, sub))
		if err != nil && (sub == "" || !errors.Is(err, os.ErrNotExist)) {
			return nil, err
		}
		for _, e := range entries {
			name, ok := strings.CutSuffix(strings.TrimSuffix(e.Name(), ".gz"), ".jsonl")
			if !ok || e.IsDir() || only != "" && name != only {
				continue
			}
			out = append(out, file{filepath.Join(r.dir, sub, e.Name()), name, filepath.Join(sub, name)})
		}
	}
	if len(out) == 0 {
		if only != "" {
			return nil, fmt.Errorf("%s: no file %s.jsonl or %s.jsonl.gz", r.dir, only, only)
		}
		return nil, fmt.Errorf("%s: no files *.jsonl or *.jsonl.gz", r.dir)
	}
	return out, nil
}

// run decides every case of a file.
func (r *runner) run(f file) (Result, error) {
	res := newResult(f.label)
	begin := time.Now()
	at := slices.IndexFunc(suites, func(s Suite) bool { return s.Name == f.name })
	err := eachRaw(f.path, func(line json.RawMessage) error {
		o := outcome{verdict: failed, note: noSuite}
		id := ""
		if at >= 0 {
			variants, err := split(line, f.label != f.name)
			if err != nil {
				return err
			}
			var h header
			if err := json.Unmarshal(variants[0], &h); err != nil {
				return err
			}
			id = h.ID
			o = r.guarded(suites[at], variants)
		}
		res.count(o)
		if r.report != nil {
			r.report(res.Name, id, o)
		}
		return nil
	})
	res.Took = time.Since(begin)
	if err != nil {
		return res, fmt.Errorf("%s: %w", f.path, err)
	}
	return res, nil
}

func (r *Result) count(o outcome) {
	switch o.verdict {
	case failed:
		r.Failed++
	case skipped:
		r.Skips[o.note]++
	case listed:
		r.Passed++
		r.Listed[o.note]++
	case passed:
		r.Passed++
	}
}

// guarded runs a case so that neither a panic nor an endless loop ends the run.
// A case that was cut keeps its goroutine until the process ends.
func (r *runner) guarded(s Suite, variants []json.RawMessage) outcome {
	done := make(chan outcome, 1)
	go func() {
		defer func() {
			if p := recover(); p != nil {
				done <- outcome{verdict: failed, note: fmt.Sprintf("panic: %v\n%s", p, debug.Stack())}
			}
		}()
		done <- s.judge(r.env, variants)
	}()
	timer := time.NewTimer(r.deadline)
	defer timer.Stop()
	select {
	case o := <-done:
		return o
	case <-timer.C:
		return outcome{verdict: failed, note: fmt.Sprintf("not decided within %s", r.deadline)}
	}
}

// judge judges a case by the first of its variants that fits.
func (s Suite) judge(env *Env, variants []json.RawMessage) outcome {
	var first outcome
	for i, raw := range variants {
		o := s.run(env, raw)
		if o.verdict != failed {
			return o
		}
		if i == 0 {
			first = o
		}
	}
	if n := len(variants); n > 1 {
		first.note = fmt.Sprintf("none of %d variants; the first: %s", n, first.note)
	}
	return first
}

// split returns the variants of a line: the line itself if it is stable.
func split(line json.RawMessage, unstable bool) ([]json.RawMessage, error) {
	if !unstable {
		return []json.RawMessage{line}, nil
	}
	var u struct {
		Variants []json.RawMessage `json:"variants"`
		Seen     []int             `json:"seen"` // how often each came
	}
	if err := decode(line, &u); err != nil {
		return nil, err
	}
	if len(u.Variants) == 0 {
		return nil, errors.New("a case without variants")
	}
	return u.Variants, nil
}

// eachRaw calls do with every case of a file. The bytes are do's to keep.
func eachRaw(path string, do func(json.RawMessage) error) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	var in io.Reader = f
	if strings.HasSuffix(path, ".gz") {
		if in, err = gzip.NewReader(f); err != nil {
			return err
		}
	}
	cases := json.NewDecoder(in)
	for n := 1; ; n++ {
		var raw json.RawMessage
		err := cases.Decode(&raw)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = do(raw)
		}
		if err != nil {
			return fmt.Errorf("case %d: %w", n, err)
		}
	}
}

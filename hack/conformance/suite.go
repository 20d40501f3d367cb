package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"

	"github.com/berthd/berth/hack/conformance/vector"
	"github.com/berthd/berth/managers/machine"
)

// Suite decides and judges the cases of one file.
type Suite struct {
	// Name is the file's name without its extension.
	Name string
	// run decides a case, given as its variants (exactly one for a stable case).
	run func(env *Env, variants []json.RawMessage) outcome
}

// Env is what all cases of a run share.
type Env struct {
	// Machines are the machines of topologies.json.
	Machines vector.Machines
	// Deviations are the ids of docs/deviations.md.
	Deviations map[string]bool
}

// machine returns the machine of a name. It panics without one: the case fails then.
func (e *Env) machine(name string) *machine.Topology {
	topo, err := e.Machines.Get(name)
	if err != nil {
		panic(err)
	}
	return topo
}

// Plan describes a suite with inputs In, recordings Want, and decisions Got. In and Want are
// decoded from the same JSON object, so each declares only its own half of the keys.
type Plan[In, Want, Got any] struct {
	// Decide calls the managers. An error of its own (not one that a manager
	// gave as its answer, which belongs into Got) fails the case, unless it is
	// a Skip.
	Decide func(env *Env, in In) (Got, error)
	// Compare returns what differs between the recording and the decision,
	// empty if nothing does.
	Compare func(in In, want Want, got Got) string
	// Differs is called for a defect case whose decision differs from the recording. It checks
	// that the decision keeps every invariant. It returns the id of the entry in
	// docs/deviations.md for this difference, or an error. A suite without it has no listed
	// differences.
	Differs func(env *Env, in In, want Want, got Got) (deviation string, wrong error)
	// Unsound returns why an unmarked recording is a defect case: it breaks a rule for all
	// answers, such as giving something to two owners. It uses only the recording; empty means
	// sound.
	Unsound func(env *Env, in In, want Want) (why string)
	// Unread are the paths of known keys that neither half declares, because they are not
	// compared.
	Unread []string
}

// Define makes a suite of a plan.
func Define[In, Want, Got any](name string, p Plan[In, Want, Got]) Suite {
	return Suite{Name: name, run: p.run}
}

// skip is the error of a case that cannot be decided yet.
type skip struct{ reason string }

func (s skip) Error() string { return s.reason }

// Skip returns Decide's error for a case that needs a missing feature. Reasons are counted, so
// they name the feature and not the case: "option full-pcpus-only".
func Skip(format string, args ...any) error { return skip{fmt.Sprintf(format, args...)} }

// verdict is the result of one case.
type verdict int

const (
	passed verdict = iota
	failed
	skipped
	listed
)

// outcome is a verdict with its details.
type outcome struct {
	verdict verdict
	// note is the reason of a skip, the deviation of a listed difference, or
	// what differs.
	note string
	want string
	got  string
}

// header has the keys of a case that the runner reads. Source and Test describe the origin, for
// readers.
type header struct {
	ID     string   `json:"id"`
	Source string   `json:"source"`
	Test   string   `json:"test"`
	Quirks []string `json:"quirks"`
}

// quirks are the defects of the reference that a case may be marked with.
var quirks = []string{
	"hugepage_size_missing", "hugepage_size_missing_on_a_node", "owned_device_vanished", "pod_allocated_twice",
	"reserved_more_than_node_has", "slice_aliasing", "sparse_numa_ids_with_distances", "unknown_numa_id",
}

// understood refuses a case with a key that no half of the suite reads, or with an unknown quirk.
func (p Plan[In, Want, Got]) understood(variants []json.RawMessage) error {
	for _, raw := range variants {
		at, err := unknownKey(raw, p.Unread, reflect.TypeFor[header](), reflect.TypeFor[In](), reflect.TypeFor[Want]())
		if err != nil {
			return fmt.Errorf("decode input: %w", err)
		}
		if at != "" {
			return fmt.Errorf("unknown key %q", at)
		}
		var h header
		if err := json.Unmarshal(raw, &h); err != nil {
			return fmt.Errorf("decode input: %w", err)
		}
		for _, q := range h.Quirks {
			if !slices.Contains(quirks, q) {
				return fmt.Errorf("unknown quirk %q, expected any of %q", q, quirks)
			}
		}
	}
	return nil
}

func (p Plan[In, Want, Got]) run(env *Env, variants []json.RawMessage) outcome {
	if err := p.understood(variants); err != nil {
		return outcome{verdict: failed, note: err.Error()}
	}
	var in In
	if err := json.Unmarshal(variants[0], &in); err != nil {
		return outcome{verdict: failed, note: "decode input: " + err.Error()}
	}
	got, err := p.Decide(env, in)
	if why := (skip{}); errors.As(err, &why) {
		return outcome{verdict: skipped, note: why.reason}
	}
	if err != nil {
		return outcome{verdict: failed, note: "decide: " + err.Error()}
	}
	again, err := p.Decide(env, in)
	if err != nil || !reflect.DeepEqual(got, again) {
		return outcome{verdict: failed, note: "decided twice, two answers", want: render(got), got: render(again)}
	}
	var first outcome
	for i, raw := range variants {
		o := p.judge(env, in, raw, got)
		if o.verdict == passed || o.verdict == listed {
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

// judge holds a decision against one recording.
func (p Plan[In, Want, Got]) judge(env *Env, in In, raw json.RawMessage, got Got) outcome {
	var want Want
	if err := json.Unmarshal(raw, &want); err != nil {
		return outcome{verdict: failed, note: "decode recording: " + err.Error()}
	}
	diff := p.Compare(in, want, got)
	if diff == "" {
		return outcome{verdict: passed}
	}
	bad := outcome{verdict: failed, note: diff, want: render(want), got: render(got)}
	if p.Differs == nil || !defect(raw) && (p.Unsound == nil || p.Unsound(env, in, want) == "") {
		return bad
	}
	deviation, err := p.Differs(env, in, want, got)
	switch {
	case err != nil:
		bad.note += "; not a listed difference: " + err.Error()
		return bad
	case !env.Deviations[deviation]:
		bad.note += fmt.Sprintf("; docs/deviations.md has no entry %q", deviation)
		return bad
	}
	return outcome{verdict: listed, note: deviation}
}

// defect reports whether a case shows a defect of the reference: it carries a
// quirk, or somewhere in it the reference panicked or hung.
func defect(raw json.RawMessage) bool {
	var h header
	if json.Unmarshal(raw, &h) == nil && len(h.Quirks) > 0 {
		return true
	}
	var v any
	return json.Unmarshal(raw, &v) == nil && broke(v)
}

// broke searches for an error of class panic or hang, or a panic's text.
func broke(v any) bool {
	switch v := v.(type) {
	case map[string]any:
		for key, e := range v {
			text, isText := e.(string)
			if isText && (key == "panic" && text != "" || key == "class" && (text == "panic" || text == "hang")) {
				return true
			}
			if !isText && broke(e) {
				return true
			}
		}
	case []any:
		for _, e := range v {
			if broke(e) {
				return true
			}
		}
	}
	return false
}

// render prints a value for people: as JSON where that works.
func render(v any) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return fmt.Sprintf("%+v", v)
	}
	return string(bytes.TrimSpace(b.Bytes()))
}

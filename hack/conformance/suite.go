package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"github.com/berthd/berth/hack/conformance/vector"
	"github.com/berthd/berth/managers/machine"
)

// Suite decides and judges the cases of one file.
type Suite struct {
	// Name is the file's name without its extension.
	Name string
	// run decides and judges a case.
	run func(env *Env, raw json.RawMessage) outcome
}

// Env is the data of a case outside of its line.
type Env struct {
	// Machines are the machines of topologies.json.
	Machines vector.Machines
	// Deviations are the ids of docs/deviations.md.
	Deviations map[string]bool
	// Reference is the version of the kubelet that has made the recordings.
	Reference version
	// listed is the entry of a difference in the set-up, which the recording proves. The answers
	// are then decided with the recorded set-up, and compared as in every other case.
	listed string
	// asKubelet decides as the kubelet does where berth's choice is better.
	asKubelet bool
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
	// Earlier is called for a recording of an older kubelet that no defect explains. It checks that the
	// recording follows from the older kubelet's rule, and the decision from the newest one's. It
	// returns the id of the entry in docs/deviations.md.
	Earlier func(env *Env, in In, want Want, got Got) (deviation string, wrong error)
	// Better is called for a decision that differs from the one as the kubelet (Env.asKubelet), which has been
	// judged by the recording. It checks that the decision keeps every invariant and is better. It
	// returns the id of the entry in docs/deviations.md. A suite without it decides each case as the
	// kubelet does.
	Better func(env *Env, in In, asKubelet, got Got) (deviation string, wrong error)
	// Unsound returns why an unmarked recording is a defect case: it breaks a rule for all
	// answers, such as giving something to two owners. It uses only the recording; empty means
	// sound.
	Unsound func(env *Env, in In, want Want) (why string)
	// Repair removes from the state before and after a step what an earlier defect has left in it.
	// It is called for the steps of a sequence, except the first.
	Repair func(in *In, want *Want)
	// Unread are the paths of known keys that neither half declares, because they are not
	// compared.
	Unread []string
}

// Define makes a suite of a plan.
func Define[In, Want, Got any](name string, p Plan[In, Want, Got]) Suite {
	known := p.keys()
	return Suite{name, func(env *Env, raw json.RawMessage) outcome { return p.run(env, known, raw, false) }}
}

// DefineSequence makes a suite of sequences of operations. Each step is a case of the plan, on the
// recorded state before it. So a step after a listed difference is judged like a step before it.
func DefineSequence[In, Want, Got any](name string, p Plan[In, Want, Got]) Suite {
	known := p.keys()
	return Suite{name, func(env *Env, raw json.RawMessage) outcome {
		steps, err := splitSequence(raw)
		if err != nil {
			return outcome{verdict: failed, note: "decode input: " + err.Error()}
		}
		var first outcome
		for i, step := range steps {
			switch o := p.run(env, known, step, i > 0); {
			case o.verdict == failed || o.verdict == skipped:
				o.note = fmt.Sprintf("step %d: %s", i, o.note)
				return o
			case first.verdict == passed:
				first = o
			}
		}
		return first
	}}
}

// splitSequence returns every step as a case of its own: with the keys that all steps share, its
// pod, and the states before and after it.
func splitSequence(raw json.RawMessage) (cases []json.RawMessage, err error) {
	var shared map[string]json.RawMessage
	var s struct {
		Pods    map[string]json.RawMessage   `json:"pods"`
		Initial json.RawMessage              `json:"initial"`
		Steps   []map[string]json.RawMessage `json:"steps"`
	}
	if err := errors.Join(json.Unmarshal(raw, &shared), json.Unmarshal(raw, &s)); err != nil {
		return nil, err
	}
	for _, key := range []string{"pods", "initial", "steps"} {
		delete(shared, key)
	}
	before := s.Initial
	for i, step := range s.Steps {
		var uid string
		if err := json.Unmarshal(step["pod"], &uid); err != nil || s.Pods[uid] == nil || step["state"] == nil {
			return nil, fmt.Errorf("step %d: no pod %s or no state, %w", i, step["pod"], err)
		}
		step["pod"], step["before"], step["after"] = s.Pods[uid], before, step["state"]
		before = step["state"]
		delete(step, "state")
		maps.Copy(step, shared)
		text, err := json.Marshal(step)
		if err != nil {
			return nil, err
		}
		cases = append(cases, text)
	}
	return cases, nil
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

// keys are those that the suite reads, and the known ones that it does not.
func (p Plan[In, Want, Got]) keys() *keys {
	return keysOf(p.Unread, reflect.TypeFor[header](), reflect.TypeFor[In](), reflect.TypeFor[Want]())
}

// run decides and judges a case. A case with an unknown key or quirk fails. repair is set if an
// earlier step may have shown a defect.
func (p Plan[In, Want, Got]) run(env *Env, known *keys, raw json.RawMessage, repair bool) outcome {
	fail := func(format string, args ...any) outcome {
		return outcome{verdict: failed, note: fmt.Sprintf(format, args...)}
	}
	var h header
	var in In
	var want Want
	at, err := known.unknown(raw)
	if at != "" {
		return fail("unknown key %q", at)
	}
	if err := errors.Join(err, json.Unmarshal(raw, &h), json.Unmarshal(raw, &in), json.Unmarshal(raw, &want)); err != nil {
		return fail("decode input: %v", err)
	}
	for _, q := range h.Quirks {
		if !slices.Contains(quirks, q) {
			return fail("unknown quirk %q, expected any of %q", q, quirks)
		}
	}
	if repair && p.Repair != nil {
		p.Repair(&in, &want)
	}
	o := p.judge(env.with(p.Better == nil), h.defect(raw), in, want)
	if p.Better == nil || o.verdict == passed {
		return o
	}
	asKubelet := p.judge(env.with(true), h.defect(raw), in, want)
	if asKubelet.verdict != passed && asKubelet.verdict != listed {
		return asKubelet
	}
	return p.better(env, in, asKubelet)
}

// with returns an Env for one decision.
func (e *Env) with(asKubelet bool) *Env {
	return &Env{Machines: e.Machines, Deviations: e.Deviations, Reference: e.Reference, asKubelet: asKubelet}
}

// better judges the decision of a case that has been judged with managers that decide as the kubelet does.
func (p Plan[In, Want, Got]) better(env *Env, in In, judged outcome) outcome {
	asKubelet, err := p.Decide(env.with(true), in)
	got, err2 := p.Decide(env.with(false), in)
	if err := errors.Join(err, err2); err != nil {
		return outcome{verdict: failed, note: "decide: " + err.Error()}
	}
	if reflect.DeepEqual(asKubelet, got) {
		return judged
	}
	entry, err := p.Better(env, in, asKubelet, got)
	if err == nil && !env.Deviations[entry] {
		err = fmt.Errorf("docs/deviations.md has no entry %q", entry)
	}
	switch {
	case err != nil:
		return outcome{verdict: failed, note: "not better than as the kubelet: " + err.Error(), want: render(asKubelet), got: render(got)}
	case judged.verdict == listed:
		return judged
	}
	return outcome{verdict: listed, note: entry}
}

// judge decides a case and compares the decision with the recording.
func (p Plan[In, Want, Got]) judge(env *Env, defect bool, in In, want Want) outcome {
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
	diff, entry := p.Compare(in, want, got), env.listed
	bad := func(why string) outcome {
		if p.Earlier != nil && env.Reference < newest {
			entry, err := p.Earlier(env, in, want, got)
			if err == nil && env.Deviations[entry] {
				return outcome{verdict: listed, note: entry}
			}
			why += fmt.Sprintf("; not as by an older kubelet (entry %q): %v", entry, err)
		}
		return outcome{verdict: failed, note: diff + why, want: render(want), got: render(got)}
	}
	switch {
	case diff == "" && entry == "":
		return outcome{verdict: passed}
	case diff == "":
	case p.Differs == nil || !defect && (p.Unsound == nil || p.Unsound(env, in, want) == ""):
		return bad("")
	default:
		if entry, err = p.Differs(env, in, want, got); err != nil {
			return bad("; not a listed difference: " + err.Error())
		}
	}
	if !env.Deviations[entry] {
		return bad(fmt.Sprintf("; docs/deviations.md has no entry %q", entry))
	}
	return outcome{verdict: listed, note: entry}
}

// defect reports whether a case shows a defect of the reference: it carries a
// quirk, or somewhere in it the reference panicked or hung.
func (h header) defect(raw json.RawMessage) bool {
	var v any
	return len(h.Quirks) > 0 || json.Unmarshal(raw, &v) == nil && broke(v)
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
	text, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprintf("%+v", v)
	}
	return string(text)
}

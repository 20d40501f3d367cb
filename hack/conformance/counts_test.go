package main

import (
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// count is what a file of the published recordings comes to.
type count struct{ passed, skipped, listed int }

// counts pins the files of the published recordings, by directory: a change that loses a case, or
// skips one that ran, has to change them.
var counts = map[string]map[string]count{
	"conformance": {
		"cgroup_conversions":       {passed: 1260},
		"cgroup_pods":              {passed: 2038, listed: 67},
		"checkpoints":              {passed: 150},
		"configuration":            {passed: 791},
		"cpu_allocate":             {passed: 2622, listed: 198},
		"cpu_hints":                {passed: 1514},
		"cpu_sequences":            {passed: 200, listed: 76},
		"device_allocate":          {passed: 1390, listed: 22},
		"device_hints":             {passed: 1511, listed: 5},
		"memory_allocate":          {passed: 2031, listed: 132},
		"memory_hints":             {passed: 1511, listed: 111},
		"memory_sequences":         {passed: 200},
		"pod_admit":                {passed: 350, listed: 70},
		"topology_merge":           {passed: 2463, listed: 17},
		"unstable/configuration":   {passed: 9},
		"unstable/device_allocate": {passed: 117, listed: 5},
		"unstable/topology_merge":  {passed: 1, listed: 1},
	},
	"conformance-1.37/cpu": {
		"cpu_allocate":  {passed: 2400, listed: 251},
		"cpu_hints":     {passed: 1440},
		"cpu_sequences": {passed: 191, listed: 111},
	},
	"conformance-1.37/rest": {
		"cgroup_conversions":       {passed: 1200},
		"cgroup_pods":              {passed: 2000},
		"checkpoints":              {passed: 37},
		"configuration":            {passed: 199},
		"device_allocate":          {passed: 835, listed: 16},
		"device_hints":             {passed: 900, listed: 1},
		"memory_allocate":          {passed: 1200, listed: 76},
		"memory_hints":             {passed: 900, listed: 75},
		"memory_sequences":         {passed: 120},
		"pod_admit":                {passed: 350, listed: 54},
		"topology_merge":           {passed: 599, listed: 7},
		"unstable/configuration":   {passed: 1},
		"unstable/device_allocate": {passed: 65, listed: 9},
		"unstable/topology_merge":  {passed: 1, listed: 1},
	},
}

func TestCounts(t *testing.T) {
	t.Parallel()
	for _, set := range slices.Sorted(maps.Keys(counts)) {
		t.Run(set, func(t *testing.T) {
			t.Parallel()
			dir, env := published(t, set)
			testCounts(t, dir, env, counts[set])
		})
	}
}

func testCounts(t *testing.T, dir string, env *Env, pinned map[string]count) {
	t.Helper()
	files, err := (&runner{dir: dir}).files("")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range slices.Sorted(maps.Keys(pinned)) {
		if !slices.ContainsFunc(files, func(f file) bool { return f.label == name }) {
			t.Errorf("%s is pinned and not among the recordings", name)
		}
	}
	for _, f := range files {
		name := f.label
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := &runner{dir: dir, env: env, deadline: caseDeadline, report: func(_, id string, o outcome) {
				if o.verdict == failed {
					t.Errorf("%s: %s\nexpected %s\ngot      %s", id, o.note, o.want, o.got)
				}
			}}
			res, err := r.run(f)
			if err != nil {
				t.Fatal(err)
			}
			if got := (count{res.Passed, res.Skips.total(), res.Listed.total()}); got != pinned[name] {
				t.Errorf("got %+v, pinned is %+v; skipped %v", got, pinned[name], res.Skips)
			}
		})
	}
}

// published is a folder of published recordings.
func published(t *testing.T, set string) (dir string, env *Env) {
	t.Helper()
	root, err := moduleRoot()
	if err != nil {
		t.Fatal(err)
	}
	dir = filepath.Join(root, "..", "shared", filepath.FromSlash(set))
	if _, err := os.Stat(dir); os.IsNotExist(err) {
		t.Skipf("no recordings: %v", err)
	}
	if env, err = loadEnv(root, dir); err != nil {
		t.Fatal(err)
	}
	return dir, env
}

// eachCase calls do for every case of a published file of kubelet 1.36.3.
func eachCase[In, Want any](t *testing.T, name string, do func(env *Env, in In, want Want)) {
	t.Helper()
	dir, env := published(t, "conformance")
	if err := eachRaw(filepath.Join(dir, name+".jsonl.gz"), func(line json.RawMessage) error {
		var in In
		var want Want
		if err := errors.Join(json.Unmarshal(line, &in), json.Unmarshal(line, &want)); err != nil {
			return err
		}
		do(env, in, want)
		return nil
	}); err != nil {
		t.Error(err)
	}
}

package main

import (
	"bytes"
	"compress/gzip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berthd/berth/hack/conformance/vector"
)

// toyIn and toyWant are the halves of a made-up case.
type toyIn struct {
	Do     string   `json:"do"`
	Pod    struct{} `json:"pod"`
	Before string   `json:"before"`
}

type toyWant struct {
	Answer string        `json:"answer"`
	Error  *vector.Error `json:"error"`
	After  string        `json:"after"`
}

// toys follow their input. A step of a sequence has the state before it as its answer.
func toys() Plan[toyIn, toyWant, string] {
	calls := 0
	return Plan[toyIn, toyWant, string]{
		Decide: func(env *Env, in toyIn) (string, error) {
			calls++
			switch in.Do {
			case "set up otherwise":
				env.listed = "D7"
			case "skip":
				return "", Skip("option %s not built yet", "x")
			case "panic":
				panic("boom")
			case "hang":
				select {}
			case "waver":
				return strings.Repeat("x", calls), nil
			case "state":
				return in.Before, nil
			}
			return in.Do, nil
		},
		Compare: func(_ toyIn, want toyWant, got string) string {
			if want.Answer != got {
				return "answer"
			}
			return ""
		},
		Differs: func(_ *Env, _ toyIn, _ toyWant, got string) (string, error) { return got, nil },
		Unsound: func(_ *Env, _ toyIn, want toyWant) string {
			if want.Answer == "1 = 2" {
				return "it is not"
			}
			return ""
		},
		Repair: func(in *toyIn, _ *toyWant) { in.Before = strings.TrimSuffix(in.Before, "!") },
	}
}

func TestVerdicts(t *testing.T) {
	t.Parallel()
	env := &Env{Deviations: deviations("| Id | x |\n| --- | --- |\n| D7 | the kubelet |\n")}
	for _, row := range []struct {
		name, line string
		unstable   bool
		want       verdict
		note       string
	}{
		{"equal", `{"do":"a","answer":"a"}`, false, passed, ""},
		{"unequal", `{"do":"a","answer":"b"}`, false, failed, "answer"},
		{"listed without a defect", `{"do":"D7","answer":"b"}`, false, failed, "answer"},
		{"listed", `{"do":"D7","answer":"b","quirks":["slice_aliasing"]}`, false, listed, "D7"},
		{"listed, reference panicked", `{"do":"D7","answer":"b","error":{"class":"panic"}}`, false, listed, "D7"},
		{"listed, unsound by itself", `{"do":"D7","answer":"1 = 2"}`, false, listed, "D7"},
		{"not in the list", `{"do":"D8","answer":"b","quirks":["slice_aliasing"]}`, false, failed,
			`answer; docs/deviations.md has no entry "D8"`},
		{"set up otherwise", `{"do":"set up otherwise","answer":"set up otherwise"}`, false, listed, "D7"},
		{"set up otherwise, and unequal", `{"do":"set up otherwise","answer":"b"}`, false, failed, "answer"},
		{"skip", `{"do":"skip","answer":"b"}`, false, skipped, "option x not built yet"},
		{"panic", `{"do":"panic"}`, false, failed, "panic: boom"},
		{"hang", `{"do":"hang"}`, false, failed, "not decided within 50ms"},
		{"two answers", `{"do":"waver","answer":"x"}`, false, failed, "decided twice, two answers"},
		{"bad input", `{"do":1}`, false, failed, "decode input"},
		{"unknown key", `{"do":"a","answer":"a","mood":"x"}`, false, failed, `unknown key "mood"`},
		{"unknown quirk", `{"do":"a","answer":"a","quirks":["odd"]}`, false, failed, `unknown quirk "odd"`},
		{"second variant", `{"variants":[{"do":"a","answer":"b"},{"do":"a","answer":"a"}]}`, true, passed, ""},
		{"no variant", `{"variants":[{"do":"a","answer":"b"},{"do":"a","answer":"c"}]}`, true, failed, "none of 2 variants"},
		{"sequence", sequence(`{"do":"state","answer":"1","pod":"p","state":"2"}`, `{"do":"state","answer":"2","pod":"p","state":"3"}`),
			false, passed, ""},
		{"repaired", sequence(`{"do":"a","answer":"a","pod":"p","state":"2!"}`, `{"do":"state","answer":"2","pod":"p","state":"3"}`),
			false, passed, ""},
		{"listed step", sequence(`{"do":"D7","answer":"1 = 2","pod":"p","state":"2"}`, `{"do":"a","answer":"a","pod":"p","state":"3"}`),
			false, listed, "D7"},
		{"behind a listed step", sequence(`{"do":"D7","answer":"1 = 2","pod":"p","state":"2"}`,
			`{"do":"a","answer":"b","pod":"p","state":"3"}`), false, failed, "step 1: answer"},
		{"marked, but not in this step", sequence(`{"do":"a","answer":"a","pod":"p","state":"2","error":{"class":"panic"}}`,
			`{"do":"D7","answer":"b","pod":"p","state":"3"}`), false, failed, "step 1: answer"},
		{"step without a pod", sequence(`{"do":"a","answer":"a","pod":"q","state":"2"}`), false, failed, "decode input: step 0"},
		{"step with an unknown key", sequence(`{"do":"a","answer":"a","pod":"p","state":"2","mood":"x"}`), false, failed,
			`step 0: unknown key "mood"`},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			variants, err := split([]byte(row.line), row.unstable)
			if err != nil {
				t.Fatal(err)
			}
			r := &runner{env: env, deadline: time.Minute}
			if row.name == "hang" {
				r.deadline = 50 * time.Millisecond
			}
			suite := Define("toys", toys())
			if strings.Contains(row.line, "steps") {
				suite = DefineSequence("toys", toys())
			}
			got := r.guarded(suite, variants)
			if got.verdict != row.want || !strings.HasPrefix(got.note, row.note) {
				t.Errorf("got %d %q, want %d %q", got.verdict, got.note, row.want, row.note)
			}
		})
	}
}

// sequence is a line with steps.
func sequence(steps ...string) string {
	return `{"pods":{"p":{}},"initial":"1","steps":[` + strings.Join(steps, ",") + `]}`
}

func TestFolder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, text string) {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(name, ".gz") {
			var b bytes.Buffer
			w := gzip.NewWriter(&b)
			if _, err := w.Write([]byte(text)); err != nil {
				t.Fatal(err)
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			text = b.String()
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const nothing = `{"id":"a","numa_nodes":[0],"distances":null,"policy":"best-effort","providers":[],` +
		`"result":{"hint":{"numa":[0],"preferred":true},"admit":true},"error":null}`
	write("topology_merge.jsonl", nothing+"\n\n"+strings.ReplaceAll(nothing, `"admit":true`, `"admit":false`))
	write("juggling.jsonl.gz", "{}\n{}\n")
	write("unstable/topology_merge.jsonl.gz", `{"variants":[`+nothing+`],"seen":[1]}`)
	write("README.md", "not a suite")

	var out strings.Builder
	ok, err := flags{dir: dir, suite: ""}.run(&out)
	if err != nil || ok {
		t.Errorf("got %t, %v; want a failure", ok, err)
	}
	for _, want := range []string{
		"FAIL topology_merge a: result\n  expected {",
		"FAIL juggling : no suite of this name",
		"\n2 passed, 3 failed, 0 skipped\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("output has no %q:\n%s", want, out.String())
		}
	}
	for _, row := range []struct {
		flags   flags
		ok, err bool
	}{
		{flags{dir: dir, suite: "juggling"}, false, false},
		{flags{dir: dir, suite: "absent"}, false, true},
		{flags{dir: filepath.Join(dir, "absent")}, false, true},
		{flags{dir: t.TempDir()}, false, true},
	} {
		out.Reset()
		ok, err := row.flags.run(&out)
		if ok != row.ok || (err != nil) != row.err {
			t.Errorf("%+v: %t, %v", row.flags, ok, err)
		}
	}
}

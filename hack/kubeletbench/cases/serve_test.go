package cases

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"
)

// TestServe: a case is made ready once for the requests that follow each other, each Do is undone, and what is set aside is reported.
func TestServe(t *testing.T) {
	t.Parallel()
	name := All()[0].Name()
	var in, out bytes.Buffer
	for _, r := range []Request{{name, time.Millisecond}, {name, time.Millisecond}, {"none", time.Millisecond}} {
		if err := json.NewEncoder(&in).Encode(r); err != nil {
			t.Fatal(err)
		}
	}
	built, done, undone := 0, 0, 0
	var aside time.Duration
	build := func(Case) (Op, error) {
		built++
		return Op{
			Do:     func() error { done++; aside += time.Hour; return nil },
			Result: func() Result { return Result{CPUs: "3"} },
			Undo:   func() error { undone++; return nil },
			Aside:  &aside,
		}, nil
	}
	if err := Serve(&in, &out, build); err != nil {
		t.Fatal(err)
	}
	if built != 1 || done == 0 || done != undone {
		t.Errorf("made ready %d times, done %d times, undone %d times", built, done, undone)
	}
	samples := json.NewDecoder(&out)
	for i := range 3 {
		var s Sample
		if err := samples.Decode(&s); err != nil {
			t.Fatal(err)
		}
		if i == 2 {
			if !strings.Contains(s.Error, `"none"`) {
				t.Errorf("an unknown case: %+v", s)
			}
		} else if s.Error != "" || s.Result.CPUs != "3" || s.NS == 0 || s.AsideNS != float64(time.Hour) {
			t.Errorf("sample %d: %+v", i, s)
		}
	}
}

// TestNames: a name is that of one case.
func TestNames(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, c := range All() {
		if seen[c.Name()] {
			t.Errorf("%s is there twice", c.Name())
		}
		seen[c.Name()] = true
	}
}

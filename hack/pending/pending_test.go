package pending

import "testing"

// What passes fails, what fails passes, and so does what stops at once.
func TestFails(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		entry  Entry
		body   func(t testing.TB)
		failed bool
	}{
		"passes":      {CPUOffline, func(testing.TB) {}, true},
		"not listed":  {"nothing", func(t testing.TB) { t.Error("wrong") }, true},
		"Errorf":      {CPUOffline, func(t testing.TB) { t.Errorf("%d", 1) }, false},
		"Fatal":       {CPUOffline, func(t testing.TB) { t.Fatal("wrong"); panic("it goes on") }, false},
		"Fatalf":      {CPUOffline, func(t testing.TB) { t.Fatalf("%d", 1); panic("it goes on") }, false},
		"FailNow":     {CPUOffline, func(t testing.TB) { t.FailNow(); panic("it goes on") }, false},
		"in a helper": {CPUOffline, func(t testing.TB) { t.Helper(); t.Fail() }, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			outer := &recorder{TB: t}
			done := make(chan struct{})
			go func() {
				defer close(done)
				Fails(outer, row.entry, row.body)
			}()
			<-done
			if outer.Failed() != row.failed {
				t.Errorf("failed: %t, want %t: %q", outer.Failed(), row.failed, outer.said)
			}
		})
	}
}

// Each entry says why it is there.
func TestReasons(t *testing.T) {
	t.Parallel()
	for e, reason := range reasons {
		if e == "" || len(reason) < 40 {
			t.Errorf("%q: %q", e, reason)
		}
	}
}

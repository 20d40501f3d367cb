// Package pending lists what is known to be wrong and not mended yet, each entry with
// tests that fail because of it.
//
// A test of what is right, and not there yet, runs its body with Fails. It fails as
// soon as the body passes: then the defect is mended, the entry goes from the list, and
// the body becomes an ordinary test.
package pending

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
)

// Entry names what is wrong.
type Entry string

// CPUOffline is what happens when a CPU goes off line while berthd runs.
const CPUOffline Entry = "a CPU goes off line while berthd runs"

// reasons says of each entry what is wrong, and why it is not mended.
var reasons = map[Entry]string{
	CPUOffline: "the kernel lets the exclusive holder of the CPU run on all others, also on another's exclusive ones, " +
		"and berth neither says so nor stops giving the CPU out; passes get the CPUs that are on line " +
		"together with the one tracker of what runs where, which replaces the loop that would have to know them",
}

// Fails runs a test that has to fail because of an entry of the list.
func Fails(t testing.TB, e Entry, body func(t testing.TB)) {
	t.Helper()
	reason, ok := reasons[e]
	if !ok {
		t.Fatalf("%q is not on the list of what is wrong (hack/pending)", e)
	}
	r := &recorder{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		body(r)
	}()
	<-done
	switch {
	case t.Skipped():
		t.SkipNow()
	case !r.Failed():
		t.Errorf("this passes: %s: mended? Take it off the list (hack/pending)", e)
	default:
		t.Logf("fails as expected, because %s:\n%s", reason, strings.Join(r.said, "\n"))
	}
}

// recorder is a test whose failure counts for nobody.
type recorder struct {
	testing.TB
	mu     sync.Mutex
	failed bool
	said   []string
}

func (r *recorder) fail(text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed = true
	r.said = append(r.said, text)
}

func (r *recorder) Failed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed
}

func (r *recorder) Fail() { r.fail("failed") }

func (r *recorder) FailNow() {
	r.Fail()
	runtime.Goexit()
}

func (r *recorder) Error(args ...any) { r.fail(fmt.Sprint(args...)) }

func (r *recorder) Errorf(format string, args ...any) { r.fail(fmt.Sprintf(format, args...)) }

func (r *recorder) Fatal(args ...any) {
	r.fail(fmt.Sprint(args...))
	runtime.Goexit()
}

func (r *recorder) Fatalf(format string, args ...any) {
	r.fail(fmt.Sprintf(format, args...))
	runtime.Goexit()
}

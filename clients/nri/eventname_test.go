package main

import (
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
)

// TestEventOfLongNames: the API server takes names of nodes and pods of 253 characters, and no longer name of an event.
func TestEventOfLongNames(t *testing.T) {
	t.Parallel()
	long := strings.Repeat(strings.Repeat("n", 63)+".", 3) + strings.Repeat("n", 61)
	for _, object := range []string{
		long,
		strings.Repeat("n--n.", 50) + "n-n", // a cut name may end in separators
		"n1",
	} {
		if bad := validation.IsDNS1123Subdomain(object); len(bad) > 0 {
			t.Fatalf("%q: %v", object, bad)
		}
		var names []string
		for i := range 16 { // cuts at each place
			names = append(names, eventName(object, time.Unix(0, 1<<(4*i))))
		}
		for i, name := range names {
			if bad := validation.IsDNS1123Subdomain(name); len(bad) > 0 || slices.Contains(names[:i], name) ||
				!strings.HasPrefix(name, object[:2]) {
				t.Errorf("event %q of %q: %v", name, object, bad)
			}
		}
	}
}

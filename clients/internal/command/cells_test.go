package command

import (
	"fmt"
	"testing"
)

// TestSome: a cell of names is not longer with 256 pods than with three.
func TestSome(t *testing.T) {
	t.Parallel()
	for n, want := range map[int]string{0: "", 1: "p-0", 3: "p-0,p-1,p-2", 4: "p-0,p-1,p-2 and 1 more", 256: "p-0,p-1,p-2 and 253 more"} {
		var names []string
		for i := range n {
			names = append(names, fmt.Sprint("p-", i))
		}
		if got := Some(names); got != want {
			t.Errorf("%d names: %q, want %q", n, got, want)
		}
	}
}

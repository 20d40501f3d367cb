package main

import (
	"strings"
	"testing"
)

func TestRatios(t *testing.T) {
	t.Parallel()
	var now, then results
	for text, to := range map[string]*results{
		"BenchmarkNUMA/union/8/berth  	 100	 30 ns/op	 10 B/op	 3 allocs/op":     &now,
		"BenchmarkNUMA/new/8/berth  	 100	 30 ns/op	 10 B/op	 3 allocs/op":       &now,
		"BenchmarkNUMA/union/8/berth-2  	 100	 20 ns/op	 10 B/op	 4 allocs/op":   &then,
		"BenchmarkNUMA/removed/8/berth-2  	 100	 20 ns/op	 10 B/op	 4 allocs/op": &then,
	} {
		to.read(text)
	}
	var b strings.Builder
	printRatios(&b, &now, &then, "abc")
	want := "Benchmark abc now times allocations now NUMA, union of 8, berth 20.0ns 30.0ns x1.50 4 3"
	if got := strings.Join(strings.Fields(b.String()), " "); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

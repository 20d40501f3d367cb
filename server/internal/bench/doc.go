// Package bench is the benchmark card: what berth promises to be fast, measured
// next to what it replaces. It holds test files only and nothing imports it.
//
// Run it with
//
//	make bench
//
// which prints the medians of five runs as tables, with what berth promises and
// what the kubelet took (hack/bench); or, for one subject and with enough
// runs to compare two commits by benchstat,
//
//	go test ./server/internal/bench -run '^$' -bench CPUSet -benchmem -count 10
//
// A benchmark is named Subject/operation/size/implementation, so that berth and
// its reference stand on neighbouring lines. Before anything is measured, both
// are asked the same question and have to give the same answer; that part also
// runs as an ordinary test.
package bench

package main

import (
	"strings"
	"testing"
)

func TestCard(t *testing.T) {
	t.Parallel()
	var r results
	for text := range strings.Lines(`goos: linux
goos: linux
BenchmarkCPU/hints,_half,_request_4/64/berth-2   	 100	 900 ns/op	 10 B/op	 3 allocs/op
BenchmarkCPU/hints,_half,_request_4/512/berth-2  	 100	 99999 ns/op	 7000 cpu-ns/op	 10 B/op	 6 allocs/op
BenchmarkCPU/hints,_half,_request_4/512/berth-2  	 100	 1800 ns/op	 10 B/op	 5 allocs/op
BenchmarkCPU/hints,_half,_request_4/512/berth-2  	 100	 2250.5 ns/op	 10 B/op	 7 allocs/op
BenchmarkCPU/packed,_half,_request_16/512/berth  	 100	 2000000 ns/op	 10 B/op	 1 allocs/op
BenchmarkNUMA/union/8/berth  	 1000000	 0.5 ns/op
BenchmarkAdmitOverTheSocket/8_CPUs_and_4_GiB/512/berth-2 420 853045 ns/op 108251 call-ns -46995 rest-ns 1.874 times 312 B/op 3696 allocs/op
BenchmarkPlacement/leave,_kernel/500/berth-2 20 67634277 ns/op 26740000 bare-ns 21390000 beyond-ns 10 B/op 1 allocs/op
BenchmarkPlacement/event,_cri/10/berth-2  	 20	 800000 ns/op	 10 B/op	 1 allocs/op
BenchmarkPlacement/event,_cri/500/berth-2  	 20	 900000 ns/op	 10 B/op	 7 allocs/op
BenchmarkPlacement/rest,_cri/500/berth-2  	 20	 800000 ns/op	 500 observe-ns	 1.25 times	 10 B/op	 1 allocs/op
PASS
`) {
		r.read(strings.TrimSuffix(text, "\n"))
	}
	var b strings.Builder
	r.print(&b)
	for _, want := range []string{
		"goos: linux\n\nCPU: ",
		"hints, half, request 4    berth  900ns (3)  2.25µs (7)  x2.5 for x8",
		"packed, half, request 16  berth  -          2.00ms (1)",
		"union      berth  0.50ns (0)",
		"CPU, hints, half, request 4 of 512           2.25µs                 5µs        7            20        kept",
		"CPU, packed, half, request 16 of 512         2.00ms                 20µs       1            -         MISSED",
		"AdmitOverTheSocket, 8 CPUs and 4 GiB of 512: call 108µs, rest -47.0µs, 1.87 times\n",
		"AdmitOverTheSocket, 8 CPUs and 4 GiB of 512  1.87 times             1.5 times  3696         -         MISSED",
		"Placement, leave, kernel of 500              beyond 21.4ms          20ms       1            -         MISSED",
		"Placement, event, cri of 500                 1.12 times that of 10  1.5 times  7            -         kept",
		"Placement, rest, cri of 500                  1.25 times             1.3 times  1            -         kept",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q is missing in\n%s", want, b.String())
		}
	}
}

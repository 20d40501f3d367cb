package driver

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// BenchmarkPrepare is a claim from the kubelet's call to the CDI file, with berthd in the same process, on a machine of
// 16 CPUs. median-ns is the median of all claims. hack/bench compares it with its limit.
func BenchmarkPrepare(b *testing.B) {
	b.Run("4 CPUs and 2 GiB/16/berth", benchmarkPrepare)
}

func benchmarkPrepare(b *testing.B) {
	p := newPlace(b, "")
	p.prepared(allocated("first", 0, 1, "1Gi"))
	var all []time.Duration
	for i := 0; b.Loop(); i++ {
		uid := fmt.Sprint("claim-", i)
		began := time.Now()
		if r := p.prepared(allocated(uid, 1, 4, "2Gi")); r.Err != nil {
			b.Fatal(r.Err)
		}
		all = append(all, time.Since(began))
		b.StopTimer()
		p.unprepare(uid)
		b.StartTimer()
	}
	slices.Sort(all)
	b.ReportMetric(float64(all[len(all)/2]), "median-ns")
}

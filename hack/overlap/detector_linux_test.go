package overlap_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/berthd/berth/hack/overlap"
	"github.com/berthd/berth/hack/testing/nodetest"
	"github.com/berthd/berth/managers/cpuset"
)

var programs = nodetest.NewPrograms(map[string]string{"probe": "hack/probe"})

func TestMain(m *testing.M) {
	code := m.Run()
	programs.Remove()
	os.Exit(code)
}

// TestPlanted finds planted overlaps by both methods, and nothing else.
func TestPlanted(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skipf("cgroups need root: the effective user is %d", os.Geteuid())
	}
	dir, err := programs.Dir()
	if err != nil {
		t.Fatal(err)
	}
	for _, method := range []overlap.Method{overlap.Trace, overlap.Sample} {
		t.Run(string(method), func(t *testing.T) {
			t.Parallel()
			d, err := overlap.Start(overlap.Config{Container: func(string) string { return "" }, CPUs: cpuset.Of(0), Method: method})
			if err != nil && method == overlap.Trace {
				t.Skipf("tracefs is not for us here: %v", err)
			}
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			for range 10 {
				if err := d.Plant(ctx, filepath.Join(dir, "probe"), 0); err != nil {
					t.Error(err)
				}
			}
			r, err := d.Stop()
			if err != nil {
				t.Fatal(err)
			}
			t.Log(r)
			if r.Method != method || r.Planted != 10 || r.Holders != 0 || len(r.Overlaps) != 0 {
				t.Errorf("%+v", r)
			}
			// A loaded machine may keep a sampler from its CPU for longer than an overlap.
			if method == overlap.Trace && r.Lost == 0 && r.Valid() != nil {
				t.Error(r.Valid())
			}
			if r.P50 <= 0 || r.P99 < r.P50 {
				t.Errorf("period p50 %v, p99 %v", r.P50, r.P99)
			}
		})
	}
}

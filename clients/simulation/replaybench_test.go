package simulation_test

import (
	"context"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	"github.com/berthd/berth/api/bundle"
	"github.com/berthd/berth/clients/simulation"
	"github.com/berthd/berth/managers/topology"
)

// BenchmarkReplay10000 opens a bundle with 10,000 entries and replays it: pods start and end on a
// machine of 512 CPUs that is nearly full. The figures are in docs/incident.md.
func BenchmarkReplay10000(b *testing.B) {
	n := startNode(b, "2s4n32c2t", 10_000)
	random := rand.New(rand.NewPCG(1, 2))
	for range 10_000 {
		if len(n.uids) >= 22 {
			at := random.IntN(len(n.uids))
			_, err := n.client.Admission().RemovePod(context.Background(), &admissionv1.RemovePodRequest{PodUid: n.uids[at]})
			if err != nil {
				b.Fatal(err)
			}
			n.uids = append(n.uids[:at], n.uids[at+1:]...)
			continue
		}
		n.admit(1+random.IntN(40), 1+random.IntN(30), 0)
	}
	recorded, err := bundle.Collect(n.client.Bundle(b.Context()))
	if err != nil {
		b.Fatal(err)
	}
	n.halt()
	path := filepath.Join(b.TempDir(), "bundle.tar.gz")
	if recorded.About.Format = bundle.Format; recorded.WriteFile(path) != nil {
		b.Fatal("not written")
	}
	if keep := os.Getenv("BERTH_BUNDLE"); keep != "" { // for figures of the whole program
		if err := recorded.WriteFile(keep); err != nil {
			b.Fatal(err)
		}
	}
	for name, policy := range map[string]topology.Policy{"recorded": n.config.Topology.Policy, "best-effort": topology.BestEffort} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				opened, err := bundle.ReadFile(path)
				if err != nil {
					b.Fatal(err)
				}
				scene := simulation.Scene{Machine: opened.Machine, Config: *opened.Config}
				scene.Config.Topology.Policy = policy
				out := replayed(b, opened, scene)
				b.ReportMetric(float64(out.GetVerdicts()), "verdicts")
				b.ReportMetric(float64(out.GetDiffer()), "differ")
			}
		})
	}
}

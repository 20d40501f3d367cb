package bench

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/hack/testing/script"
	"github.com/berthd/berth/server/internal/app"
)

// hangs runs a berthd with a device plugin that hangs in Allocate, for a pod whose
// agent tries again and again.
func hangs(t testing.TB) *running {
	t.Helper()
	var dir string
	berthd := runBerthd(t, func(c *config.Config, _ *app.Environment) {
		dir = *c.DevicePluginDir
		c.Providers.AllocateTimeout.Duration = time.Hour
	})
	const gpu = "example.com/gpu"
	p := script.New(script.Config{Resource: gpu, Dir: dir, Devices: []script.Device{{ID: "g0"}}})
	if err := p.Serve(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Stop(); p.Wait() })
	p.Behave(script.Allocate, script.Hang)
	if err := p.Register(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			if err := berthd.admitPod(ctx, withResource("hung", gpu), false); err == nil {
				t.Error("the plugin does not hang")
				return
			}
		}
	}()
	t.Cleanup(func() { stop(); <-ended })
	if _, err := p.Await(ctx, script.Allocate, 1); err != nil {
		t.Fatal(err)
	}
	return berthd
}

func withResource(uid, resource string) *typesv1.Pod {
	p := wirePod(uid)
	r := map[string]string{"cpu": "100m", resource: "1"}
	p.Spec.Containers[0].Resources = &typesv1.ResourceRequirements{Requests: r, Limits: r}
	return p
}

// BenchmarkHungPlugin admits and removes a pod without devices beside a plugin that hangs,
// and the same at another berthd without the plugin, in turns. ns/op is the median of
// an admission beside the plugin; the other metrics are the median without, and how
// many times that one is of this.
func BenchmarkHungPlugin(b *testing.B) {
	b.Run("Admit without devices/512/berth", func(b *testing.B) {
		var beside, without []time.Duration
		admit := func(berthd *running, list *[]time.Duration) func() {
			return func() {
				start := time.Now()
				if err := berthd.admit(b.Context(), "a", false); err != nil {
					b.Fatal(err)
				}
				*list = append(*list, time.Since(start))
				if err := berthd.remove(b.Context(), "a"); err != nil {
					b.Fatal(err)
				}
			}
		}
		round, order := []func(){admit(hangs(b), &beside), admit(runBerthd(b), &without)}, rand.New(rand.NewPCG(1, 2))
		play := func() {
			order.Shuffle(len(round), func(i, j int) { round[i], round[j] = round[j], round[i] })
			for _, do := range round {
				do()
			}
		}
		for b.Loop() {
			play()
		}
		for len(beside) < leastRounds {
			play()
		}
		b.ReportMetric(float64(median(beside)), "ns/op")
		b.ReportMetric(float64(median(without)), "without-ns")
		b.ReportMetric(float64(median(beside))/float64(median(without)), "times")
	})
}

// TestHungPlugin keeps the benchmark honest: the plugin hangs while pods come and go.
func TestHungPlugin(t *testing.T) {
	t.Parallel()
	berthd := hangs(t)
	for range 3 {
		if err := berthd.admit(t.Context(), "a", false); err != nil {
			t.Fatal(err)
		}
		if err := berthd.remove(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
	}
}

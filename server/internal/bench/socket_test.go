package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/clients/berth"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/history"
	"github.com/berthd/berth/managers/ledger/journal"
	"github.com/berthd/berth/managers/topology"
	"github.com/berthd/berth/server/internal/app"
	"github.com/berthd/berth/server/internal/metrics"
	"github.com/berthd/berth/server/internal/store"
	"github.com/berthd/berth/server/internal/system/real"
)

// running is a whole berthd in this process, on a made-up machine and a tree of
// cgroups in memory, with its ledger on disk and its claim records in memory.
type running struct {
	*berth.Client
	config    config.Config
	ledger    history.Ledger
	admission admissionv1.AdmissionServiceClient
	health    healthpb.HealthClient
}

func runBerthd(t testing.TB, changes ...func(*config.Config, *app.Environment)) *running {
	t.Helper()
	dir, err := os.MkdirTemp("", "bench") // a test's own may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	run, err := runDir()
	if err != nil {
		t.Fatal(err)
	}
	c := config.Default()
	// The ledger lies by itself, as it does by default: the folder around the plugin
	// registry is watched, and every write of a file in it wakes the watcher.
	c.RootDir, c.Listen, c.StateDir = dir, run+"/b.sock", dir+"/state"
	c.DevicePluginDir, c.PodResourcesDir, c.PluginRegistryDir = new(dir+"/d"), new(dir+"/p"), new(dir+"/r")
	c.Machine, c.Cgroups.Tree = "2s4n32c2t", config.TreeMemory
	c.CPU.Policy, c.Topology.Policy, c.Reserved.CPUs = "static", topology.Restricted, cpuset.Of(0)
	env := app.Environment{Log: slog.New(slog.DiscardHandler), Now: time.Now, System: real.System(), Metrics: metrics.New()}
	for _, change := range changes {
		change(&c, &env)
	}
	a, err := app.Build(t.Context(), c, env)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- a.Run(ctx, func() { close(ready) }) }()
	select {
	case <-ready:
	case err := <-ended:
		t.Fatal(err)
	}
	client, err := berth.Dial(t.Context(), c.Listen, berth.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = client.Close()
		stop()
		<-ended
		_ = errors.Join(os.RemoveAll(dir), os.RemoveAll(run))
	})
	return &running{client, c, a.Ledger, client.Admission(), healthpb.NewHealthClient(client.Conn())}
}

// wirePod requests 8 CPUs and 4 GiB.
func wirePod(uid string) *typesv1.Pod {
	r := map[string]string{"cpu": "8", "memory": "4Gi"}
	return &typesv1.Pod{
		Metadata: &typesv1.PodMetadata{Name: uid, Namespace: "default", Uid: uid},
		Spec: &typesv1.PodSpec{Containers: []*typesv1.Container{{
			Name: "main", Resources: &typesv1.ResourceRequirements{Requests: r, Limits: r},
		}}},
	}
}

// admit admits a pod of 8 CPUs and 4 GiB, or tries to.
func (r *running) admit(ctx context.Context, uid string, dryRun bool) error {
	return r.admitPod(ctx, wirePod(uid), dryRun)
}

func (r *running) admitPod(ctx context.Context, pod *typesv1.Pod, dryRun bool) error {
	v, err := r.admission.Admit(ctx, &admissionv1.AdmitRequest{Subject: &admissionv1.AdmitRequest_Pod{Pod: pod}, DryRun: dryRun})
	if err == nil && v.GetVerdict() != admissionv1.Verdict_VERDICT_ADMITTED {
		err = fmt.Errorf("%s: %s", pod.GetMetadata().GetUid(), v.GetMessage())
	}
	return err
}

func (r *running) remove(ctx context.Context, uid string) error {
	_, err := r.admission.RemovePod(ctx, &admissionv1.RemovePodRequest{PodUid: uid})
	return err
}

// timed is a journal that reports how long its last commit took, and what it wrote.
type timed struct {
	*store.Store
	took  time.Duration
	batch []journal.Entry
}

func (j *timed) Commit(ctx context.Context, gen uint64, batch []journal.Entry) error {
	start := time.Now()
	err := j.Store.Commit(ctx, gen, batch)
	j.took, j.batch = time.Since(start), batch
	return err
}

// twin is another ledger on the same disk, to which the same pod comes and from which it
// goes, with the same keys and bytes: what a commit of an admission's size takes by itself.
type twin struct {
	journal *timed
	ledger  *ledger.Ledger
	pod     ledger.Pod
	trace   ledger.Trace
	call    *history.Entry
	request history.Request // of the call
}

// newTwin has berthd admit a pod, and remove it, to commit what that committed.
func newTwin(t testing.TB, berthd *running, pod *typesv1.Pod) *twin {
	t.Helper()
	if err := berthd.admitPod(t.Context(), pod, false); err != nil {
		t.Fatal(err)
	}
	uid, view := pod.GetMetadata().GetUid(), berthd.ledger.View()
	record, _ := view.Pod(uid)
	trace, _ := view.TraceOfPod(uid)
	if err := berthd.remove(t.Context(), uid); err != nil {
		t.Fatal(err)
	}
	s, err := store.Open(filepath.Join(t.TempDir(), "twin.db"), store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	w := &twin{journal: &timed{Store: s}, pod: *record, trace: *trace}
	err = berthd.ledger.Entries(t.Context(), math.MaxUint64, func(e *history.Entry, err error) bool {
		if err == nil && e.Verdict == "admitted" {
			w.call = e
		}
		return w.call == nil
	})
	if err != nil || w.call == nil {
		t.Fatalf("the admission is not in the history: %v", err)
	}
	if err := json.Unmarshal(w.call.Request, &w.request); err != nil {
		t.Fatal(err)
	}
	w.ledger, _, err = journal.Open(t.Context(), journal.Options{
		Journal: w.journal, Rules: view.Rules(),
		History: history.New(history.Limits{Entries: berthd.config.History.Entries, Bytes: berthd.config.History.Bytes}, time.Now),
	})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// put commits the pod with its trace and returns how long that took the journal.
func (w *twin) put(ctx context.Context) (time.Duration, error) {
	record, trace := w.pod, w.trace
	call := &history.Call{Name: w.call.Call, Time: time.Now(), Caller: w.call.Caller, Request: &w.request}
	for _, s := range w.call.Steps {
		call.Step(s.Step, s.Provider, s.Took)
	}
	ctx = history.WithCall(ctx, call)
	record.Trace = &trace
	_, err := w.ledger.Update(ctx, func(d *ledger.Draft) error { d.PutPod(&record); return nil })
	return w.journal.took, err
}

func (w *twin) remove(ctx context.Context) error {
	_, err := w.ledger.Update(ctx, func(d *ledger.Draft) error { d.RemovePod(w.pod.UID()); return nil })
	return err
}

// leastRounds is how many rounds there are at least, however short the run: medians of
// a hundred swing by a tenth.
const leastRounds = 1000

// BenchmarkAdmitOverTheSocket admits a pod without devices, with one durable,
// synced commit, and beside it makes an empty call over the same socket, a dry run,
// and a commit of as much to another ledger on the same disk: a slow moment of the
// disk or of the machine slows all of them. They come in another order each time:
// a call finds the processor asleep after a commit and awake after a call, and a
// disk that has just synced is not the one that it was, so each must find them as
// often one way as the others do. ns/op is the median of an admission; the other
// metrics are the medians of the rest, and how many times the sum of a call and a
// commit an admission takes. A dry run is the same without place and commit. What
// berthd does after a commit falls into what comes next.
func BenchmarkAdmitOverTheSocket(b *testing.B) {
	b.Run("8 CPUs and 4 GiB/512/berth", func(b *testing.B) {
		berthd := runBerthd(b)
		other := newTwin(b, berthd, wirePod("a"))
		var admits, dries, calls, commits []time.Duration
		clock := func(list *[]time.Duration, do func() error) {
			start := time.Now()
			if err := do(); err != nil {
				b.Fatal(err)
			}
			*list = append(*list, time.Since(start))
		}
		admit := func() { clock(&admits, func() error { return berthd.admit(b.Context(), "a", false) }) }
		commit := func() {
			took, err := other.put(b.Context())
			if err != nil {
				b.Fatal(err)
			}
			commits = append(commits, took)
		}
		dry := func() { clock(&dries, func() error { return berthd.admit(b.Context(), "b", true) }) }
		call := func() {
			clock(&calls, func() error {
				_, err := berthd.health.Check(b.Context(), &healthpb.HealthCheckRequest{})
				return err
			})
		}
		round, order := []func(){admit, commit, dry, call}, rand.New(rand.NewPCG(1, 2))
		ends := []func() error{
			func() error { return berthd.remove(b.Context(), "a") },
			func() error { return other.remove(b.Context()) },
		}
		play := func() {
			order.Shuffle(len(round), func(i, j int) { round[i], round[j] = round[j], round[i] })
			for _, do := range round {
				do()
			}
			order.Shuffle(len(ends), func(i, j int) { ends[i], ends[j] = ends[j], ends[i] })
			for _, end := range ends {
				if err := end(); err != nil {
					b.Fatal(err)
				}
			}
		}
		for b.Loop() {
			play()
		}
		for len(admits) < leastRounds {
			play()
		}
		whole, parts := median(admits), median(calls)+median(commits)
		b.ReportMetric(float64(whole), "ns/op")
		b.ReportMetric(float64(median(dries)), "dry-ns")
		b.ReportMetric(float64(median(calls)), "call-ns")
		b.ReportMetric(float64(median(commits)), "commit-ns")
		b.ReportMetric(float64(whole)/float64(parts), "times")
	})
}

// BenchmarkAdmitWithHistory admits a pod at two berthds on the same disk in turns, one of which
// keeps a history: ns/op is the median of an admission with it, and times how many times one
// without it that is. cpu-times compares the processor time of both, with that of the client: on a
// busy machine it is steadier than the clock, and it does not have the disk. The pods have names of
// other lengths each time: else it is always an admission that completes a block of the history, or
// never, and a byte more in an entry changes times by 0.05.
func BenchmarkAdmitWithHistory(b *testing.B) {
	b.Run("8 CPUs and 4 GiB/512/berth", func(b *testing.B) {
		sides := []*running{runBerthd(b), runBerthd(b, func(c *config.Config, _ *app.Environment) { c.History.Entries = 0 })}
		took, order := make([][]time.Duration, len(sides)), rand.New(rand.NewPCG(1, 2))
		used := make([]time.Duration, len(sides))
		play := func() {
			uid := strings.Repeat("a", 1+order.IntN(60))
			for _, i := range order.Perm(len(sides)) {
				before, start := processorTime(b), time.Now()
				if err := sides[i].admit(b.Context(), uid, false); err != nil {
					b.Fatal(err)
				}
				took[i] = append(took[i], time.Since(start))
				used[i] += processorTime(b) - before
				if err := sides[i].remove(b.Context(), uid); err != nil {
					b.Fatal(err)
				}
			}
		}
		for b.Loop() {
			play()
		}
		for len(took[0]) < leastRounds {
			play()
		}
		with, without := median(took[0]), median(took[1])
		b.ReportMetric(float64(with), "ns/op")
		b.ReportMetric(float64(without), "without-ns")
		b.ReportMetric(float64(with)/float64(without), "times")
		b.ReportMetric(float64(used[0])/float64(used[1]), "cpu-times")
	})
}

// BenchmarkResizeOverTheSocket gives a container one exclusive CPU more and one less, in turns with
// admissions of another pod: ns/op is the median of a resize, and times how many admissions it
// takes.
func BenchmarkResizeOverTheSocket(b *testing.B) {
	b.Run("by one CPU/512/berth", func(b *testing.B) {
		berthd := runBerthd(b)
		if err := berthd.admit(b.Context(), "a", false); err != nil {
			b.Fatal(err)
		}
		var resizes, admits []time.Duration
		clock := func(list *[]time.Duration, do func() error) {
			start := time.Now()
			if err := do(); err != nil {
				b.Fatal(err)
			}
			*list = append(*list, time.Since(start))
		}
		resize := func(cpus string) func() error {
			return func() error {
				pod := wirePod("a")
				r := map[string]string{"cpu": cpus, "memory": "4Gi"}
				pod.Spec.Containers[0].Resources = &typesv1.ResourceRequirements{Requests: r, Limits: r}
				v, err := berthd.admission.Resize(b.Context(), berth.ResizeTo(pod))
				if err == nil && (v.GetVerdict() != admissionv1.Verdict_VERDICT_ADMITTED || v.GetReplayed()) {
					err = fmt.Errorf("to %s: %v", cpus, v)
				}
				return err
			}
		}
		play := func() {
			for _, cpus := range []string{"9", "8"} {
				clock(&resizes, resize(cpus))
				clock(&admits, func() error { return berthd.admit(b.Context(), "b", false) })
				if err := berthd.remove(b.Context(), "b"); err != nil {
					b.Fatal(err)
				}
			}
		}
		for b.Loop() {
			play()
		}
		for len(resizes) < leastRounds {
			play()
		}
		took, admit := median(resizes), median(admits)
		b.ReportMetric(float64(took), "ns/op")
		b.ReportMetric(float64(admit), "admit-ns")
		b.ReportMetric(float64(took)/float64(admit), "times")
	})
}

func median(list []time.Duration) time.Duration {
	slices.Sort(list)
	return list[len(list)/2]
}

// TestAdmitOverTheSocket keeps the benchmark honest: pods are admitted, and what
// the other ledger commits has all the parts of an admission.
func TestAdmitOverTheSocket(t *testing.T) {
	t.Parallel()
	berthd := runBerthd(t)
	other := newTwin(t, berthd, wirePod("a"))
	for uid, dry := range map[string]bool{"a": false, "b": false, "c": true} {
		if err := berthd.admit(t.Context(), uid, dry); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := other.put(t.Context()); err != nil {
		t.Fatal(err)
	}
	buckets := map[string]int{}
	for _, e := range other.journal.batch {
		buckets[e.Bucket] += len(e.Value)
	}
	for _, name := range []string{journal.BucketMeta, journal.BucketPods, journal.BucketClaims, journal.BucketTraces,
		journal.BucketHistoryOpen} {
		if buckets[name] == 0 {
			t.Errorf("nothing is committed to %s: %v", name, buckets)
		}
	}
	if err := errors.Join(berthd.remove(t.Context(), "a"), other.remove(t.Context())); err != nil {
		t.Error(err)
	}
}

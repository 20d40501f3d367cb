package metrics

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/journal"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/workload"
	"github.com/berthd/berth/server/internal/usage"
)

// bindingsOf gives a view of pods with one container each, "main", which have the ids.
func bindingsOf(t *testing.T, pods map[string][]string, name func(uid string) string) *ledger.View {
	t.Helper()
	l, _ := ledgertest.Open(t, journal.Options{Journal: ledgertest.NewJournal(), Rules: ledger.Rules{Machine: machinetest.Build("1s1n4c")}})
	view, err := l.Update(t.Context(), func(d *ledger.Draft) error {
		for uid, ids := range pods {
			d.PutPod(&ledger.Pod{
				Pod:         workload.Pod{UID: uid, Namespace: "ns", Name: name(uid), Containers: []workload.Container{{Name: "main"}}},
				AdmissionID: uid, QoS: workload.BestEffort,
			})
			for i, id := range ids {
				d.Bind(ledger.Binding{ID: id, Owner: ledger.Owner{Pod: uid, Container: "main"}, Sequence: uint64(i + 1)})
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return view
}

// TestUsage: of a container that was started again the newest cgroup counts that is there, and of
// two pods with one name only one has series: two would spoil the whole scrape.
func TestUsage(t *testing.T) {
	t.Parallel()
	view := bindingsOf(t, map[string][]string{"a": {"a1", "a2", "a-gone"}, "b": {"b1"}, "c-old": {"c1"}, "c-new": {"c2"}, "d": {"d-gone"}},
		func(uid string) string { name, _, _ := strings.Cut(uid, "-"); return name })
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(&usageCollector{func() *ledger.View { return view }, nil,
		func(_ context.Context, b ledger.Binding) (cgroup.Usage, bool) {
			n := int64(b.ID[0]) * 10
			n += int64(b.ID[1])
			return cgroup.Usage{CPU: time.Duration(n) * time.Second / 2, MemoryBytes: 2 * n, WorkingSetBytes: n},
				!strings.HasSuffix(b.ID, "gone")
		}})
	want := `berth_container_usage_omitted 1
container_cpu_usage_seconds_total{container="main",namespace="ns",pod="a"} 510
container_cpu_usage_seconds_total{container="main",namespace="ns",pod="b"} 514.5
container_cpu_usage_seconds_total{container="main",namespace="ns",pod="c"} 520
container_memory_usage_bytes{container="main",namespace="ns",pod="a"} 2040
container_memory_usage_bytes{container="main",namespace="ns",pod="b"} 2058
container_memory_usage_bytes{container="main",namespace="ns",pod="c"} 2080
container_memory_working_set_bytes{container="main",namespace="ns",pod="a"} 1020
container_memory_working_set_bytes{container="main",namespace="ns",pod="b"} 1029
container_memory_working_set_bytes{container="main",namespace="ns",pod="c"} 1040
`
	if got := strings.Join(lines(t, registry), "\n") + "\n"; got != want {
		t.Errorf("scraped\n%s\nwant\n%s", got, want)
	}
}

// lines are the series of a scrape.
func lines(t *testing.T, registry *prometheus.Registry) (all []string) {
	t.Helper()
	answer := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(answer, httptest.NewRequest("GET", "/metrics", nil))
	if answer.Code != http.StatusOK {
		t.Fatalf("%d: %s", answer.Code, answer.Body)
	}
	for line := range strings.Lines(answer.Body.String()) {
		if !strings.HasPrefix(line, "#") {
			all = append(all, strings.TrimSpace(line))
		}
	}
	return all
}

func count(c prometheus.Collector) (n int) {
	out := make(chan prometheus.Metric)
	go func() { defer close(out); c.Collect(out) }()
	for range out {
		n++
	}
	return n
}

// TestUsageIsBounded: a node with very many containers does not make a scrape without end.
func TestUsageIsBounded(t *testing.T) {
	t.Parallel()
	pods := map[string][]string{}
	for i := range usage.MaxContainers + 3 {
		pods[fmt.Sprintf("p%d", i)] = []string{fmt.Sprintf("c%d", i)}
	}
	view := bindingsOf(t, pods, func(uid string) string { return uid })
	c := &usageCollector{func() *ledger.View { return view }, nil, func(context.Context,
		ledger.Binding) (cgroup.Usage, bool) {
		return cgroup.Usage{}, true
	}}
	if got := count(c); got != 3*usage.MaxContainers+1 {
		t.Errorf("%d series", got)
	}
}

// TestScrapesAreBounded: a client that scrapes without end delays others by no more than a few scrapes.
func TestScrapesAreBounded(t *testing.T) {
	t.Parallel()
	view := bindingsOf(t, map[string][]string{"a": {"a1"}}, func(uid string) string { return uid })
	begun, end := make(chan struct{}, maxScrapes), make(chan struct{})
	s := New()
	s.registry.MustRegister(&usageCollector{func() *ledger.View { return view }, nil,
		func(context.Context, ledger.Binding) (cgroup.Usage, bool) {
			begun <- struct{}{}
			<-end
			return cgroup.Usage{}, true
		}})
	h := s.Handler(true)
	scrape := func() int {
		answer := httptest.NewRecorder()
		h.ServeHTTP(answer, httptest.NewRequest("GET", "/metrics", nil))
		return answer.Code
	}
	codes := make(chan int, maxScrapes)
	for range maxScrapes {
		go func() { codes <- scrape() }()
		<-begun
	}
	if code := scrape(); code != http.StatusServiceUnavailable {
		t.Errorf("one scrape too many: %d", code)
	}
	close(end)
	for range maxScrapes {
		if code := <-codes; code != http.StatusOK {
			t.Errorf("a scrape: %d", code)
		}
	}
}

// TestStepsAreBounded: providers beyond the bound share a series.
func TestStepsAreBounded(t *testing.T) {
	t.Parallel()
	s := New()
	for range 2 {
		for i := range maxProviders + 5 {
			s.Step("hints", fmt.Sprintf("p%d", i), time.Millisecond)
		}
		s.Step("commit", "", time.Millisecond)
	}
	if n := count(s.steps.took); n != maxProviders+2 {
		t.Errorf("%d series, want %d", n, maxProviders+2)
	}
	if n := len(s.steps.known); n != maxProviders+1 {
		t.Errorf("%d series are remembered, want %d", n, maxProviders+1)
	}
}

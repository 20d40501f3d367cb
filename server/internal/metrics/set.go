package metrics

import (
	"bytes"
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/server/internal/reconcile"
	"github.com/berthd/berth/server/internal/rpc/podresources"
	"github.com/berthd/berth/server/internal/system"
)

// Set is all metrics of one berthd. Its methods are safe for concurrent use.
type Set struct {
	registry *prometheus.Registry
	sources  system.Sources

	calls  *prometheus.HistogramVec
	passes *prometheus.HistogramVec
	writes prometheus.Counter
	// readers are the kubelet's counters of podresources calls, by name.
	readers map[podresources.Metric]*prometheus.CounterVec

	admissions *prometheus.HistogramVec
	rejected   *prometheus.CounterVec
	// refused counts the same as rejected, and has all series from the beginning.
	refused  *prometheus.CounterVec
	steps    *steps
	topology topologyCounters
	aligned  alignment
	pinned   []pinning
	managers managerCounters
	devices  deviceCounters
	cgroups  cgroupCounters
	resizes  resizeCounters
	machine  machineCounters
	moves    *prometheus.CounterVec
	// replacements count what pods have lost.
	replacements *prometheus.CounterVec
}

// New returns the set. Start adds its sources; nothing may be admitted before.
func New() *Set {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	f := factory{promauto.With(registry)}
	s := &Set{
		registry: registry,
		calls:    f.durations(callDuration, "Time that calls took, by method and status code.", "method", "code"),
		passes:   f.durations(passDuration, "Time that passes over the cgroup tree took, by result.", "result"),
		writes:   f.counter(passOperations, "Cgroups that passes created or changed."),
		readers:  make(map[podresources.Metric]*prometheus.CounterVec),

		admissions: f.durations(admissionDuration, "Time from an admission's arrival to its verdict, by verdict.", "verdict"),
		steps:      newSteps(f),
		rejected:   f.counters(rejections, "Rejected pods, by reason.", labelReason),
		refused:    f.counters(ownRejections, "Rejected pods, by reason.", labelReason),
		topology:   newTopologyCounters(f),
		aligned:    newAlignment(f),
		pinned:     newPinnings(f),
		devices:    newDeviceCounters(f),
		cgroups:    newCgroupCounters(f),
		resizes:    newResizeCounters(f),
		machine:    newMachineCounters(f),
		moves:      f.counters(moveSteps, "Steps of moves to other CPUs or NUMA nodes, by kind.", "kind"),

		replacements: f.counters(replacements,
			"Losses of CPUs, NUMA nodes or memory for which berthd has looked for others, by what was lost and result.", "lost", "result"),
	}
	s.begin()
	for _, name := range podresources.Metrics() {
		s.readers[name] = f.counters(string(name), "Calls of the PodResources API, as the kubelet counts them.", podresources.VersionLabel)
	}
	return s
}

// begin creates the series that alerts watch, with 0: a series that appears with the first event has no increase at it.
func (s *Set) begin() {
	for _, verdict := range []string{admission.Admitted.String(), admission.Rejected.String(), admission.Deferred.String(), verdictError,
		verdictInvalid} {
		s.admissions.WithLabelValues(verdict)
	}
	for _, r := range append(slices.Clone(counted), reasonOther) {
		s.refused.WithLabelValues(string(r))
	}
	for _, result := range []string{resultOK, resultError} {
		s.passes.WithLabelValues(result)
	}
}

// Start sets the sources, and creates the series that start at 0 in the kubelet. It is called
// once, before the first admission.
func (s *Set) Start(sources system.Sources) {
	s.sources = sources
	s.registry.MustRegister(pluginCollector{sources.Sockets}, daemonCollector{sources.Watchers, sources.LedgerBytes, sources.History,
		sources.Plugins},
		&ledgerCollector{view: sources.View, kernel: sources.Kernel, phases: sources.Phases,
			cpu: func() bool { return sources.Settings().StaticCPUs }})
	if sources.Usage != nil {
		s.registry.MustRegister(&usageCollector{sources.View, sources.Bindings, sources.Usage})
	}
	if sources.Allocatable != nil {
		s.registry.MustRegister(allocatableCollector{sources.Allocatable})
	}
	settings := sources.Settings()
	s.aligned.begin(settings)
	if settings.MemoryQoS {
		s.registry.MustRegister(reservationCollector{sources.View, settings.TieredReservation})
	}
	if settings.PodLevelResourceManagers {
		s.managers = newManagerCounters(factory{promauto.With(s.registry)})
	}
}

// maxScrapes bounds the scrapes at a time: each reads files of every container.
const maxScrapes = 4

// Handler serves the metrics. With kubelet false, the kubelet's metrics are omitted.
func (s *Set) Handler(kubelet bool) http.Handler {
	options := promhttp.HandlerOpts{MaxRequestsInFlight: maxScrapes}
	gather := named(s.registry.Gather)
	if !kubelet {
		gather = ownOnly(gather)
	}
	return promhttp.HandlerFor(prometheus.GathererFunc(gather), options)
}

// Text returns the metrics as a page without the kubelet's names.
func (s *Set) Text(ctx context.Context) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "/metrics", nil)
	if err != nil {
		return nil, err
	}
	p := &answer{header: http.Header{}}
	s.Handler(false).ServeHTTP(p, req)
	if p.code >= http.StatusBadRequest {
		return nil, errdefs.Unavailablef("collect the metrics: %s", strings.TrimSpace(p.text.String()))
	}
	return p.text.Bytes(), nil
}

// answer is one in memory.
type answer struct {
	header http.Header
	code   int
	text   bytes.Buffer
}

func (p *answer) Header() http.Header            { return p.header }
func (p *answer) WriteHeader(code int)           { p.code = code }
func (p *answer) Write(text []byte) (int, error) { return p.text.Write(text) }

// Call counts a call of a service.
func (s *Set) Call(method, code string, took time.Duration) {
	s.calls.WithLabelValues(method, code).Observe(took.Seconds())
}

// Pass counts a pass over the cgroup tree.
func (s *Set) Pass(o reconcile.Outcome) {
	result := resultOK
	if o.Err != nil {
		result = resultError
	}
	s.passes.WithLabelValues(result).Observe(o.Took.Seconds())
	s.writes.Add(float64(len(o.Ops)))
	s.cgroups.count(o)
}

// Count implements podresources.Counter.
func (s *Set) Count(name podresources.Metric, version string) {
	s.readers[name].WithLabelValues(version).Inc()
}

// factory makes metrics and registers them.
type factory struct{ promauto.Factory }

// durations makes a histogram from 0.1 ms to 15 s.
func (f factory) durations(name, help string, labels ...string) *prometheus.HistogramVec {
	return f.NewHistogramVec(prometheus.HistogramOpts{
		Name: name, Help: help, Buckets: prometheus.ExponentialBuckets(0.0001, 2.5, 14),
	}, labels)
}

func (f factory) counter(name, help string) prometheus.Counter {
	return f.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
}

func (f factory) counters(name, help string, labels ...string) *prometheus.CounterVec {
	return f.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
}

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

const (
	// maxReasons bounds the reasons with a series of their own.
	maxReasons = 32
	otherCause = "Other"
	// maxHTTP bounds the connections, maxScrapes the answers at a time.
	maxHTTP    = 64
	maxScrapes = 4
)

// counters are what berth-nri counts.
type counters struct {
	registry *prometheus.Registry
	refusals *prometheus.CounterVec
	repeated prometheus.Counter
	// writes of the NodeResourceTopology object
	writes *prometheus.CounterVec

	mu      sync.Mutex // guards reasons
	reasons map[string]bool
}

func newCounters(ready func() error) *counters {
	c := &counters{
		registry: prometheus.NewRegistry(), reasons: map[string]bool{},
		refusals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "berth_nri_refusals_total", Help: "Pods, and containers that are placed by themselves, that berthd rejected, by reason.",
		}, []string{"reason"}),
		repeated: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "berth_nri_repeated_refusals_total", Help: "Tries of rejected pods that were refused without a call of berthd, because nothing had become free.",
		}),
		writes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "berth_nri_topology_writes_total", Help: "Writes of the node's NodeResourceTopology object, by result: ok or failed.",
		}, []string{"result"}),
	}
	c.registry.MustRegister(c.refusals, c.repeated, c.writes, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "berth_nri_ready", Help: "1 if berth-nri is connected to the runtime and to berthd.",
	}, func() float64 {
		if ready() != nil {
			return 0
		}
		return 1
	}))
	return c
}

// refused counts a refusal.
func (c *counters) refused(reason string, repeated bool) {
	if repeated {
		c.repeated.Inc()
		return
	}
	c.mu.Lock()
	if !c.reasons[reason] && len(c.reasons) >= maxReasons {
		reason = otherCause
	}
	c.reasons[reason] = true
	c.mu.Unlock()
	c.refusals.WithLabelValues(reason).Inc()
}

// handler serves metrics and health. /healthz says that the process answers, /readyz that it is
// connected.
func (c *counters) handler(ready func() error) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(c.registry, promhttp.HandlerOpts{MaxRequestsInFlight: maxScrapes}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := ready(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	return mux
}

// serveHTTP serves on an address until stop is called.
func serveHTTP(address string, handler http.Handler, log *slog.Logger) (stop func(), err error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("--http: %w", err)
	}
	log.Info("metrics and health over HTTP", "address", l.Addr().String())
	var open atomic.Int64
	s := &http.Server{
		Handler: handler, MaxHeaderBytes: 16 << 10, ReadTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second, IdleTimeout: time.Minute,
		ConnState: func(c net.Conn, state http.ConnState) {
			switch state {
			case http.StateNew:
				if open.Add(1) > maxHTTP {
					_ = c.Close() // the server notices, and reports it closed
				}
			case http.StateClosed, http.StateHijacked:
				open.Add(-1)
			}
		},
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			log.Error("metrics and health are not served any more", "error", err)
		}
	}()
	return func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if s.Shutdown(ctx) != nil {
			_ = s.Close()
		}
		<-done
	}, nil
}

// Package health serves the metrics and the health of a client program over HTTP: /metrics, /healthz and /readyz.
//
// /healthz says that the process answers, /readyz that the program does its work. The number of connections, and of
// answers with metrics at a time, is bounded. The package does not know what a program counts.
package health

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/berthd/berth/api/hosts"
)

// maxConnections bounds the connections, maxScrapes the answers with metrics at a time.
const (
	maxConnections = 64
	maxScrapes     = 4
)

// Handler serves the metrics of a registry, and an error of ready as the reason why the program is not ready.
func Handler(metrics prometheus.Gatherer, ready func() error) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{MaxRequestsInFlight: maxScrapes}))
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

// Serve serves on an address, which the flag --http names, until stop is called.
func Serve(address string, handler http.Handler, log *slog.Logger) (stop func(), err error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("--http: %w", err)
	}
	log.Info("metrics and health over HTTP", "address", l.Addr().String())
	var open atomic.Int64
	s := &http.Server{
		Handler: hosts.Only(address, handler), MaxHeaderBytes: 16 << 10, ReadTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second, IdleTimeout: time.Minute,
		ConnState: func(c net.Conn, state http.ConnState) {
			switch state {
			case http.StateNew:
				if open.Add(1) > maxConnections {
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

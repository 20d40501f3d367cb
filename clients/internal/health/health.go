// Package health serves the metrics and the health of a client program over HTTP: /metrics, /healthz and /readyz.
//
// /healthz says that the process answers, /readyz that the program does its work. The number of connections, and of
// answers with metrics at a time, is bounded. The package does not know what a program counts.
package health

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/cobra"

	"github.com/berthd/berth/api/hosts"
	"github.com/berthd/berth/api/trust"
)

// maxScrapes bounds the answers with metrics at a time.
const maxScrapes = 4

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

// Addresses lists where a program serves.
type Addresses struct{ HTTP, Socket string }

// AddFlags declares the flags --http and --health-socket of a program, and its command probe. port is an example.
func AddFlags(root *cobra.Command, port int) *Addresses {
	a := &Addresses{}
	f := root.Flags()
	f.StringVar(&a.HTTP, "http", "",
		fmt.Sprintf("address for metrics (/metrics) and health (/healthz, /readyz), for example 127.0.0.1:%d; every user of the address can read them; empty for none", port))
	trust.Mark(f, trust.Address, "http")
	f = root.PersistentFlags()
	f.StringVar(&a.Socket, "health-socket", "",
		"unix socket with the same, for the program's user only: the command probe calls it (there, the default is "+defaultSocket(root.Name())+"); empty for none")
	trust.Mark(f, trust.Socket, "health-socket")
	root.AddCommand(a.probeCommand(root.Name()))
	return a
}

// defaultSocket is what a probe calls.
func defaultSocket(program string) string { return "/run/berth/" + program + ".health" }

// Serve serves on all addresses until stop is called.
func (a *Addresses) Serve(handler http.Handler, log *slog.Logger) (stop func(), err error) {
	var stops []func()
	stop = func() {
		for _, s := range stops {
			s()
		}
	}
	for _, at := range []struct {
		address string
		serve   func(string, http.Handler, *slog.Logger) (func(), error)
	}{{a.HTTP, Serve}, {a.Socket, serveSocket}} {
		if at.address == "" {
			continue
		}
		s, err := at.serve(at.address, handler, log)
		if err != nil {
			stop()
			return nil, err
		}
		stops = append(stops, s)
	}
	return stop, nil
}

// Serve serves on an address, which the flag --http names, until stop is called.
func Serve(address string, handler http.Handler, log *slog.Logger) (stop func(), err error) {
	stop, err = Service{What: "metrics and health", Handler: hosts.Only(address, handler), Log: log}.Serve(address)
	if err != nil {
		return nil, fmt.Errorf("--http: %w", err)
	}
	return stop, nil
}

// serveSocket serves on a unix socket, which the flag --health-socket names, for Probe. Only the program's user can connect. An old
// socket is replaced.
func serveSocket(path string, handler http.Handler, log *slog.Logger) (stop func(), err error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("--health-socket: %w", err)
	}
	l, err := net.Listen("unix", path)
	if err == nil {
		err = os.Chmod(path, 0o600)
	}
	if err != nil {
		return nil, fmt.Errorf("--health-socket: %w", err)
	}
	return Service{What: "metrics and health", Handler: handler, Log: log}.serve(func(<-chan struct{}) net.Listener { return l }), nil
}

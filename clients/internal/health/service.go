package health

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"syscall"
	"time"

	"github.com/berthd/berth/api/bounded"
)

const (
	// maxConnections bounds the connections.
	maxConnections = 64
	// addressAgain is the pause between two tries of an address.
	addressAgain = 5 * time.Second
)

// Service serves HTTP, or HTTPS if there is a configuration of TLS.
type Service struct {
	What    string // in messages, such as "metrics"
	Handler http.Handler
	TLS     *tls.Config
	Log     *slog.Logger
}

// Serve serves on a TCP address until stop is called. If another program has the address, which every user of the machine can take, or
// the machine does not have it yet, Serve logs a warning and tries it again.
func (s Service) Serve(address string) (stop func(), err error) {
	l, err := net.Listen("tcp", address)
	if errors.Is(err, syscall.EADDRINUSE) || errors.Is(err, syscall.EADDRNOTAVAIL) {
		s.Log.Warn(s.What+" are not served yet: another program has the address, or the machine does not have it; it is tried again",
			"address", address, "every", addressAgain.String(), "error", err)
	} else if err != nil {
		return nil, err
	}
	return s.serve(func(ended <-chan struct{}) net.Listener {
		for ; l == nil; l, _ = net.Listen("tcp", address) {
			select {
			case <-time.After(addressAgain):
			case <-ended:
				return nil
			}
		}
		return l
	}), nil
}

// serve serves on the listener that listen returns, which is nil after the end.
func (s Service) serve(listen func(ended <-chan struct{}) net.Listener) (stop func()) {
	server := &http.Server{Handler: s.Handler, MaxHeaderBytes: 16 << 10, ReadTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second,
		IdleTimeout: time.Minute}
	scheme := "HTTP"
	if s.TLS != nil {
		scheme = "HTTPS"
		server.ErrorLog = slog.NewLogLogger(s.Log.Handler(), slog.LevelDebug) // anybody can make a handshake fail
	}
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		l := listen(ended)
		if l == nil {
			return
		}
		s.Log.Info(s.What+" over "+scheme, "address", l.Addr().String())
		if s.TLS != nil {
			l = tls.NewListener(l, s.TLS)
		}
		if err := bounded.New(l, maxConnections).Serve(server); !errors.Is(err, http.ErrServerClosed) {
			s.Log.Error(s.What+" are not served any more", "error", err)
		}
	}()
	return func() {
		close(ended)
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if server.Shutdown(ctx) != nil {
			_ = server.Close()
		}
		<-done
	}
}

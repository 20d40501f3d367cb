package cri_test

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/berthd/berth/clients/berthlet/container/containertest"
	"github.com/berthd/berth/clients/berthlet/cri"
	fake "github.com/berthd/berth/hack/testing/cri"
)

// serve runs a container runtime in memory until the test ends, and returns its
// socket.
func serve(t *testing.T, s *fake.Server) string {
	t.Helper()
	// Paths of sockets are short (unix(7)), those of t.TempDir are not.
	dir, err := os.MkdirTemp("", "cri")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	socket := filepath.Join(dir, "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	go func() { done <- s.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return socket
}

// logBytes is how large logs become.
const logBytes = 1000

func open(t *testing.T, socket, owner string) (*cri.Runtime, <-chan string) {
	t.Helper()
	changed := make(chan string, 1000)
	r, err := cri.New(cri.Options{
		Endpoint: "unix://" + socket, Owner: owner, Changed: func(uid string) { changed <- uid },
		Now: time.Now, LogBytes: logBytes, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Stop)
	return r, changed
}

func TestRuntime(t *testing.T) {
	t.Parallel()
	containertest.Run(t, func(t *testing.T) containertest.Bench {
		r, changed := open(t, serve(t, fake.New(fake.Config{Images: []string{"probe"}})), "us")
		return containertest.Bench{
			Runtime: r, Image: "probe", Program: "/probe", Changed: changed, OwnIDs: true, CgroupParent: "/kubepods/podu1",
		}
	})
}

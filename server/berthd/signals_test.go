package main

import (
	"io"
	"os"
	"syscall"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/berthd/berth/hack/testing/nodetest"
)

// TestSignalsThatDoNotEndIt: a signal that berthd does not support is logged, at the start already, and berthd continues.
func TestSignalsThatDoNotEndIt(t *testing.T) {
	t.Parallel()
	for _, s := range []syscall.Signal{syscall.SIGUSR1, syscall.SIGUSR2} {
		t.Run(s.String(), func(t *testing.T) {
			t.Parallel()
			d := newNode(t).start()
			if err := d.Cmd.Process.Signal(s); err != nil {
				t.Fatal(err)
			}
			d.says(s.String())
			d.admitted(burstable("x"))
			d.stop()
		})
	}
}

// TestNobodyReadsTheLog: the reader of a pipe that berthd logs to ends, and berthd continues.
func TestNobodyReadsTheLog(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := n.command("--log-level", "debug")
	cmd.Stderr = writer
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() { _ = cmd.Process.Kill(); <-ended })
	_ = writer.Close()
	if _, err := io.ReadFull(reader, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	_ = reader.Close()
	conn, err := grpc.NewClient("unix://"+n.root+"/berth.sock", grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	nodetest.Eventually(t, timeout, "berthd serves", func() bool {
		select {
		case err := <-ended:
			ended <- err
			t.Fatalf("berthd ended: %v", err)
		default:
		}
		resp, err := healthpb.NewHealthClient(conn).Check(n.ctx(), &healthpb.HealthCheckRequest{})
		return err == nil && resp.GetStatus() == healthpb.HealthCheckResponse_SERVING
	})
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Errorf("berthd did not end in order: %v", err)
	}
	ended <- nil
}

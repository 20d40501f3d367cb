package hintserver_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	hintv1 "github.com/berthd/berth/api/berth/hint/v1"
	"github.com/berthd/berth/clients/hintprovider/hintserver"
)

// brittle panics at the abort of one admission.
type brittle struct{ *slots }

func (b brittle) Abort(ctx context.Context, id string) {
	if id == "bad" {
		panic("the provider was told to")
	}
	b.slots.Abort(ctx, id)
}

// A panic in a provider is an Internal error of that call, and holds no lock: the
// next call is answered.
func TestPanicInTheProvider(t *testing.T) {
	t.Parallel()
	socket := place(t) + "/slots.sock"
	var log bytes.Buffer
	p := brittle{newSlots()}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- hintserver.Run(ctx, p, hintserver.Options{
			Socket: socket, NoRegistration: true, Log: slog.New(slog.NewTextHandler(&log, nil)),
		})
	}()
	t.Cleanup(cancel)
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	client := hintv1.NewHintProviderServiceClient(conn)
	abort := func(id string) error {
		_, err := client.Abort(ctx, &hintv1.AbortRequest{Provider: p.Name(), AdmissionId: id}, grpc.WaitForReady(true))
		return err
	}
	if err := abort("bad"); status.Code(err) != codes.Internal || !strings.Contains(err.Error(),
		"panic in the provider, see its log: the provider was told to") {
		t.Errorf("a panic: %v", err)
	}
	if err := abort("good"); err != nil || p.said() != "abort good" {
		t.Errorf("the call after it: %v", err)
	}
	_ = conn.Close()
	cancel()
	if err := await(t, "the end", ended); err != nil {
		t.Error(err)
	}
	if !strings.Contains(log.String(), "goroutine") {
		t.Errorf("the log does not say where:\n%s", &log)
	}
}

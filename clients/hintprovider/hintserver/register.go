package hintserver

import (
	"context"
	"errors"
	"fmt"
	"time"

	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/types/known/durationpb"

	hintv1 "github.com/berthd/berth/api/berth/hint/v1"
	"github.com/berthd/berth/clients/berth"
	"github.com/berthd/berth/managers/hint"
)

// pause is how long to wait before berthd is called again.
const pause = time.Second

// register keeps a provider registered until ctx ends. An error is a refusal that
// a retry does not change.
func register(ctx context.Context, p hint.Provider, o Options) error {
	name := p.Name()
	client, err := berth.Dial(ctx, o.Berth, berth.Options{UserAgent: "berth-hintprovider/" + name})
	if err != nil {
		return fmt.Errorf("register provider %s: %w", name, err)
	}
	defer func() { _ = client.Close() }()
	req := &hintv1.RegisterRequest{
		Provider: name, Endpoint: o.Socket, Mode: hintv1.Mode_MODE_ADVISORY,
		Resources: o.Resources, Index: o.Index,
	}
	if o.Required {
		req.Mode = hintv1.Mode_MODE_REQUIRED
	}
	if _, ok := p.(hint.Validator); ok {
		req.Capabilities = append(req.Capabilities, hintv1.Capability_CAPABILITY_VALIDATE)
	}
	if _, ok := p.(hint.Explainer); ok {
		req.Capabilities = append(req.Capabilities, hintv1.Capability_CAPABILITY_EXPLAIN)
	}
	if o.Deadline != 0 {
		req.Deadline = durationpb.New(o.Deadline)
	}
	for ctx.Err() == nil {
		err := client.WaitReady(ctx)
		if err == nil {
			err = attend(ctx, client, req, o)
		}
		if berth.IsInvalid(err) || berth.IsPermissionDenied(err) {
			return fmt.Errorf("register provider %s: %w", name, err)
		}
		if ctx.Err() == nil {
			o.Log.WarnContext(ctx, "registration with berthd failed; trying again", "provider", name, "error", err)
			sleep(ctx, pause)
		}
	}
	return nil
}

// attend registers and returns when the registration failed or that berthd has
// ended: the next one may not know the provider. The health stream is there before
// the registration, so that it cannot be one of a later berthd.
func attend(ctx context.Context, client *berth.Client, req *hintv1.RegisterRequest, o Options) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	watch, err := healthv1.NewHealthClient(client.Conn()).Watch(ctx, &healthv1.HealthCheckRequest{})
	if err != nil {
		return err
	}
	for registered := false; ; {
		answer, err := watch.Recv()
		if err != nil {
			return fmt.Errorf("berthd has gone: %w", err)
		}
		if answer.GetStatus() != healthv1.HealthCheckResponse_SERVING {
			return errors.New("berthd is about to end")
		}
		if registered {
			continue
		}
		if _, err := client.HintBus().Register(ctx, req); err != nil {
			return err
		}
		registered = true
		o.Log.InfoContext(ctx, "registered", "provider", req.GetProvider(), "berthd", client.Endpoint())
	}
}

func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

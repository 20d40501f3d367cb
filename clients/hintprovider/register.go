package hintprovider

import (
	"context"
	"errors"
	"fmt"
	"time"

	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/types/known/durationpb"

	hintv1 "github.com/berthd/berth/api/berth/hint/v1"
	"github.com/berthd/berth/clients/berth"
)

// pause is how long to wait before berthd is asked again.
const pause = time.Second

// register keeps a provider registered until ctx ends. An error is a refusal that
// asking again does not change.
func register(ctx context.Context, name string, o Options) error {
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
	if o.Deadline != 0 {
		req.Deadline = durationpb.New(o.Deadline)
	}
	for ctx.Err() == nil {
		err := client.WaitReady(ctx)
		if err == nil {
			_, err = client.HintBus().Register(ctx, req)
		}
		switch {
		case err == nil:
			o.Log.InfoContext(ctx, "registered", "provider", name, "berthd", client.Endpoint())
			err = untilGone(ctx, client)
		case berth.IsInvalid(err) || berth.IsPermissionDenied(err):
			return fmt.Errorf("register provider %s: %w", name, err)
		}
		if ctx.Err() == nil {
			o.Log.WarnContext(ctx, "berthd is not there or did not take the registration, asking again", "provider", name, "error", err)
			sleep(ctx, pause)
		}
	}
	return nil
}

// errGone is why a registration is repeated.
var errGone = errors.New("berthd has gone")

// untilGone returns when berthd has ended: the next one may not know the provider.
func untilGone(ctx context.Context, client *berth.Client) error {
	watch, err := healthv1.NewHealthClient(client.Conn()).Watch(ctx, &healthv1.HealthCheckRequest{})
	if err != nil {
		return err
	}
	for {
		answer, err := watch.Recv()
		if err != nil {
			return errors.Join(errGone, err)
		}
		if answer.GetStatus() != healthv1.HealthCheckResponse_SERVING {
			return errGone
		}
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

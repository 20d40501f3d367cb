package app

import (
	"context"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/server/hintproxy"
	"github.com/berthd/berth/server/rpc"
)

// ownProviders lets callers register providers in their own name only.
type ownProviders struct {
	*hintproxy.Registry
	self uint32
}

// Register implements hintbus.Registry.
func (o ownProviders) Register(ctx context.Context, registration ledger.ExternalProvider) error {
	by, err := o.caller(ctx)
	if err != nil {
		return err
	}
	return o.Registry.Register(ctx, registration, by)
}

// Unregister implements hintbus.Registry.
func (o ownProviders) Unregister(ctx context.Context, name string) error {
	by, err := o.caller(ctx)
	if err != nil {
		return err
	}
	return o.Registry.Unregister(ctx, name, by)
}

func (o ownProviders) caller(ctx context.Context) (hintproxy.Caller, error) {
	who, known := rpc.PeerOf(ctx)
	if !known {
		return hintproxy.Caller{}, errdefs.PermissionDeniedf("the connection does not tell whose provider it is")
	}
	return hintproxy.Caller{UID: who.UID, Trusted: who.UID == 0 || who.UID == o.self}, nil
}

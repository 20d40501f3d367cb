package berth

import (
	"context"
	"errors"
	"io"

	inspectv1 "github.com/berthd/berth/api/berth/inspect/v1"
	"github.com/berthd/berth/api/bundle"
)

// Bundle returns what berthd's decisions can be computed again from. It needs the role admin.
func (c *Client) Bundle(ctx context.Context) (*bundle.Bundle, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	parts, err := c.Inspect().StreamBundle(ctx, &inspectv1.StreamBundleRequest{})
	if err != nil {
		return nil, err
	}
	var all bundle.Collector
	for {
		part, err := parts.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return all.Bundle()
		case err != nil:
			return nil, err
		}
		if err := all.Add(part.GetName(), part.GetData()); err != nil {
			return nil, err
		}
	}
}

package berth

import (
	"context"
	"errors"
	"io"
	"iter"

	inspectv1 "github.com/berthd/berth/api/berth/inspect/v1"
)

// Bundle returns the files from which berthd's decisions can be computed again, in parts and in the order in which berthd
// sends them. The package api/bundle collects them. The sequence ends with the first error. It needs the role admin.
func (c *Client) Bundle(ctx context.Context) iter.Seq2[*inspectv1.StreamBundleResponse, error] {
	return func(yield func(*inspectv1.StreamBundleResponse, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		parts, err := c.Inspect().StreamBundle(ctx, &inspectv1.StreamBundleRequest{})
		if err != nil {
			yield(nil, err)
			return
		}
		for {
			part, err := parts.Recv()
			if errors.Is(err, io.EOF) || !yield(part, err) || err != nil {
				return
			}
		}
	}
}

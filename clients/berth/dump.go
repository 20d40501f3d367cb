package berth

import (
	"context"
	"errors"
	"io"

	inspectv1 "github.com/berthd/berth/api/berth/inspect/v1"
)

// Dump returns the whole ledger as it is at one generation, however large it is.
func (c *Client) Dump(ctx context.Context) (*inspectv1.DumpResponse, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	parts, err := c.Inspect().StreamDump(ctx, &inspectv1.StreamDumpRequest{})
	if err != nil {
		return nil, err
	}
	all := &inspectv1.DumpResponse{}
	for {
		part, err := parts.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return all, nil
		case IsUnimplemented(err): // a berthd from before there was a stream
			return c.Inspect().Dump(ctx, &inspectv1.DumpRequest{})
		case err != nil:
			return nil, err
		}
		all.Revision = part.GetRevision()
		all.Entries = append(all.Entries, part.GetEntries()...)
	}
}

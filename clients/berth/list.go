package berth

import (
	"context"

	"google.golang.org/protobuf/proto"

	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
)

// listPage is how many pods List reads at once.
const listPage = 500

// List returns all pods that match, of one revision, however many they are. It reads them in pages. If the revision is not kept
// until the last page, which a busy node may bring about, it begins again.
func (c *Client) List(ctx context.Context, req *allocationv1.ListRequest) (*allocationv1.ListResponse, error) {
	for again := false; ; again = true {
		all, err := c.listOnce(ctx, req, again)
		if !IsGone(err) {
			return all, err
		}
	}
}

// listOnce reads the pages of one revision. At once means that they are read as one page.
func (c *Client) listOnce(ctx context.Context, req *allocationv1.ListRequest, atOnce bool) (*allocationv1.ListResponse, error) {
	page := &allocationv1.ListRequest{}
	proto.Merge(page, req)
	if page.PageSize = listPage; atOnce {
		page.PageSize = 0
	}
	all := &allocationv1.ListResponse{}
	for {
		got, err := c.Allocation().List(ctx, page)
		if err != nil {
			return nil, err
		}
		got.Pods = append(all.GetPods(), got.GetPods()...)
		got.UnadmittedPods = append(all.GetUnadmittedPods(), got.GetUnadmittedPods()...)
		all, page.PageToken = got, got.GetNextPageToken()
		if page.GetPageToken() == "" {
			return all, nil
		}
	}
}

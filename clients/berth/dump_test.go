package berth_test

import (
	"context"
	"path/filepath"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	inspectv1 "github.com/berthd/berth/api/berth/inspect/v1"
	"github.com/berthd/berth/clients/berth"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/server/servertest"
)

// whole is an inspect service from before dumps came in parts.
type whole struct {
	inspectv1.UnimplementedInspectServiceServer
	dump *inspectv1.DumpResponse
}

func (w whole) Dump(context.Context, *inspectv1.DumpRequest) (*inspectv1.DumpResponse, error) {
	return w.dump, nil
}

// parted sends one entry at a time, and then fails if the test set that.
type parted struct {
	whole
	fails error
}

func (p parted) StreamDump(_ *inspectv1.StreamDumpRequest, to grpc.ServerStreamingServer[inspectv1.StreamDumpResponse]) error {
	for _, e := range p.dump.GetEntries() {
		if err := to.Send(&inspectv1.StreamDumpResponse{Revision: p.dump.GetRevision(), Entries: []*inspectv1.Entry{e}}); err != nil {
			return err
		}
	}
	return p.fails
}

func TestDump(t *testing.T) {
	t.Parallel()
	w := whole{dump: &inspectv1.DumpResponse{Revision: 7, Entries: []*inspectv1.Entry{
		{Bucket: "pods", Key: "a", Value: "{}"}, {Bucket: "pods", Key: "b", Value: "{}"},
	}}}
	for name, row := range map[string]struct {
		server inspectv1.InspectServiceServer
		fails  bool
	}{
		"in parts": {parted{whole: w}, false},
		"at once":  {w, false},
		"broken":   {parted{whole: w, fails: errdefs.Internalf("no")}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(dir(t), "berth.sock")
			servertest.Serve(t, path, func(s *grpc.Server) { inspectv1.RegisterInspectServiceServer(s, row.server) })
			got, err := dial(t, path, berth.Options{}).Dump(t.Context())
			if (err != nil) != row.fails || err == nil && !proto.Equal(got, w.dump) {
				t.Errorf("%v, %v", got, err)
			}
		})
	}
}

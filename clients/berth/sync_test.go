package berth_test

import (
	"context"
	"errors"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"google.golang.org/grpc"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	"github.com/berthd/berth/clients/berth"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/server/servertest"
)

// syncing is what Sync needs of berthd: one whose revision moves with every pod that
// comes, and falls when it is lost.
type syncing struct {
	admissionv1.UnimplementedAdmissionServiceServer
	allocationv1.UnimplementedAllocationServiceServer
	revision uint64
	lost     bool // before the next Sync
	fails    error
	asked    []string
	known    []uint64
	owner    string // of the last Sync
}

func (s *syncing) GetRevision(context.Context, *allocationv1.GetRevisionRequest) (*allocationv1.GetRevisionResponse, error) {
	s.asked = append(s.asked, "revision")
	return &allocationv1.GetRevisionResponse{Revision: s.revision}, nil
}

func (s *syncing) SyncPods(ctx context.Context, req *admissionv1.SyncPodsRequest) (*admissionv1.SyncPodsResponse, error) {
	text := "sync " + strings.Join(req.GetActivePodUids(), ",")
	if req.GetAllowEmpty() {
		text += " or none"
	}
	s.asked = append(s.asked, text)
	s.known = append(s.known, req.GetKnownRevision())
	s.owner = req.GetOwner()
	if s.lost {
		s.lost, s.revision = false, 1
	}
	if req.GetKnownRevision() > s.revision {
		return nil, servertest.Status(ctx, errdefs.Preconditionf("another ledger"))
	}
	return &admissionv1.SyncPodsResponse{RemovedPodUids: []string{"dead"}}, servertest.Status(ctx, s.fails)
}

// TestSync: the revision is read before the list is made, and both again where the
// ledger was lost in between.
func TestSync(t *testing.T) {
	t.Parallel()
	two, unlisted := []string{"a", "b"}, errors.New("the runtime is away")
	for name, row := range map[string]struct {
		server  syncing
		living  []string
		listing error
		asked   []string
		known   []uint64
		fails   func(error) bool
	}{
		"once": {syncing{revision: 7}, two, nil, []string{"revision", "living", "sync a,b"}, []uint64{7}, nil},
		"lost": {syncing{revision: 7, lost: true}, two, nil, []string{"revision", "living", "sync a,b", "revision", "living",
			"sync a,b"}, []uint64{7, 1}, nil},
		"other": {syncing{revision: 7, fails: errdefs.Unavailablef("disk full")}, two, nil,
			[]string{"revision", "living", "sync a,b"}, []uint64{7}, berth.IsUnavailable},
		"none": {syncing{revision: 7}, nil, nil, []string{"revision", "living", "sync  or none"}, []uint64{7}, nil},
		"no list": {syncing{revision: 7}, nil, unlisted, []string{"revision", "living"}, nil,
			func(err error) bool { return errors.Is(err, unlisted) }},
		"not better": {syncing{revision: 7, fails: errdefs.Preconditionf("no")}, two, nil,
			[]string{"revision", "living", "sync a,b", "revision", "living", "sync a,b"}, []uint64{7, 7}, berth.IsPrecondition},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &row.server
			path := filepath.Join(dir(t), "berth.sock")
			servertest.Serve(t, path, func(g *grpc.Server) {
				admissionv1.RegisterAdmissionServiceServer(g, s)
				allocationv1.RegisterAllocationServiceServer(g, s)
			})
			answer, err := dial(t, path, berth.Options{Owner: "me"}).SyncPods(t.Context(), func(context.Context) ([]string, error) {
				s.asked = append(s.asked, "living")
				return row.living, row.listing
			})
			if row.fails != nil && !row.fails(err) || row.fails == nil && (err != nil || len(answer.GetRemovedPodUids()) != 1) {
				t.Errorf("%v, %v", answer, err)
			}
			if row.listing == nil && s.owner != "me" {
				t.Errorf("for the owner %q", s.owner)
			}
			if !reflect.DeepEqual(s.asked, row.asked) || !reflect.DeepEqual(s.known, row.known) {
				t.Errorf("asked %q with %v", s.asked, s.known)
			}
		})
	}
}

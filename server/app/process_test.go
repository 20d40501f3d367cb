package app

import (
	"context"
	"os"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"

	"google.golang.org/grpc/peer"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/fault"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/server/rpc"
)

// starts notes which processes got through.
type starts []int

func (s *starts) PreStart(_ context.Context, _ ledger.Owner, _ string, pid int) (admission.Started, error) {
	*s = append(*s, pid)
	return admission.Started{}, nil
}

func (*starts) PostStop(context.Context, string) (bool, error) { return false, nil }

func TestOnlyOwnProcesses(t *testing.T) {
	t.Parallel()
	proc := fstest.MapFS{}
	for pid, uids := range map[string]string{"10": "0\t0\t0\t0", "20": "1000\t0\t1000\t1000", "30": "0\t1000\t1000\t0", "40": "2000\t2000\t2000\t2000"} {
		proc[pid+"/status"] = &fstest.MapFile{Data: []byte("Name:\tx\nUid:\t" + uids + "\nGid:\t0\t0\t0\t0\n")}
	}
	proc["50/status"] = &fstest.MapFile{Data: []byte("Name:\tx\n")}
	const refused, gone, ok = fault.PermissionDenied, fault.NotFound, fault.Class(-1)
	for _, row := range []struct {
		caller string
		pid    int
		want   fault.Class
	}{
		{"0", 10, ok}, {"0", 40, ok}, {"0", 99, ok}, // the kernel will say that it is gone
		{"500", 10, ok}, // berthd's own user
		{"1000", 20, ok}, {"1000", 30, ok}, {"1000", 0, ok},
		{"1000", 10, refused}, {"1000", 40, refused}, {"1000", 99, gone}, {"1000", 50, fault.Unavailable},
		{"", 0, ok}, {"", 20, refused},
		{"0", os.Getpid(), fault.Invalid}, {"1000", os.Getpid(), fault.Invalid},
	} {
		ctx := t.Context()
		if uid, err := strconv.ParseUint(row.caller, 10, 32); err == nil {
			ctx = peer.NewContext(ctx, &peer.Peer{AuthInfo: rpc.Peer{UID: uint32(uid)}})
		}
		var through starts
		_, err := ownProcesses{&through, proc, 500}.PreStart(ctx, ledger.Owner{}, "id", row.pid)
		switch {
		case row.want == ok && (err != nil || len(through) != 1 || through[0] != row.pid):
			t.Errorf("uid %s, process %d: %v, %v", row.caller, row.pid, through, err)
		case row.want != ok && (err == nil || fault.ClassOf(err) != row.want || len(through) != 0):
			t.Errorf("uid %s, process %d: %v, %v; want class %s", row.caller, row.pid, through, err, row.want)
		case row.want == refused && !strings.Contains(err.Error(), "uid"):
			t.Errorf("%v does not say whose it is", err)
		}
	}
}

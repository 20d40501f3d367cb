package app

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"google.golang.org/grpc/peer"

	apiconfig "github.com/berthd/berth/api/config"
	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/server/internal/config"
	"github.com/berthd/berth/server/internal/metrics"
	"github.com/berthd/berth/server/internal/rpc"
	"github.com/berthd/berth/server/internal/system/real"
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
	for pid, uids := range map[string]string{"10": "0\t0\t0\t0", "20": "1000\t0\t1000\t1000", "30": "0\t1000\t1000\t0",
		"40": "2000\t2000\t2000\t2000"} {
		proc[pid+"/status"] = &fstest.MapFile{Data: []byte("Name:\tx\nUid:\t" + uids + "\nGid:\t0\t0\t0\t0\n")}
	}
	proc["50/status"] = &fstest.MapFile{Data: []byte("Name:\tx\n")}
	const refused, gone, ok = errdefs.PermissionDenied, errdefs.NotFound, errdefs.Class(-1)
	for _, row := range []struct {
		caller string
		pid    int
		want   errdefs.Class
	}{
		{"0", 10, ok}, {"0", 40, ok}, {"0", 99, ok}, // the kernel will report it as gone
		{"500", 10, ok}, // berthd's own user
		{"1000", 20, ok}, {"1000", 30, ok}, {"1000", 0, ok},
		{"1000", 10, refused}, {"1000", 40, refused}, {"1000", 99, gone}, {"1000", 50, errdefs.Unavailable},
		{"", 0, ok}, {"", 20, refused},
		{"0", os.Getpid(), errdefs.Invalid}, {"1000", os.Getpid(), errdefs.Invalid},
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
		case row.want != ok && (err == nil || errdefs.ClassOf(err) != row.want || len(through) != 0):
			t.Errorf("uid %s, process %d: %v, %v; want class %s", row.caller, row.pid, through, err, row.want)
		case row.want == refused && !strings.Contains(err.Error(), "uid"):
			t.Errorf("%v does not say whose it is", err)
		}
	}
}

// placing is an engine that waits before it has a process placed.
type placing struct {
	starts
	meanwhile func()
	place     func(ctx context.Context, pid int) error
}

func (p *placing) PreStart(ctx context.Context, _ ledger.Owner, _ string, pid int) (admission.Started, error) {
	p.meanwhile()
	return admission.Started{}, p.place(ctx, pid)
}

// Who gets the id of a process that was handed over and has ended is not placed instead
// of it, for any caller.
func TestOnlyTheProcessThatWasHandedOver(t *testing.T) {
	t.Parallel()
	const ok = errdefs.Class(-1)
	for name, row := range map[string]struct {
		pid       int
		meanwhile func(proc fstest.MapFS)
		want      errdefs.Class
	}{
		"the same":           {20, func(fstest.MapFS) {}, ok},
		"another":            {20, func(proc fstest.MapFS) { proc["20/stat"] = stat(20, 6) }, errdefs.NotFound},
		"none":               {20, func(proc fstest.MapFS) { delete(proc, "20/stat") }, errdefs.NotFound},
		"not readable":       {20, func(proc fstest.MapFS) { proc["20/stat"] = &fstest.MapFile{} }, errdefs.Unavailable},
		"there was none":     {30, func(proc fstest.MapFS) { proc["30/stat"] = stat(30, 0) }, errdefs.NotFound},
		"was not readable":   {40, func(proc fstest.MapFS) { t.Error("it was not known, and came through") }, errdefs.Unavailable},
		"not the one placed": {0, func(fstest.MapFS) {}, errdefs.Internal},
	} {
		for _, uid := range []uint32{0, 1000} {
			proc := fstest.MapFS{"20/stat": stat(20, 5), "40/stat": &fstest.MapFile{}}
			for _, pid := range []string{"20", "30", "40"} {
				proc[pid+"/status"] = &fstest.MapFile{Data: []byte("Uid:\t1000\t1000\t1000\t1000\n")}
			}
			engine := &placing{meanwhile: func() { row.meanwhile(proc) }, place: stillThere(proc)}
			ctx := peer.NewContext(t.Context(), &peer.Peer{AuthInfo: rpc.Peer{UID: uid}})
			_, err := ownProcesses{engine, proc, 500}.PreStart(ctx, ledger.Owner{}, "id", row.pid)
			if (err == nil) != (row.want == ok) || err != nil && errdefs.ClassOf(err) != row.want {
				t.Errorf("%s, uid %d: %v", name, uid, err)
			}
		}
	}
}

func stat(pid, since int) *fstest.MapFile {
	return &fstest.MapFile{Data: fmt.Appendf(nil, "%d (x) S 1 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 %d 9 10", pid, since)}
}

// TestDirectoryOfTheSocket: what berthd keeps beside its socket is its own, and does not
// keep others from the socket.
func TestDirectoryOfTheSocket(t *testing.T) {
	t.Parallel()
	for _, tree := range []string{apiconfig.TreeKernel, apiconfig.TreeMemory} {
		dir := filepath.Join(t.TempDir(), "run")
		c, _, err := config.Load(config.Sources{Flags: func(c *apiconfig.Config) error {
			c.RootDir, c.Listen, c.Cgroups.Tree, c.Node.KernelTunables = t.TempDir(), dir+"/berth.sock", tree, apiconfig.TunablesIgnore
			return nil
		}})
		if err != nil {
			t.Fatal(err)
		}
		if err := Validate(real.System(), c); err != nil {
			t.Skipf("this machine has no cgroups for berthd: %v", err)
		}
		a, err := Build(t.Context(), c, Environment{
			Log: slog.New(slog.DiscardHandler), Now: time.Now, System: real.System(), Metrics: metrics.New(),
		})
		if err != nil {
			t.Fatal(err)
		}
		for path, want := range map[string]os.FileMode{dir: 0o755, dir + "/claims": 0o700, dir + "/claims/.last-commit": 0o600} {
			if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
				t.Errorf("tree %s: %s: %v, %v; want %s", tree, path, info, err, want)
			}
		}
		if err := a.opened.close(); err != nil {
			t.Error(err)
		}
	}
}

// Processes are looked at again where they are the kernel's.
func TestHandedOverProcessesAreLookedAtAgain(t *testing.T) {
	t.Parallel()
	for _, tree := range []string{apiconfig.TreeKernel, apiconfig.TreeMemory} {
		c, _, err := config.Load(config.Sources{Flags: func(c *apiconfig.Config) error {
			c.RootDir, c.Cgroups.Tree, c.Node.KernelTunables = t.TempDir(), tree, apiconfig.TunablesIgnore
			return nil
		}})
		if err != nil {
			t.Fatal(err)
		}
		if err := Validate(real.System(), c); err != nil {
			t.Skipf("this machine has no cgroups for berthd: %v", err)
		}
		a, err := Build(t.Context(), c, Environment{
			Log: slog.New(slog.DiscardHandler), Now: time.Now, System: real.System(), Metrics: metrics.New(),
		})
		if err != nil {
			t.Fatal(err)
		}
		if (a.kernel.loop.StillThere != nil) != (tree == apiconfig.TreeKernel) {
			t.Errorf("tree %s: processes are looked at again: %v", tree, a.kernel.loop.StillThere != nil)
		}
		if err := a.opened.close(); err != nil {
			t.Error(err)
		}
	}
}

package driver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/berthd/berth/hack/testing/nodetest"
)

// fileOfClaim is where the CDI file of claim a is.
func (p *place) fileOfClaim() string { return filepath.Join(p.root, "cdi", fileName("a")) }

// withEnvironment is a claim whose CDI file has more than the allocation: a variable of another name.
func withEnvironment() *resourceapi.ResourceClaim {
	c := allocated("a", 1, 2, "1Gi")
	c.Status.Allocation.Devices.Config = append(c.Status.Allocation.Devices.Config,
		opaque(resourceapi.AllocationConfigSourceClaim,
			`{"apiVersion": "dra.berthd.github.io/v1alpha1", "kind": "BerthClaimParameters", "environment": "OWN"}`))
	return c
}

// TestRepair: a CDI file that is removed or changed is written again as it was, also by a driver that was started after the claim
// was prepared. That of a claim that was given back is not.
func TestRepair(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]func(path string) error{
		"removed": os.Remove,
		"changed": func(path string) error { return os.WriteFile(path, []byte("{"), 0o644) },
		"another file in its place": func(path string) error {
			return errors.Join(os.Remove(path), os.Symlink("/etc/hostname", path))
		},
		"removed with its directory": func(path string) error { return os.RemoveAll(filepath.Dir(path)) },
		"another directory in place of its own": func(path string) error {
			dir := filepath.Dir(path)
			return errors.Join(os.RemoveAll(dir+".old"), os.Rename(dir, dir+".old"), os.Mkdir(dir, 0o755))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t, "")
			if r := p.prepared(withEnvironment()); r.Err != nil {
				t.Fatal(r.Err)
			}
			before, err := os.ReadFile(p.fileOfClaim())
			if err != nil || !strings.Contains(string(before), "OWN_PLACE_CPUS=") {
				t.Fatalf("%v: %s", err, before)
			}
			for _, restarted := range []bool{false, true} {
				if restarted {
					p.startDriver()
				}
				if err := errors.Join(damage(p.fileOfClaim()), p.repair(t.Context())); err != nil {
					t.Fatal(err)
				}
				info, err := os.Lstat(p.fileOfClaim())
				if err != nil || !info.Mode().IsRegular() {
					t.Fatalf("started again: %v: %v, %v", restarted, info, err)
				}
				if after, err := os.ReadFile(p.fileOfClaim()); err != nil || string(after) != string(before) {
					t.Errorf("started again: %v: %v: %s", restarted, err, after)
				}
			}
			p.unprepare("a")
			if err := p.repair(t.Context()); err != nil {
				t.Fatal(err)
			}
			if _, err := os.Lstat(p.fileOfClaim()); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the claim was given back: %v", err)
			}
		})
	}
}

// TestClaimsAfterRemoval: claims are prepared and given back after their directory was removed, before the files are repaired.
func TestClaimsAfterRemoval(t *testing.T) {
	t.Parallel()
	p := newPlace(t, "")
	for _, uid := range []string{"a", "b"} {
		if r := p.prepared(allocated(uid, 0, 1, "1Gi")); r.Err != nil {
			t.Fatal(r.Err)
		}
		if err := os.RemoveAll(filepath.Join(p.root, "cdi")); err != nil {
			t.Fatal(err)
		}
	}
	p.unprepare("a")
	if r := p.prepared(allocated("c", 1, 1, "1Gi")); r.Err != nil {
		t.Fatal(r.Err)
	}
	if err := p.repair(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.want("repaired", "b: 9; c: 4")
}

// TestRemovedMount: a program in a container still has the removed directory. It ends, so that it is started again with another mount.
func TestRemovedMount(t *testing.T) {
	t.Parallel()
	p := newPlace(t, "")
	if r := p.prepared(allocated("a", 0, 1, "1Gi")); r.Err != nil {
		t.Fatal(r.Err)
	}
	path := filepath.Join(p.root, "cdi")
	mounted, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = mounted.Close() }()
	var failed error
	p.Fail = func(err error) { failed = err }
	p.files.path = fmt.Sprintf("/proc/self/fd/%d", mounted.Fd()) // leads to the directory, as a mount does, wherever that is
	if err := errors.Join(p.repair(t.Context()), failed); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(path); err != nil {
		t.Fatal(err)
	}
	if r := p.prepared(allocated("b", 0, 1, "1Gi")); r.Err == nil || !strings.Contains(r.Err.Error(), "--cdi-directory was removed") ||
		failed != nil {
		t.Errorf("prepared: %v, failed: %v", r.Err, failed)
	}
	p.unprepare("b")
	if err := p.repair(t.Context()); !errors.Is(err, errRemoved) || !errors.Is(failed, errRemoved) {
		t.Errorf("repaired: %v, failed: %v", err, failed)
	}
}

// TestRepairFails: a directory in place of the file is an error that names the claim, and the other files are written nevertheless.
func TestRepairFails(t *testing.T) {
	t.Parallel()
	p := newPlace(t, "")
	for uid, node := range map[string]int{"a": 0, "b": 1} {
		if r := p.prepared(allocated(uid, node, 1, "1Gi")); r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	other := filepath.Join(p.root, "cdi", fileName("b"))
	if err := errors.Join(os.Remove(p.fileOfClaim()), os.MkdirAll(p.fileOfClaim()+"/x", 0o755), os.Remove(other)); err != nil {
		t.Fatal(err)
	}
	if err := p.repair(t.Context()); err == nil || !strings.Contains(err.Error(), "claim default/claim-a") {
		t.Error(err)
	}
	if _, err := os.Stat(other); err != nil {
		t.Error(err)
	}
	if left, err := filepath.Glob(filepath.Join(p.root, "cdi", "*"+unfinished)); err != nil || len(left) > 0 {
		t.Error(left, err)
	}
}

// TestLostFile: the CDI file of a claim was lost while no driver ran. It is written again from the API server's claim, if that is still as
// berthd has it and reserved for a pod.
func TestLostFile(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name   string
		stored func(c *resourceapi.ResourceClaim) *resourceapi.ResourceClaim
		before func(p *place)
		again  bool
	}{
		{name: "it is the same", again: true},
		{name: "it does not exist", stored: func(*resourceapi.ResourceClaim) *resourceapi.ResourceClaim { return nil }},
		{name: "another one has its name", stored: func(c *resourceapi.ResourceClaim) *resourceapi.ResourceClaim { c.UID = "b"; return c }},
		{name: "no pod uses it",
			stored: func(c *resourceapi.ResourceClaim) *resourceapi.ResourceClaim { c.Status.ReservedFor = nil; return c }},
		{name: "it is allocated again",
			stored: func(*resourceapi.ResourceClaim) *resourceapi.ResourceClaim { return allocated("a", 1, 3, "1Gi") }},
		{name: "the kubelet gives it back meanwhile", stored: func(c *resourceapi.ResourceClaim) *resourceapi.ResourceClaim { return c },
			before: func(p *place) {
				read := p.ReadClaim
				p.ReadClaim = func(ctx context.Context, namespace, name string) (*resourceapi.ResourceClaim, error) {
					p.unprepare("a")
					return read(ctx, namespace, name)
				}
			}},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t, "")
			if r := p.prepared(withEnvironment()); r.Err != nil {
				t.Fatal(r.Err)
			}
			before, err := os.ReadFile(p.fileOfClaim())
			if err := errors.Join(err, os.Remove(p.fileOfClaim())); err != nil {
				t.Fatal(err)
			}
			p.startDriver()
			stored := withEnvironment()
			if row.stored != nil {
				stored = row.stored(stored)
			}
			p.api.claims = map[string]*resourceapi.ResourceClaim{"default/claim-a": stored}
			if row.before != nil {
				row.before(p)
			}
			if err := p.prepareLost(t.Context()); err != nil {
				t.Fatal(err)
			}
			after, err := os.ReadFile(p.fileOfClaim())
			if again := err == nil; again != row.again || again && string(after) != string(before) {
				t.Errorf("%v: %s, want %s", err, after, before)
			}
		})
	}
}

// lines is a log that sends the messages of its warnings.
type lines struct{ messages chan string }

func (l lines) Enabled(context.Context, slog.Level) bool { return true }
func (l lines) WithAttrs([]slog.Attr) slog.Handler       { return l }
func (l lines) WithGroup(string) slog.Handler            { return l }

func (l lines) Handle(_ context.Context, r slog.Record) error {
	select {
	case l.messages <- r.Message:
	default:
	}
	return nil
}

// TestLostFileIsTriedAgain: berthd, or the API server, does not answer when the driver begins to look for lost CDI files. The file is
// written when both answer, and not only with the next comparison of all claims.
func TestLostFileIsTriedAgain(t *testing.T) {
	t.Parallel()
	for name, berthdIsAway := range map[string]bool{"berthd answers late": true, "the API server answers late": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t, "")
			c := allocated("a", 1, 2, "1Gi")
			if r := p.prepared(c); r.Err != nil {
				t.Fatal(r.Err)
			}
			if err := os.Remove(p.fileOfClaim()); err != nil {
				t.Fatal(err)
			}
			p.startDriver()
			log := lines{make(chan string, 100)}
			p.Log = slog.New(log)
			p.api.claims = map[string]*resourceapi.ResourceClaim{"default/claim-a": c}
			var late atomic.Bool
			late.Store(!berthdIsAway)
			read := p.ReadClaim
			p.ReadClaim = func(ctx context.Context, namespace, name string) (*resourceapi.ResourceClaim, error) {
				if late.Load() {
					return nil, errors.New("it does not answer")
				}
				return read(ctx, namespace, name)
			}
			if berthdIsAway {
				p.stop()
			}
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan struct{})
			go func() { defer close(ended); p.Follow(ctx, ignored{}) }()
			for message := range log.messages {
				if strings.HasPrefix(message, "claims are not compared") {
					break
				}
			}
			late.Store(false)
			if berthdIsAway {
				p.startBerthd("")
			}
			nodetest.Eventually(t, time.Minute, "the file is written again", func() bool {
				_, err := os.Stat(p.fileOfClaim())
				return err == nil
			})
			cancel()
			<-ended
		})
	}
}

// TestFollowKeepsFiles: a driver that begins to follow berthd writes both kinds of lost files again.
func TestFollowKeepsFiles(t *testing.T) {
	t.Parallel()
	p := newPlace(t, "")
	lost := allocated("a", 1, 2, "1Gi")
	for _, c := range []*resourceapi.ResourceClaim{lost, allocated("b", 0, 2, "1Gi")} {
		if r := p.prepared(c); r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	p.api.claims = map[string]*resourceapi.ResourceClaim{"default/claim-a": lost}
	other := filepath.Join(p.root, "cdi", fileName("b"))
	if err := os.Remove(p.fileOfClaim()); err != nil {
		t.Fatal(err)
	}
	p.startDriver()
	if err := os.Remove(other); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); p.Follow(ctx, ignored{}) }()
	for _, path := range []string{p.fileOfClaim(), other} {
		for _, err := os.Stat(path); err != nil; _, err = os.Stat(path) {
			if t.Context().Err() != nil {
				t.Fatal(err)
			}
			runtime.Gosched()
		}
	}
	cancel()
	<-ended
}

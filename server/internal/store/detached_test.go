package store_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger/journal"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/server/internal/store"
	"github.com/berthd/berth/server/internal/store/epoch"
)

// renewing are options with an epoch for each file.
func renewing() journal.Options {
	o := options(nil)
	o.NewEpochID = epoch.NewID
	return o
}

// TestDetached: whatever is done to the file, its directory or the lock while berthd
// runs, the next commit is acknowledged only if a restart knows it, with all that was
// acknowledged before.
func TestDetached(t *testing.T) {
	t.Parallel()
	older := fill(t, filepath.Join(t.TempDir(), "berth.db"), 2)
	must := func(errs ...error) error { return errors.Join(errs...) }
	for name, c := range map[string]struct {
		do    func(path string) error
		same  bool   // the epoch is the same: the file was never away
		kept  []byte // what stood in its place
		quiet bool   // no notification is needed
	}{
		"nothing":      {do: func(string) error { return nil }, same: true, quiet: true},
		"file removed": {do: os.Remove},
		"file renamed": {do: func(path string) error { return os.Rename(path, path+".away") }},
		"file replaced": {do: func(path string) error {
			return must(os.WriteFile(path+".copy", older, 0o600), os.Rename(path+".copy", path))
		}, kept: older},
		"file written over": {do: func(path string) error { return os.WriteFile(path, older, 0o600) }, kept: older},
		"file truncated":    {do: func(path string) error { return os.Truncate(path, 0) }, kept: []byte{}},
		"a directory in its place": {do: func(path string) error {
			return must(os.Remove(path), os.Mkdir(path, 0o700))
		}},
		"directory removed": {do: func(path string) error { return os.RemoveAll(filepath.Dir(path)) }},
		"directory renamed": {do: func(path string) error { return os.Rename(filepath.Dir(path), filepath.Dir(path)+".away") }},
		"directory emptied": {do: func(path string) error {
			return must(os.RemoveAll(filepath.Dir(path)), os.Mkdir(filepath.Dir(path), 0o700))
		}},
		"lock removed": {do: func(path string) error { return os.Remove(lock(path)) }, same: true},
		"lock replaced": {do: func(path string) error { return must(os.Remove(lock(path)), os.WriteFile(lock(path), nil, 0o600)) },
			same: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "state", "berth.db")
			var told []string
			s := mustOpen(t, path, store.Options{Notice: func(text string) { told = append(told, text) }})
			defer func() { s.Close() }()
			l, _, _, err := s.OpenLedger(t.Context(), renewing(), noon)
			for err == nil && l.View().Generation() < 7 {
				err = step(l)
			}
			if err != nil {
				t.Fatal(err)
			}
			epoch := l.View().EpochID()
			if err := c.do(path); err != nil {
				t.Fatal(err)
			}
			if err := s.Probe(); c.same != (err == nil) || err != nil &&
				(!errors.Is(err, journal.ErrDetached) || errdefs.ClassOf(err) != errdefs.Unavailable) {
				t.Errorf("probe: %v", err)
			}
			for range 3 {
				if err := step(l); err != nil {
					t.Fatalf("commit: %v", err)
				}
			}
			if got := l.View().EpochID() == epoch; got != c.same {
				t.Errorf("the epoch is the same: %t", got)
			}
			if len(told) != 1 && !c.quiet || c.quiet && len(told) > 0 {
				t.Errorf("told: %q", told)
			}
			if err := s.Probe(); err != nil {
				t.Errorf("probe after a commit: %v", err)
			}
			if other, err := store.Open(path, store.Options{}); errdefs.ClassOf(err) != errdefs.Conflict {
				t.Errorf("a second store beside this one: %v, %v", other, err)
			}
			if kept, err := os.ReadFile(path + ".replaced-8"); c.kept != nil && (err != nil || !bytes.Equal(kept, c.kept)) {
				t.Errorf("what stood there has %d bytes, %v; want %d", len(kept), err, len(c.kept))
			}
			if info, err := os.Stat(filepath.Dir(path)); err != nil || info.Mode().Perm() != 0o700 {
				t.Errorf("directory: %v, %v", info, err)
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			s = mustOpen(t, path, store.Options{})
			again, _, damage, err := s.OpenLedger(t.Context(), renewing(), noon)
			if err != nil || damage != nil {
				t.Fatalf("restart: %v, damage %v", err, damage)
			}
			ledgertest.SameView(t, again.View(), l.View())
		})
	}
}

func lock(path string) string { return filepath.Join(filepath.Dir(path), "berthd.lock") }

// TestDetachedForGood: where the state cannot be written again nothing is acknowledged,
// and once it can be, everything is there.
func TestDetachedForGood(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "state", "berth.db")
	s := mustOpen(t, path, store.Options{})
	defer func() { s.Close() }()
	l, _, _, err := s.OpenLedger(t.Context(), renewing(), noon)
	if err == nil {
		err = step(l)
	}
	if err != nil {
		t.Fatal(err)
	}
	before := l.View()
	dir := filepath.Dir(path)
	if err := errors.Join(os.RemoveAll(dir), os.WriteFile(dir, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := step(l); errdefs.ClassOf(err) != errdefs.Unavailable || !strings.Contains(err.Error(), dir) || l.View() != before {
			t.Errorf("commit without a directory: %v", err)
		}
	}
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	if err := step(l); err != nil {
		t.Fatalf("commit after that: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = mustOpen(t, path, store.Options{})
	again, _, _, err := s.OpenLedger(t.Context(), renewing(), noon)
	if err != nil {
		t.Fatal(err)
	}
	ledgertest.SameView(t, again.View(), l.View())
	if again.View().NumPods() != 2 {
		t.Errorf("%d pods", again.View().NumPods())
	}
}

// TestSecondOwner: a process that has taken the lock of a directory that was made again
// is its owner; the first one never writes there again.
func TestSecondOwner(t *testing.T) {
	t.Parallel()
	for name, do := range map[string]func(path string) error{
		"directory": func(path string) error { return os.RemoveAll(filepath.Dir(path)) },
		"lock":      func(path string) error { return os.Remove(lock(path)) },
	} {
		path := filepath.Join(t.TempDir(), "state", "berth.db")
		s := mustOpen(t, path, store.Options{})
		defer func() { s.Close() }()
		l, _, _, err := s.OpenLedger(t.Context(), renewing(), noon)
		if err == nil {
			err = step(l)
		}
		if err == nil {
			err = errors.Join(do(path), os.MkdirAll(filepath.Dir(path), 0o700))
		}
		if err != nil {
			t.Fatal(err)
		}
		f, err := os.OpenFile(lock(path), os.O_CREATE|os.O_RDWR, 0o600)
		if err == nil {
			err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX)
		}
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		for range 2 {
			if err := step(l); err == nil || !strings.Contains(err.Error(), "in use by another berthd") {
				t.Errorf("%s: commit beside another owner: %v", name, err)
			}
		}
		if err := s.Watch(t.Context()); errdefs.ClassOf(err) != errdefs.Conflict {
			t.Errorf("%s: watched: %v", name, err)
		}
		if _, err := os.Stat(path); name == "directory" && !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: a file in another's directory: %v", name, err)
		}
	}
}

// TestCrashInRecreate: killed while the file is written again, the next start finds the
// whole state, or as before no file.
func TestCrashInRecreate(t *testing.T) {
	for _, point := range recreatePoints {
		path := filepath.Join(t.TempDir(), "berth.db")
		t.Setenv(childRemove, "5")
		r := start(t, path, point+":kill:1", 10)
		for _, ok := r.next(t); ok; _, ok = r.next(t) {
		}
		if !r.wait(t) || r.acked != 5 {
			t.Fatalf("the child was not killed at %s, or has acknowledged %d", point, r.acked)
		}
		if point == store.BeforeRecreate {
			if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%s: %v", point, err)
			}
			continue
		}
		s := mustOpen(t, path, store.Options{})
		l, _, damage, err := s.OpenLedger(t.Context(), options(nil), noon)
		if err != nil || damage != nil || l.View().Generation() != 6 {
			t.Fatalf("%s: %v, damage %v", point, err, damage)
		}
		want := viewAt(t, 6)
		for p := range want.Pods() {
			if is, ok := l.View().Pod(p.UID()); !ok || !samePod(is, p) {
				t.Errorf("%s: pod %s is not what it was", point, p.UID())
			}
		}
		if n := len(slices.Collect(l.View().Bindings())); n != want.NumPods() || l.View().NumPods() != want.NumPods() {
			t.Errorf("%s: %d pods, %d bindings", point, l.View().NumPods(), n)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

package store_test

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/server/internal/store"
)

// TestNoRegularFile: whatever stands in the place of the ledger's file, of the lock, or
// of a report is refused by name, at once, and stays what it is.
func TestNoRegularFile(t *testing.T) {
	t.Parallel()
	for what, make := range map[string]func(path string) error{
		"a named pipe": func(path string) error { return syscall.Mkfifo(path, 0o600) },
		"a directory":  func(path string) error { return os.Mkdir(path, 0o700) },
		"a socket": func(path string) error {
			l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
			if err != nil {
				return err
			}
			l.SetUnlinkOnClose(false)
			return l.Close()
		},
		"a device": func(path string) error { return syscall.Mknod(path, syscall.S_IFCHR|0o600, 1<<8|5) }, // zeroes without an end
		"a link": func(path string) error {
			if err := syscall.Mkfifo(path+".pipe", 0o600); err != nil {
				return err
			}
			return os.Symlink(path+".pipe", path)
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			if what == "a link" {
				what = "a named pipe" // is what it leads to
			}
			if what == "a device" && os.Geteuid() != 0 {
				t.Skipf("uid %d may not make a device", os.Geteuid())
			}
			dir, err := os.MkdirTemp("", "store") // short enough for a socket
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { os.RemoveAll(dir) })
			for _, name := range []string{"berth.db", "berthd.lock"} {
				home := filepath.Join(dir, strings.TrimSuffix(name, filepath.Ext(name)))
				path := filepath.Join(home, name)
				if err := os.Mkdir(home, 0o700); err != nil {
					t.Fatal(err)
				}
				if err := make(path); err != nil {
					t.Fatal(err)
				}
				for _, o := range []store.Options{{}, {ReadOnly: true}} {
					if o.ReadOnly && name == "berthd.lock" {
						continue
					}
					s, err := store.Open(filepath.Join(home, "berth.db"), o)
					if err == nil {
						s.Close()
					}
					if errdefs.ClassOf(err) != errdefs.Precondition ||
						!strings.Contains(err.Error(), path+" is "+what+", not a regular file") {
						t.Errorf("%s: %v", name, err)
					}
				}
				if info, err := os.Stat(path); err != nil || info.Mode().IsRegular() {
					t.Errorf("%s: %v, %v", name, info, err)
				}
			}
			path := filepath.Join(dir, "berth.db")
			aside := path + ".damaged-20261120T120000Z"
			for _, name := range []string{path, aside} {
				if err := os.WriteFile(name, []byte("damaged"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if err := make(aside + ".json"); err != nil {
				t.Fatal(err)
			}
			all, err := store.Damages(path)
			if err != nil || len(all) != 1 || !strings.Contains(all[0].Error, what) {
				t.Errorf("reports: %+v, %v", all, err)
			}
			s := mustOpen(t, path, store.Options{})
			defer s.Close()
			if _, _, damage, err := s.OpenLedger(t.Context(), options(nil), noon); err != nil || damage == nil || damage.SetAside == aside {
				t.Errorf("start: %v, damage %+v", err, damage)
			}
		})
	}
}

// TestLink: a link to a regular file is good enough.
func TestLink(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	fill(t, filepath.Join(dir, "elsewhere.db"), 2)
	path := filepath.Join(dir, "berth.db")
	if err := os.Symlink("elsewhere.db", path); err != nil {
		t.Fatal(err)
	}
	s := mustOpen(t, path, store.Options{})
	defer s.Close()
	if l, _, damage, err := s.OpenLedger(t.Context(), options(nil), noon); err != nil || damage != nil || l.View().NumPods() != 1 {
		t.Errorf("%v, damage %v", err, damage)
	}
}

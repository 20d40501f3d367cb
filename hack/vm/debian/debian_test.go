package debian

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/berthd/berth/hack/vm/arch"
)

// bare is a system without a single program.
func bare(t *testing.T) {
	t.Helper()
	t.Setenv("PATH", t.TempDir())
}

// named finds an architecture.
func named(t *testing.T, name string) arch.Arch {
	t.Helper()
	a, err := arch.Named(name)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestWhatIsMissingIsSaid(t *testing.T) {
	bare(t)
	for name, emulator := range map[string]string{"amd64": "qemu-system-x86", "arm64": "qemu-system-arm"} {
		t.Run(name, func(t *testing.T) { whatIsMissingIsSaid(t, named(t, name), emulator) })
	}
}

func whatIsMissingIsSaid(t *testing.T, a arch.Arch, pkg string) {
	s := Store{Arch: a, Cache: filepath.Join(t.TempDir(), "cache"), Log: io.Discard}
	_, emulator := s.QEMU(t.Context())
	_, kernel := s.Kernel(t.Context())
	for err, parts := range map[error][]string{
		emulator: {"missing: " + a.QEMU, "Debian's package " + pkg},
		kernel:   {"missing: a kernel", "Debian's package linux-image-cloud-" + a.Name, "-kernel"},
	} {
		var missing *MissingError
		if !errors.As(err, &missing) {
			t.Errorf("%v is no MissingError", err)
			continue
		}
		for _, part := range parts {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%q does not say %q", err, part)
			}
		}
	}
}

func TestKernelOfTheCache(t *testing.T) {
	bare(t)
	s := Store{Arch: named(t, "arm64"), Cache: t.TempDir(), Log: io.Discard}
	for _, name := range []string{"vmlinuz-6.1.0-56", "vmlinuz-6.1.0-55", "other"} {
		if err := os.WriteFile(filepath.Join(s.Cache, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := s.Kernel(t.Context()); err != nil || filepath.Base(got) != "vmlinuz-6.1.0-56" {
		t.Errorf("%s, %v; want the last one", got, err)
	}
}

// TestListsOfAnotherArchitecture: apt has lists in the cache for it, and its own ones for this machine's.
func TestListsOfAnotherArchitecture(t *testing.T) {
	programs := t.TempDir()
	t.Setenv("PATH", programs)
	if err := os.WriteFile(filepath.Join(programs, "apt-cache"), []byte("#!/bin/sh\necho \"$*\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"amd64", "arm64"} {
		s := Store{Arch: named(t, name), Cache: t.TempDir(), Log: io.Discard}
		got, err := s.apt(t.Context(), "", "apt-cache", "depends", "one")
		if err != nil || !strings.HasSuffix(got, "depends one\n") {
			t.Errorf("%s: %q, %v", name, got, err)
		}
		own := strings.Contains(got, "APT::Architecture="+name) && strings.Contains(got, "Dir::State="+filepath.Join(s.Cache, "apt"))
		if foreign := name != runtime.GOARCH; own != foreign || !foreign && got != "depends one\n" {
			t.Errorf("%s on %s: %q", name, runtime.GOARCH, got)
		}
	}
}

func TestInstallersAreLeftOut(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]bool{
		"perl-base": true, "libperl5.36": true, "debconf": true, "cdebconf": true, "dpkg": true, "usrmerge": true, "usr-is-merged": true,
		"systemd": false, "dbus-daemon": false, "libc6": false, "libdbus-1-3": false, "libpam0g": false, "mount": false,
		"libselinux1": false,
	} {
		if got := installers.MatchString(name); got != want {
			t.Errorf("%s is left out: %t, want %t", name, got, want)
		}
	}
}

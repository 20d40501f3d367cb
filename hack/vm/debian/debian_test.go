package debian

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// bare is a system without a single program.
func bare(t *testing.T) {
	t.Helper()
	t.Setenv("PATH", t.TempDir())
}

func TestWhatIsMissingIsSaid(t *testing.T) {
	bare(t)
	s := Store{Cache: filepath.Join(t.TempDir(), "cache"), Log: io.Discard}
	_, emulator := s.QEMU(t.Context())
	_, kernel := s.Kernel(t.Context())
	for err, parts := range map[error][]string{
		emulator: {"missing: qemu-system-x86_64", "Debian's package qemu-system-x86"},
		kernel:   {"missing: a kernel", "-kernel"},
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
	if runtime.GOARCH != "amd64" {
		t.Skipf("this is %s: no kernel is looked for", runtime.GOARCH)
	}
	bare(t)
	s := Store{Cache: t.TempDir(), Log: io.Discard}
	for _, name := range []string{"vmlinuz-6.1.0-56", "vmlinuz-6.1.0-55", "other"} {
		if err := os.WriteFile(filepath.Join(s.Cache, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := s.Kernel(t.Context()); err != nil || filepath.Base(got) != "vmlinuz-6.1.0-56" {
		t.Errorf("%s, %v; want the last one", got, err)
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

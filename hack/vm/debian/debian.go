// Package debian gets what a virtual machine needs from Debian's packages: the
// emulator, installed into the system, and a kernel, unpacked into a cache.
//
// # Words
//
//   - cache: a folder outside of the repository that keeps what was fetched.
//
// # Invariants
//
//   - Nothing is installed unless the process is root and apt-get is there.
//   - What cannot be had is a MissingError that says what was tried and what came
//     of it.
package debian

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/berthd/berth/hack/vm/arch"
)

// MissingError says what cannot be had on this machine.
type MissingError struct {
	// What is missing, and how a person can get it.
	What, Advice string
	// Err is what went wrong when it was to be fetched; nil if nothing was tried.
	Err error
}

func (e *MissingError) Error() string {
	text := "missing: " + e.What
	if e.Err != nil {
		text += "\n" + e.Err.Error()
	}
	return text + "\n" + e.Advice
}

func (e *MissingError) Unwrap() error { return e.Err }

// Store fetches and keeps.
type Store struct {
	// Arch is the machine's architecture.
	Arch arch.Arch
	// Cache is where its kernels and packages are kept.
	Cache string
	// Log receives messages about slow steps.
	Log io.Writer
}

// QEMU finds the emulator, or installs it.
func (s Store) QEMU(ctx context.Context) (string, error) {
	program, pkg := s.Arch.QEMU, s.Arch.Package
	if path, err := exec.LookPath(program); err == nil {
		return path, nil
	}
	if os.Getuid() != 0 {
		return "", &MissingError{program, "install Debian's package " + pkg + ", run this as root, or name one with -qemu", nil}
	}
	fmt.Fprintf(s.Log, "installing %s\n", pkg)
	host := Store{Arch: arch.Arch{Name: runtime.GOARCH}, Log: s.Log}
	err := host.withLists(ctx, func() error {
		_, err := host.aptGet(ctx, "", "install", "-y", "--no-install-recommends", pkg)
		return err
	})
	if err != nil {
		return "", &MissingError{program, "it comes with Debian's package " + pkg, err}
	}
	path, err := exec.LookPath(program)
	if err != nil {
		return "", &MissingError{program, "Debian's package " + pkg + " has none", err}
	}
	return path, nil
}

// Kernel finds the newest kernel of the cache, or fetches one.
func (s Store) Kernel(ctx context.Context) (string, error) {
	meta := s.Arch.Kernel
	if have, _ := filepath.Glob(filepath.Join(s.Cache, "vmlinuz-*")); len(have) > 0 {
		return slices.Max(have), nil
	}
	var path string
	err := s.withLists(ctx, func() error {
		name, err := s.dependency(ctx, meta)
		if err == nil {
			path, err = s.fetchKernel(ctx, name)
		}
		return err
	})
	if err != nil {
		return "", &MissingError{"a kernel", "it comes with Debian's package " + meta + "; or name one with -kernel", err}
	}
	return path, nil
}

// fetchKernel unpacks the kernel of a package into the cache.
func (s Store) fetchKernel(ctx context.Context, pkg string) (string, error) {
	fmt.Fprintf(s.Log, "fetching %s\n", pkg)
	if err := os.MkdirAll(s.Cache, 0o755); err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp(s.Cache, "fetch")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	debs, err := s.download(ctx, dir, pkg)
	if err != nil {
		return "", err
	}
	for _, deb := range debs {
		if _, err := run(ctx, dir, "dpkg-deb", "-x", deb, dir); err != nil {
			return "", err
		}
	}
	found, err := filepath.Glob(filepath.Join(dir, "boot", "vmlinuz-*"))
	if err != nil || len(found) != 1 {
		return "", fmt.Errorf("package %s: it has %d kernels in /boot, want one", pkg, len(found))
	}
	path := filepath.Join(s.Cache, filepath.Base(found[0]))
	return path, os.Rename(found[0], path)
}

// Module gives the file of a module of a kernel of the cache, which is fetched with its package where it is missing.
func (s Store) Module(ctx context.Context, kernel, name string) (string, error) {
	version := strings.TrimPrefix(filepath.Base(kernel), "vmlinuz-")
	path := filepath.Join(s.Cache, "modules-"+version, name+".ko")
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	pkg := "linux-image-" + version
	err := s.withLists(ctx, func() error { return s.fetchModule(ctx, pkg, path) })
	if err != nil {
		return "", &MissingError{"the kernel's module " + name, "it comes with Debian's package " + pkg, err}
	}
	return path, nil
}

// fetchModule unpacks a module of a package into the cache.
func (s Store) fetchModule(ctx context.Context, pkg, path string) error {
	fmt.Fprintf(s.Log, "fetching %s for %s\n", pkg, filepath.Base(path))
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	dir, err := os.MkdirTemp(s.Cache, "fetch")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	debs, err := s.download(ctx, dir, pkg)
	if err != nil {
		return err
	}
	for _, deb := range debs {
		if _, err := run(ctx, dir, "dpkg-deb", "-x", deb, dir); err != nil {
			return err
		}
	}
	found := ""
	err = filepath.WalkDir(filepath.Join(dir, "lib", "modules"), func(at string, d fs.DirEntry, err error) error {
		if err == nil && d.Name() == filepath.Base(path) {
			found = at
		}
		return err
	})
	if err != nil || found == "" {
		return errors.Join(err, fmt.Errorf("package %s has no %s", pkg, filepath.Base(path)))
	}
	return os.Rename(found, path)
}

// dependency gives the first package that a meta package stands for.
func (s Store) dependency(ctx context.Context, meta string) (string, error) {
	out, err := s.apt(ctx, "", "apt-cache", "depends", "--important", meta)
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(out) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "Depends: "); ok {
			return name, nil
		}
	}
	return "", fmt.Errorf("package %s: it depends on nothing:\n%s", meta, out)
}

// withLists does something that needs the lists of packages; where it fails,
// root fetches the lists and does it once more. The cache's own lists need no root.
func (s Store) withLists(ctx context.Context, do func() error) error {
	err := do()
	if err == nil || os.Getuid() != 0 && s.lists() == "" || errors.Is(err, exec.ErrNotFound) {
		return err
	}
	fmt.Fprintln(s.Log, "fetching the lists of packages")
	if _, update := s.aptGet(ctx, "", "update"); update != nil {
		return errors.Join(err, update)
	}
	return do()
}

// aptGet runs apt-get, which repeats failed downloads, and waits for other package managers.
func (s Store) aptGet(ctx context.Context, dir string, args ...string) (string, error) {
	return s.apt(ctx, dir, "apt-get", append([]string{"-q", "-o", "Acquire::Retries=3", "-o", "DPkg::Lock::Timeout=120"}, args...)...)
}

// apt runs a program of apt, for another architecture than this machine's with lists in the cache. The machine itself never
// hears of that architecture.
func (s Store) apt(ctx context.Context, dir, program string, args ...string) (string, error) {
	if lists := s.lists(); lists != "" {
		for _, part := range []string{"lists", "archives"} {
			if err := os.MkdirAll(filepath.Join(lists, part, "partial"), 0o755); err != nil {
				return "", err
			}
		}
		args = append([]string{
			"-o", "APT::Architecture=" + s.Arch.Name, "-o", "APT::Architectures::=" + s.Arch.Name, "-o", "Dir::State=" + lists,
			"-o", "Dir::State::status=/dev/null", "-o", "Dir::Cache=" + lists,
		}, args...)
	}
	return run(ctx, dir, program, args...)
}

// lists is the folder of apt's lists in the cache; empty where apt's own serve.
func (s Store) lists() string {
	if s.Arch.Name == runtime.GOARCH {
		return ""
	}
	return filepath.Join(s.Cache, "apt")
}

// run runs a command and gives its output; the error holds what it said.
func run(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}

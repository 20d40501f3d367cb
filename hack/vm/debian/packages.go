package debian

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Packages gives the files of packages and of everything that they depend on but
// what an installation alone needs: from the cache's folder of the given name, or
// fetched into it.
func (s Store) Packages(ctx context.Context, name string, pkgs ...string) ([]string, error) {
	dir := filepath.Join(s.Cache, name)
	if have, _ := filepath.Glob(filepath.Join(dir, "*.deb")); len(have) > 0 {
		return have, nil
	}
	err := s.withLists(ctx, func() error { return s.fetchPackages(ctx, dir, pkgs) })
	if err != nil {
		return nil, &MissingError{strings.Join(pkgs, ", "), "they are packages of Debian", err}
	}
	return filepath.Glob(filepath.Join(dir, "*.deb"))
}

// fetchPackages fills a folder of the cache, wholly or not at all.
func (s Store) fetchPackages(ctx context.Context, dir string, pkgs []string) error {
	all, err := s.closure(ctx, pkgs)
	if err != nil {
		return err
	}
	fmt.Fprintf(s.Log, "fetching %s with what they need, %d packages\n", strings.Join(pkgs, ", "), len(all))
	if err := os.MkdirAll(s.Cache, 0o755); err != nil {
		return err
	}
	part, err := os.MkdirTemp(s.Cache, "fetch")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(part) }()
	if _, err := s.download(ctx, part, all...); err != nil {
		return err
	}
	return os.Rename(part, dir)
}

// installers are packages that others depend on for the sake of their installation,
// and alternatives to what is taken.
var installers = regexp.MustCompile(`^(adduser|c?debconf|dpkg|gcc-.*|init-system-helpers|install-info|passwd|perl.*|readline-common|tar|usr-?is-merged|usrmerge|` +
	`lib(db5|debian-installer|elogind|file-find|gdbm|newt|number-compare|pam-modules|perl|readline|semanage|sepol|slang|text).*)$`)

// closure lists packages with what they depend on, sorted.
func (s Store) closure(ctx context.Context, pkgs []string) ([]string, error) {
	out, err := s.apt(ctx, "", "apt-cache", append([]string{
		"depends", "--recurse", "--no-recommends", "--no-suggests", "--no-conflicts", "--no-breaks", "--no-replaces", "--no-enhances",
	}, pkgs...)...)
	if err != nil {
		return nil, err
	}
	var all []string
	for line := range strings.Lines(out) {
		// Names stand at the margin; virtual packages in angle brackets.
		name := strings.TrimRight(line, "\n")
		if !strings.HasPrefix(name, " ") && !strings.HasPrefix(name, "<") && !strings.Contains(name, ":") &&
			(!installers.MatchString(name) || slices.Contains(pkgs, name)) {
			all = append(all, name)
		}
	}
	slices.Sort(all)
	all = slices.Compact(all)
	if len(all) == 0 {
		return nil, fmt.Errorf("packages %q: apt-cache knows none", pkgs)
	}
	return all, nil
}

// download fetches packages into a folder.
func (s Store) download(ctx context.Context, dir string, pkgs ...string) ([]string, error) {
	if _, err := s.aptGet(ctx, dir, append([]string{"download"}, pkgs...)...); err != nil {
		return nil, err
	}
	return filepath.Glob(filepath.Join(dir, "*.deb"))
}

// Files calls visit for everything that a package holds. Nothing of the package is
// run.
func Files(ctx context.Context, deb string, visit func(h *tar.Header, data io.Reader) error) error {
	text, err := run(ctx, "", "dpkg-deb", "--fsys-tarfile", deb)
	if err != nil {
		return err
	}
	for r := tar.NewReader(bytes.NewReader([]byte(text))); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = visit(h, r)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", filepath.Base(deb), err)
		}
	}
}

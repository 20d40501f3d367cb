package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"
	"golang.org/x/mod/semver"
	"golang.org/x/mod/zip"
)

// writeModule puts a version of the module of a repository into a directory as the module proxy's protocol has it
// (go.dev/ref/mod#goproxy-protocol), with the files that are committed.
func writeModule(ctx context.Context, source, dir, commit, version string) error {
	if semver.Canonical(version) != version {
		return fmt.Errorf("-version %s: expected a version as in v0.1.0", version)
	}
	git := func(args ...string) (string, error) {
		c := exec.CommandContext(ctx, "git", args...)
		c.Dir = source
		text, err := c.Output()
		if err != nil {
			return "", fmt.Errorf("-commit %s: git %s: %w", commit, args[0], err)
		}
		return strings.TrimSpace(string(text)), nil
	}
	root, err := git("rev-parse", "--show-toplevel")
	if err != nil {
		return err
	}
	revision, err := git("rev-parse", "--verify", "--end-of-options", commit+"^{commit}")
	if err != nil {
		return err
	}
	seconds, err := git("log", "-1", "--format=%cI", revision)
	if err != nil {
		return err
	}
	mod, err := git("show", revision+":go.mod")
	if err != nil {
		return err
	}
	path := modfile.ModulePath([]byte(mod))
	escaped, err := module.EscapePath(path)
	if err != nil {
		return err
	}
	at, err := time.Parse(time.RFC3339, seconds)
	if err != nil {
		return err
	}
	to := filepath.Join(dir, escaped, "@v")
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	info, err := json.Marshal(map[string]any{"Version": version, "Time": at.UTC()})
	if err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(to, version+".zip")); err == nil {
		return fmt.Errorf("-version %s: is published already, and a module's version never changes", version)
	}
	var zipped bytes.Buffer
	if err := zip.CreateFromVCS(&zipped, module.Version{Path: path, Version: version}, root, revision, ""); err != nil {
		return err
	}
	for _, f := range []struct {
		end  string
		text []byte
	}{{".info", info}, {".mod", []byte(mod + "\n")}, {".part", zipped.Bytes()}} {
		if err := os.WriteFile(filepath.Join(to, version+f.end), f.text, 0o644); err != nil {
			return err
		}
	}
	// What is in the list is whole.
	if err := os.Rename(filepath.Join(to, version+".part"), filepath.Join(to, version+".zip")); err != nil {
		return err
	}
	list, err := os.OpenFile(filepath.Join(to, "list"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(list, version)
	return errors.Join(err, list.Close())
}

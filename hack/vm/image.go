package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"

	"github.com/berthd/berth/hack/vm/archive"
	"github.com/berthd/berth/hack/vm/job"
)

// compiled is a package's test binary on the host.
type compiled struct {
	// pkg is the import path, dir the package's folder, binary the program.
	pkg, dir, binary string
	index            int
}

// place is where the package's folder is in the guest.
func (c compiled) place() string { return path.Join("/src", c.pkg) }

// program is where its test binary is in the guest. The folder is not the
// package's: its path is part of names that tests make.
func (c compiled) program() string { return fmt.Sprintf("/berth/%d.test", c.index) }

// job is what the guest is told.
func (c compiled) job(o options) job.Test {
	args := []string{"-test.v", "-test.timeout=" + o.timeout.String(), fmt.Sprintf("-test.parallel=%d", o.parallel)}
	if o.run != "" {
		args = append(args, "-test.run="+o.run)
	}
	if o.skip != "" {
		args = append(args, "-test.skip="+o.skip)
	}
	return job.Test{
		Package: c.pkg, Binary: c.program(), Dir: c.place(), Args: args,
		// The guest may have many more CPUs than there are to emulate them.
		Env: []string{fmt.Sprintf("GOMAXPROCS=%d", o.parallel)},
	}
}

// build compiles the tests of the packages, and the guest's init, without cgo so
// that they need nothing else in the guest.
func build(ctx context.Context, o options, dir string) ([]compiled, error) {
	const small = "-ldflags=-s -w"
	if _, err := gotool(ctx, "build", small, "-o", filepath.Join(dir, "init"), "github.com/berthd/berth/hack/vm/init"); err != nil {
		return nil, err
	}
	const format = "{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}\t{{.Dir}}{{end}}"
	list, err := gotool(ctx, append([]string{"list", "-f", format}, o.packages...)...)
	if err != nil {
		return nil, err
	}
	var all []compiled
	for line := range strings.Lines(list) {
		pkg, folder, ok := strings.Cut(strings.TrimSpace(line), "\t")
		if !ok {
			continue
		}
		c := compiled{pkg: pkg, dir: folder, index: len(all), binary: filepath.Join(dir, fmt.Sprintf("%d.test", len(all)))}
		if _, err := gotool(ctx, "test", "-c", small, "-o", c.binary, pkg); err != nil {
			return nil, err
		}
		all = append(all, c)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("no tests in %q", o.packages)
	}
	return all, nil
}

// gotool runs the go command for the guest's system.
func gotool(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64")
	out, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("%w\n%s", err, exit.Stderr)
		}
		return "", fmt.Errorf("go %s: %w", strings.Join(args, " "), err)
	}
	return string(out), nil
}

// pack writes the guest's file system: init, the job, the test binaries, and the
// folder testdata of each package where the test looks for it.
func pack(image, guestInit string, j job.Job, tests []compiled) (err error) {
	file, err := os.Create(image)
	if err != nil {
		return err
	}
	defer func() {
		if closed := file.Close(); err == nil {
			err = closed
		}
	}()
	a := archive.New(file)
	a.Device("/dev/console", 5, 1)
	a.Device("/dev/null", 1, 3)
	for _, dir := range []string{"/proc", "/sys", "/tmp", "/run", "/root"} {
		a.Folder(dir)
	}
	a.File("/init", guestInit)
	text, err := json.Marshal(j)
	if err != nil {
		return err
	}
	a.Bytes(job.Path, 0o644, text)
	for _, t := range tests {
		a.Folder(t.place())
		a.File(t.program(), t.binary)
		data := filepath.Join(t.dir, "testdata")
		if _, err := os.Stat(data); err == nil {
			a.Tree(path.Join(t.place(), "testdata"), data)
		} else if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return a.Close()
}

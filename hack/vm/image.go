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
	"slices"
	"strings"

	"github.com/berthd/berth/hack/vm/arch"
	"github.com/berthd/berth/hack/vm/archive"
	"github.com/berthd/berth/hack/vm/job"
	"github.com/berthd/berth/hack/vm/shape"
	"github.com/berthd/berth/hack/vm/userland"
)

// compiled is a package's test binary on the host.
type compiled struct {
	// pkg is the import path, run the tests that are requested.
	pkg, run string
	// binary is the program.
	binary string
	index  int
}

// source is where a package's folder is in the VM.
func source(pkg string) string { return path.Join("/src", pkg) }

// program is where the test binary is in the VM: not in the package's folder,
// whose path is too long for the names that tests make of it.
func (c compiled) program() string { return fmt.Sprintf("/berth/%d.test", c.index) }

// job has the instructions for the VM.
func (c compiled) job(o options) job.Test {
	args := []string{
		"-test.v", "-test.timeout=" + o.timeout.String(),
		fmt.Sprintf("-test.parallel=%d", o.parallel), fmt.Sprintf("-test.count=%d", o.count),
	}
	if c.run != "" {
		args = append(args, "-test.run="+c.run)
	}
	if o.short {
		args = append(args, "-test.short")
	}
	if o.skip != "" {
		args = append(args, "-test.skip="+o.skip)
	}
	return job.Test{
		Package: c.pkg, Binary: c.program(), Dir: source(c.pkg), Args: args,
		Env: append([]string{
			// The VM may have many more CPUs than there are to emulate them.
			fmt.Sprintf("GOMAXPROCS=%d", o.parallel),
			job.ShapeEnv + "=" + o.shape,
		}, o.env...),
	}
}

// build compiles the tests of the packages, and the VM's init, without cgo or with a static
// C library, so that they need nothing else in the VM.
func build(ctx context.Context, o options, dir string) ([]compiled, error) {
	const small = "-ldflags=-s -w"
	test := []string{"test", "-c", small}
	cgo := "CGO_ENABLED=0"
	if o.cgo {
		test = []string{"test", "-c", small + " -linkmode external -extldflags -static", "-tags=netgo,osusergo"}
		cgo = "CGO_ENABLED=1"
	}
	goarch := o.arch.Name
	_, err := gotool(ctx, goarch, "CGO_ENABLED=0", "build", small, "-o", filepath.Join(dir, "init"), module+"/hack/vm/init")
	if err != nil {
		return nil, err
	}
	var all []compiled
	for _, arg := range o.packages {
		pattern, run, ok := strings.Cut(arg, ":")
		if !ok {
			run = o.run
		}
		list, err := gotool(ctx, goarch, cgo, "list", "-f", "{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}", pattern)
		if err != nil {
			return nil, err
		}
		for pkg := range strings.FieldsSeq(list) {
			c := compiled{pkg: pkg, run: run, index: len(all), binary: filepath.Join(dir, fmt.Sprintf("%d.test", len(all)))}
			if _, err := gotool(ctx, goarch, cgo, append(slices.Clone(test), "-o", c.binary, pkg)...); err != nil {
				return nil, err
			}
			all = append(all, c)
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("no tests in %q", o.packages)
	}
	return all, nil
}

// module is the path of the module whose tests are run.
const module = "github.com/berthd/berth"

// gotool runs the go command for the VM's system; cgo sets the variable CGO_ENABLED.
func gotool(ctx context.Context, goarch, cgo string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Env = append(os.Environ(), cgo, "GOOS=linux", "GOARCH="+goarch)
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

// image is the VM's file system.
type image struct {
	// path is where it is written, init the VM's program on the host.
	path, init string
	arch       arch.Arch
	job        job.Job
	tests      []compiled
	// debs are the packages of a VM with a system of its own.
	debs []string
	// files come from the host.
	files []addition
	// parts can be plugged into the machine.
	parts []shape.Part
	// kept are the lines that the boots before have kept.
	kept []string
}

// pack writes the image: init, the job, the test binaries, and the folders
// testdata of the whole module where its tests look for them.
func (i image) pack(ctx context.Context) (err error) {
	file, err := os.Create(i.path)
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
	a.File(userland.Init, i.init)
	text, err := json.Marshal(i.job)
	if err != nil {
		return err
	}
	a.Bytes(job.Path, 0o644, text)
	a.Link(job.Line, i.arch.Line)
	a.Bytes(job.Kept, 0o644, []byte(strings.Join(i.kept, "")))
	for _, t := range i.tests {
		a.Folder(source(t.pkg))
		a.File(t.program(), t.binary)
	}
	if err := packData(ctx, a, i.arch.Name); err != nil {
		return err
	}
	if len(i.debs) > 0 {
		if err := userland.Pack(ctx, a, i.debs); err != nil {
			return err
		}
	}
	for _, f := range i.files {
		a.Tree(f.vm, f.host)
	}
	return a.Close()
}

// packData adds the folders testdata.
func packData(ctx context.Context, a *archive.Writer, goarch string) error {
	list, err := gotool(ctx, goarch, "CGO_ENABLED=0", "list", "-find", "-f", "{{.ImportPath}}\t{{.Dir}}", module+"/...")
	if err != nil {
		return err
	}
	for line := range strings.Lines(list) {
		pkg, dir, _ := strings.Cut(strings.TrimSpace(line), "\t")
		data := filepath.Join(dir, "testdata")
		if _, err := os.Stat(data); err == nil {
			a.Tree(path.Join(source(pkg), "testdata"), data)
		} else if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

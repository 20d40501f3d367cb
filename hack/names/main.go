// Command names replaces the names of the project that its owner chooses, and checks what a release needs.
//
//	go run ./hack/names                      prints the names of hack/names/names.yaml
//	go run ./hack/names -set NAME=VALUE,...  replaces names in all tracked files, and generates anew what is made of them
//	go run ./hack/names -check-release       checks what a tag needs (make check-release)
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

func main() {
	set := flag.String("set", "", "names to replace, as images=ghcr.io/OWNER,contact=security@OWNER.org")
	release := flag.Bool("check-release", false, "check what a tag needs")
	flag.Parse()
	if err := run(context.Background(), os.Stdout, *set, *release, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer, set string, release bool, args []string) error {
	if len(args) > 0 || set != "" && release {
		return fmt.Errorf("use -set NAME=VALUE,... or -check-release, and nothing else (got %q)", args)
	}
	r := repository{ctx: ctx, out: out, dir: "."}
	top, err := r.git("rev-parse", "--show-toplevel")
	if err != nil {
		return err
	}
	r.dir = strings.TrimSpace(top)
	r.call = r.command
	now, err := r.names()
	switch {
	case err != nil:
		return err
	case release:
		return r.checkRelease(now)
	case set == "":
		for _, k := range kinds {
			fmt.Fprintf(out, "%-9s %s\n", k.name, now[k.name])
		}
		return nil
	}
	next, err := parse(now, set)
	if err != nil {
		return err
	}
	return r.set(now, next)
}

// repository is a working tree of the project.
type repository struct {
	ctx context.Context
	out io.Writer
	dir string
	// call runs a command of the project.
	call func(program string, args ...string) error
}

func (r repository) path(name string) string { return filepath.Join(r.dir, filepath.FromSlash(name)) }

func (r repository) git(args ...string) (string, error) {
	cmd := exec.CommandContext(r.ctx, "git", args...)
	cmd.Dir, cmd.Stderr = r.dir, os.Stderr
	text, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("git %s: %w", strings.Join(args, " "), err)
	}
	return string(text), nil
}

// command runs a command in the tree, and shows its output.
func (r repository) command(program string, args ...string) error {
	line := strings.Join(append([]string{program}, args...), " ")
	fmt.Fprintln(r.out, "$", line)
	cmd := exec.CommandContext(r.ctx, program, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = r.dir, r.out, r.out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w", line, err)
	}
	return nil
}

// changes are the lines of git status, and empty for a clean tree.
func (r repository) changes() (string, error) { return r.git("status", "--porcelain") }

// files are the names of all tracked files.
func (r repository) files() ([]string, error) {
	text, err := r.git("ls-files", "-z")
	return strings.Split(strings.TrimSuffix(text, "\x00"), "\x00"), err
}

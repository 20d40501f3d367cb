package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/berthd/berth/hack/vm/emulator"
	"github.com/berthd/berth/hack/vm/job"
	"github.com/berthd/berth/hack/vm/monitor"
	"github.com/berthd/berth/hack/vm/shape"
)

// errCut ends a machine whose power is cut.
var errCut = errors.New("the power was cut")

// mostKept is how many lines a boot keeps at most before it is cut.
const mostKept = 400

// boots boots the machine once, or with -reboots or -cuts so often more, on the same disk. With -cuts all boots
// but the last are killed after a random number of lines that their tests have kept: a
// line is written before the test continues, so the cut comes at any point of its work.
func (o options) boots(ctx context.Context, cfg emulator.Config, i image, stdout io.Writer) (passed bool, err error) {
	for boot := range o.cuts + o.reboots + 1 {
		last := boot == o.cuts+o.reboots
		i.job.Tests = nil
		for _, t := range i.tests {
			test := t.job(o)
			test.Env = append(test.Env, partsEnv(i.parts)...)
			test.Env = append(test.Env, o.diskEnv(boot, last)...)
			i.job.Tests = append(i.job.Tests, test)
		}
		if err := i.pack(ctx); err != nil {
			return false, err
		}
		r := &report{out: stdout, jobs: i.job.Tests, verbose: o.verbose, noSkip: o.noSkip, passed: true, started: time.Now()}
		if last || o.reboots > 0 {
			if err := emulator.Run(ctx, cfg, o.plugging(ctx, cfg, i.parts, r)); err != nil {
				return false, fmt.Errorf("%w%s", err, r.unfinished())
			}
			if last || !r.passed {
				return r.passed, nil
			}
			fmt.Fprintf(stdout, "boot %d is over\n", boot)
			continue
		}
		kept, err := o.cut(ctx, cfg, r)
		if err != nil {
			return false, err
		}
		i.kept = append(i.kept, kept...)
		fmt.Fprintf(stdout, "cut %d after %d lines\n", boot+1, len(kept))
	}
	panic("unreachable: the last boot returns")
}

// diskEnv names the disk of a test and the way in which the machine ends.
func (o options) diskEnv(boot int, last bool) (env []string) {
	if o.diskMiB > 0 {
		env = append(env, job.DiskEnv+"="+job.Disk, job.KeptEnv+"="+job.Kept, fmt.Sprintf("%s=%d", job.BootEnv, boot))
	}
	switch {
	case last:
		env = append(env, job.LastEnv+"=1")
	case o.cuts > 0:
		env = append(env, job.CutEnv+"=1")
	}
	return env
}

// partsEnv names the parts that can be plugged in.
func partsEnv(parts []shape.Part) []string {
	var names []string
	for _, p := range parts {
		names = append(names, p.Name)
	}
	return []string{job.PartsEnv + "=" + strings.Join(names, " ")}
}

// cut boots the machine and kills it. It returns the lines to be kept. A boot whose
// tests come to their end has failed: they are to continue until the cut.
func (o options) cut(ctx context.Context, cfg emulator.Config, r *report) (kept []string, err error) {
	after := 1 + rand.IntN(mostKept)
	ctx, kill := context.WithCancelCause(ctx)
	defer kill(nil)
	var said lines
	err = emulator.Run(ctx, cfg, func(e job.Event) {
		r.handle(e)
		for _, line := range said.of(e) {
			if text, ok := strings.CutPrefix(line, job.Keep); ok {
				if kept = append(kept, text+"\n"); len(kept) == after {
					kill(errCut) // what it still says counts too
				}
			}
		}
	})
	switch {
	case errors.Is(err, errCut):
		return kept, nil
	case err == nil:
		err = fmt.Errorf("the tests ended after %d of %d lines, before the cut", len(kept), after)
	}
	return nil, fmt.Errorf("%w%s", err, r.unfinished())
}

// plugging returns a handler of events that also plugs parts into the machine, and unplugs them, as its tests request.
func (o options) plugging(ctx context.Context, cfg emulator.Config, parts []shape.Part, r *report) func(job.Event) {
	if len(parts) == 0 {
		return r.handle
	}
	var said lines
	return func(e job.Event) {
		r.handle(e)
		for _, line := range said.of(e) {
			command, ok, err := monitor.Request(parts, line)
			if !ok {
				continue
			}
			if err == nil {
				err = monitor.Execute(ctx, cfg.Monitor, command)
			}
			if err != nil { // the test waits in vain, and fails, too
				r.handle(job.Event{Kind: job.Trouble, Text: fmt.Sprintf("%s: %s", line, err)})
			}
		}
	}
}

// lines are the whole lines in what tests print.
type lines struct{ rest string }

// of returns the lines that end in an event.
func (l *lines) of(e job.Event) (whole []string) {
	if e.Kind != job.Output {
		return nil
	}
	l.rest += e.Text
	for {
		line, more, ok := strings.Cut(l.rest, "\n")
		if !ok {
			return whole
		}
		whole, l.rest = append(whole, line), more
	}
}

// makeDisk makes a file with an ext4 file system that holds copies of files and folders.
func makeDisk(ctx context.Context, dir string, mib int, files []addition) (string, error) {
	path, content := filepath.Join(dir, "disk"), filepath.Join(dir, "content")
	if err := os.Mkdir(content, 0o755); err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(content) }()
	for _, f := range files {
		target := filepath.Join(content, f.vm)
		if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
			return "", err
		}
		if out, err := exec.CommandContext(ctx, "cp", "-a", f.host, target).CombinedOutput(); err != nil {
			return "", fmt.Errorf("-disk-add %s: %w: %s", f.host, err, out)
		}
	}
	f, err := os.Create(path)
	if err != nil {
		return "", err
	}
	if err := errors.Join(f.Truncate(int64(mib)<<20), f.Close()); err != nil {
		return "", err
	}
	if out, err := exec.CommandContext(ctx, "mkfs.ext4", "-q", "-F", "-d", content, path).CombinedOutput(); err != nil {
		return "", fmt.Errorf("-disk needs mkfs.ext4, of the package e2fsprogs: %w: %s", err, out)
	}
	return path, nil
}

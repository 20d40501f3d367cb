package plugintest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	devicev1 "github.com/berthd/berth/api/berth/device/v1"
	"github.com/berthd/berth/clients/berth"
)

// Berthd finds the program of berthd: the named one, the one next to this program, or the one in
// PATH.
func Berthd(named string) (string, error) {
	if named != "" {
		path, err := exec.LookPath(named)
		if err != nil {
			return "", fmt.Errorf("berthd: %w", err)
		}
		return path, nil
	}
	name := "berthd"
	if runtime.GOOS == "windows" {
		name += ".exe"
	}
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find berthd next to this program: %w", err)
	}
	beside := filepath.Join(filepath.Dir(self), name)
	if path, err := exec.LookPath(beside); err == nil {
		return path, nil
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("there is no berthd at %s, and none in PATH: it comes with berthctl ('make build'), or name it with --berthd", beside)
	}
	return path, nil
}

// daemon is a berthd of the test's own: nothing of it is outside of its folder, and
// its cgroups are only in its memory.
type daemon struct {
	program, root string
	client        *berth.Client
	process       *process // nil while it does not run

	mu sync.Mutex
	// opened is when the plugin of each resource came last, and ends are those that have gone, by its log; guarded by mu.
	opened map[string]time.Time
	ends   []ending
}

const settings = `apiVersion: config.berthd.github.io/v1alpha1
kind: BerthConfiguration
providers: {allocateTimeout: %[1]s, preStartTimeout: %[1]s, callTimeout: %[1]s}
limits: {podResourcesWait: 1ms}
`

// newDaemon prepares one that waits so long for an answer of a plugin.
func newDaemon(ctx context.Context, program, root string, timeout time.Duration) (*daemon, error) {
	if err := os.WriteFile(filepath.Join(root, "berth.yaml"), fmt.Appendf(nil, settings, timeout), 0o600); err != nil {
		return nil, err
	}
	client, err := berth.Dial(ctx, filepath.Join(root, "berth.sock"), berth.Options{})
	if err != nil {
		return nil, err
	}
	return &daemon{program: program, root: root, client: client, opened: map[string]time.Time{}}, nil
}

// start runs it until stop, and waits until it answers.
func (d *daemon) start(ctx context.Context) error {
	p, err := run([]string{
		d.program, "--root-dir", d.root, "--config", filepath.Join(d.root, "berth.yaml"),
		"--cgroup-tree", "memory", "--topology-manager-policy", "best-effort", "--node-fit=false", "--fail-swap-on=false",
	}, "", d.read)
	if err != nil {
		return err
	}
	d.process = p
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case <-p.ended:
			cancel(errors.New("it ended"))
		case <-ctx.Done():
		}
	}()
	if err := d.client.WaitReady(ctx); err != nil {
		text := p.excerpt()
		d.stop(ctx)
		return fmt.Errorf("%s does not start: %w; %s", d.program, err, text)
	}
	return nil
}

// stop ends it.
func (d *daemon) stop(ctx context.Context) {
	if d.process != nil {
		_ = d.process.stop(ctx)
		d.process = nil
	}
}

// resources lists the resources with plugins.
func (d *daemon) resources(ctx context.Context) ([]*devicev1.Resource, error) {
	resp, err := d.client.Device().GetState(ctx, &devicev1.GetStateRequest{})
	return resp.GetResources(), err
}

// look is the interval of checks.
const look = 20 * time.Millisecond

// until waits for a state of the resources, until ctx ends.
func (d *daemon) until(ctx context.Context, done func([]*devicev1.Resource) bool) error {
	tick := time.NewTicker(look)
	defer tick.Stop()
	for {
		now, err := d.resources(ctx)
		if err == nil && done(now) {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		}
	}
}

// process is a program that was started here.
type process struct {
	cmd   *exec.Cmd
	ended chan struct{}
	err   error // how it ended; once ended is closed
	// asked is set before the program is stopped or killed.
	called atomic.Bool

	// line is called for each line that it writes; nil for none.
	line func(string)

	// The rest is guarded by mu.
	mu    sync.Mutex
	first []byte       // the beginning of what it wrote
	out   bytes.Buffer // the end of what it wrote, or all
	cut   bool         // out does not have all
	rest  []byte       // of a line that is not whole yet
}

// How much of what a program writes is kept: of its beginning, and of its end.
const (
	keptFirst = 4 << 10
	kept      = 64 << 10
)

// Write takes what the program writes.
func (p *process) Write(text []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.first = append(p.first, text[:min(len(text), keptFirst-len(p.first))]...)
	p.out.Write(text)
	if extra := p.out.Len() - kept; extra > 0 {
		p.cut = true
		p.out.Next(extra)
	}
	if p.line == nil {
		return len(text), nil
	}
	p.rest = append(p.rest, text...)
	for {
		line, rest, whole := bytes.Cut(p.rest, []byte("\n"))
		if !whole {
			return len(text), nil
		}
		p.line(string(line))
		p.rest = rest
	}
}

// run starts a program with its arguments; where kubelet is not empty, that folder
// is /var/lib/kubelet to it. line is called for each line that it writes; nil for none.
func run(command []string, kubelet string, line func(string)) (*process, error) {
	cmd := exec.Command(command[0], command[1:]...)
	if kubelet != "" {
		inside, err := withKubeletDir(command, kubelet)
		if err != nil {
			return nil, err
		}
		cmd = inside
	}
	p := &process{cmd: cmd, ended: make(chan struct{}), line: line}
	cmd.Stdout, cmd.Stderr = p, p
	// A child that keeps the output open is not waited for.
	cmd.WaitDelay = time.Second
	ofItsOwn(cmd)
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", command[0], err)
	}
	go func() { p.err = cmd.Wait(); close(p.ended) }()
	return p, nil
}

// What is shown of an output: so many lines of its beginning and of its end, and so many characters of each.
const (
	shownLines = 3
	maxLine    = 300
)

// excerpt is what the program wrote first and last. A wrong use is explained at the beginning, before the
// usage, and most other ends are explained at the end.
func (p *process) excerpt() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	lines := linesOf(p.out.String())
	first, last := lines[:min(len(lines), shownLines)], lines[max(0, len(lines)-shownLines):]
	if p.cut {
		first = linesOf(string(p.first))
		first = first[:min(len(first), shownLines)]
	}
	shown := append(append(slices.Clone(first), "…"), last...)
	if len(lines) <= 2*shownLines && !p.cut {
		shown = lines
	}
	// What Go writes of a crash begins with its reason, and ends with many lines of where everything was.
	for i, line := range lines {
		if strings.HasPrefix(line, "panic: ") || strings.HasPrefix(line, "fatal error: ") {
			shown = lines[i:min(len(lines), i+shownLines)]
			break
		}
	}
	if len(shown) == 0 {
		return "it wrote nothing"
	}
	for i, line := range shown {
		if text := []rune(line); len(text) > maxLine {
			shown[i] = string(text[:maxLine]) + "…"
		}
	}
	return "it wrote: " + strings.Join(shown, "; ")
}

// linesOf returns the lines of a text that are not empty, without indents and tabs.
func linesOf(text string) (out []string) {
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(strings.ReplaceAll(line, "\t", " ")); line != "" {
			out = append(out, line)
		}
	}
	return out
}

// crashed returns how the program ended, if it was not stopped by this package.
func (p *process) crashed() error {
	select {
	case <-p.ended:
	default:
		return nil
	}
	if p.called.Load() {
		return nil
	}
	how := "exit code 0"
	if p.err != nil {
		how = p.err.Error()
	}
	return fmt.Errorf("%w (%s); %s", errEnded, how, p.excerpt())
}

// stop terminates the program. It kills the program when ctx ends, and returns that as the error.
func (p *process) stop(ctx context.Context) error {
	p.called.Store(true)
	terminate(p.cmd)
	select {
	case <-p.ended:
		return nil
	case <-ctx.Done():
		p.kill()
		return ctx.Err()
	}
}

// kill kills the program and its children, as in a crash.
func (p *process) kill() {
	p.called.Store(true)
	kill(p.cmd)
	<-p.ended
}

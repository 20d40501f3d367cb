package plugintest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	devicev1 "github.com/berthd/berth/api/berth/device/v1"
)

// Plugin identifies the tested plugin.
type Plugin struct {
	// Socket of a running plugin. It is registered by this package, because the plugin does not
	// know this berthd.
	Socket string
	// Resource of a plugin with a socket that does not report its resource.
	Resource string
	// Command starts the plugin. In its arguments {plugins} is replaced with berthd's plugin
	// directory, {registry} with the directory of plugins to be found, and {root} with their
	// parent. If Command and Socket are empty, the first plugin that registers is tested.
	Command []string
	// AsKubeletDir lets the command see {root} as /var/lib/kubelet.
	AsKubeletDir bool
	// Berthd is the program of berthd.
	Berthd string
	// Root is the folder for all of that; it has to be there.
	Root string
	// Wait bounds how long the plugin may take to register.
	Wait time.Duration
	// Soak is how long pods come and go while berthd and the plugin are restarted again and again; 0 leaves
	// that out.
	Soak time.Duration
	// Say is called with instructions for the user.
	Say func(text string)
}

// life is a plugin's test with its own berthd.
type life struct {
	Options
	Plugin
	report Report
	daemon *daemon
	// process of the plugin, if it was started here.
	process *process
	// crash is how the plugin ended by itself.
	crash error
	// resources that it has registered, by name; none until it has.
	resources []*devicev1.Resource
	// had are the ids of the devices that each of them had at first; what comes later is held
	// against that.
	had map[string][]string
	// caused are the times in which the test itself made lists end.
	caused []interval
}

// stage is a check of a life; needs returns why it is not possible.
type stage struct {
	name  string
	needs func(*life) error
	run   func(*life, context.Context) (string, error)
	// ends means that it makes the plugin's list end.
	ends bool
}

var stages = []stage{
	{name: "berthd starts", run: (*life).begin},
	{name: "plugin registers", needs: (*life).served, run: (*life).register},
	{name: "devices arrive", needs: (*life).registered, run: (*life).devices},
	{name: "admission", needs: (*life).allocatable, run: (*life).admitOne},
	{name: "readers", needs: (*life).kept, run: (*life).readers},
	{name: "all devices", needs: (*life).allocatable, run: (*life).admitAll},
	{name: "one too many", needs: (*life).kept, run: (*life).admitTooMany},
	{name: "container starts", needs: (*life).kept, run: (*life).startContainer},
	{name: "many pods", needs: (*life).allocatable, run: (*life).manyPods},
	{name: "berthd restarts", needs: (*life).registered, run: (*life).restart, ends: true},
	{name: "its socket goes", needs: (*life).signalled, run: (*life).loseSocket, ends: true},
	{name: "kubelet.sock is new", needs: (*life).signalled, run: (*life).renewServer, ends: true},
	{name: "plugin is killed", needs: (*life).startedHere, run: (*life).killPlugin, ends: true},
	{name: "plugin comes back", needs: (*life).startedHere, run: (*life).startAgain, ends: true},
	{name: "soak", needs: (*life).soaked, run: (*life).soak},
	{name: "stays connected", needs: (*life).registered, run: (*life).staysConnected},
}

// Live tests a plugin with its own berthd: it registers, its devices are allocated to pods, and
// berthd and the plugin are restarted. Then it is probed as by Run. The report has all checks in
// any case. An error is about the test itself.
func Live(ctx context.Context, p Plugin, o Options) (Report, error) {
	o = o.filled()
	l := &life{Options: o, Plugin: p, report: Report{Socket: p.Socket, Began: time.Now()}}
	if p.AsKubeletDir {
		l.host = l.outside
	}
	d, err := newDaemon(ctx, p.Berthd, p.Root, o.Timeout)
	if err != nil {
		return Report{}, err
	}
	l.daemon = d
	defer func() { _ = d.client.Close() }()
	defer l.finish(ctx)
	if _, err := os.Lstat(kubeletDir); p.AsKubeletDir && errors.Is(err, os.ErrNotExist) {
		defer func() { _ = os.Remove(kubeletDir) }() // if it is empty, as it was made for this
	}
	for _, s := range stages {
		var skip error
		if s.needs != nil {
			skip = s.needs(l)
		}
		l.take(ctx, &l.report, s.name, func(ctx context.Context) (string, error) {
			if skip != nil {
				return "", skip
			}
			if s.ends {
				defer l.cause()()
			}
			text, err := s.run(l, ctx)
			return text, l.survived(err)
		})
	}
	// A plugin has one list read at a time, so berthd ends first.
	l.stopDaemon(ctx)
	l.probe(ctx)
	l.take(ctx, &l.report, "plugin ends", func(ctx context.Context) (string, error) {
		if l.crash == nil && l.survived(nil) != nil {
			return "", l.crash
		}
		return l.endPlugin(ctx)
	})
	return l.report, nil
}

// probe calls the plugin directly, at the socket of each resource.
func (l *life) probe(ctx context.Context) {
	answers := map[string]*pluginapi.ContainerAllocateResponse{}
	var names []string
	for _, r := range l.resources {
		l.report.Resource, l.report.Socket = r.GetName(), r.GetEndpoint()
		o := l.Options
		if len(l.resources) > 1 {
			o.prefix = r.GetName() + ": "
		}
		direct := probed(ctx, r.GetEndpoint(), o)
		l.report.Checks = append(l.report.Checks, direct.report.Checks...)
		l.report.Interrupted = l.report.Interrupted || direct.report.Interrupted
		answers[r.GetName()] = direct.first
		names = append(names, r.GetName())
	}
	if len(names) > 1 {
		l.take(ctx, &l.report, "variables", func(context.Context) (string, error) {
			return "no two resources set one environment variable to different values", shared(answers, names)
		})
	}
}

// outside returns where a path is found that a command with --as-kubelet-dir answers.
func (l *life) outside(name string) string {
	if rest, below := strings.CutPrefix(filepath.Clean(name), kubeletDir+"/"); below {
		return filepath.Join(l.Root, rest)
	}
	return name
}

// survived returns the error of a check, or that the plugin's command has ended meanwhile. In
// that case the check's own result is only a consequence.
func (l *life) survived(err error) error {
	if l.process == nil || l.crash != nil {
		return err
	}
	l.crash = l.process.crashed()
	var warned warning
	switch {
	case l.crash == nil || errors.Is(err, errEnded):
		return err
	case err == nil || errors.As(err, &warned):
		return l.crash
	}
	return fmt.Errorf("%w; %w", err, l.crash)
}

// finish ends what still runs.
func (l *life) finish(ctx context.Context) {
	l.stopDaemon(ctx)
	if l.process != nil {
		l.process.kill()
	}
}

func (l *life) stopDaemon(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.Timeout)
	defer cancel()
	l.daemon.stop(ctx)
}

func (l *life) served() error {
	if l.crash != nil {
		return skipped("the plugin's command has ended before")
	}
	if l.daemon.process == nil {
		return skipped("there is no berthd")
	}
	return nil
}

func (l *life) registered() error {
	if len(l.resources) == 0 {
		return skipped("no plugin has registered")
	}
	return l.served()
}

func (l *life) allocatable() error {
	if l.NoAllocate {
		return errNoAllocate
	}
	if err := l.registered(); err != nil {
		return err
	}
	for _, r := range l.resources {
		if r.GetAllocatable() > 0 {
			return nil
		}
	}
	return skipped("there is no healthy device")
}

// kept: these checks are about the keeper.
func (l *life) kept() error {
	if err := l.allocatable(); err != nil {
		return err
	}
	if !l.passed("admission") {
		return skipped("no pod has a device, because admission failed")
	}
	return nil
}

// signalled: only a plugin that registers by itself has to notice restarts.
func (l *life) signalled() error {
	if err := l.registered(); err != nil {
		return err
	}
	switch {
	case l.Socket != "":
		return skipped("another server runs too, and the plugin watches the socket of that one")
	case !strings.HasPrefix(l.resources[0].GetEndpoint(), l.plugins()):
		return skipped("the server finds this plugin, so it need not notice restarts")
	}
	return nil
}

func (l *life) startedHere() error {
	if err := l.registered(); err != nil {
		return err
	}
	if l.process == nil {
		return skipped("it was not started here: give its command after --")
	}
	return nil
}

func (l *life) plugins() string  { return filepath.Join(l.Root, "device-plugins") }
func (l *life) registry() string { return filepath.Join(l.Root, "plugins_registry") }

func (l *life) begin(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, max(l.Wait, l.Timeout))
	defer cancel()
	if err := l.daemon.start(ctx); err != nil {
		return "", err
	}
	return l.Berthd + " runs in " + l.Root, nil
}

func (l *life) devices(context.Context) (string, error) {
	var texts []string
	at := map[string]string{}
	for _, r := range l.resources {
		texts = append(texts, fmt.Sprintf("%s: %d devices, %d of them healthy", r.GetName(), r.GetCapacity(), r.GetAllocatable()))
		if other, taken := at[r.GetEndpoint()]; taken {
			return "", fmt.Errorf("%s and %s have one socket, %s: a list does not tell of which resource it is, so all devices are counted twice; "+
				"serve each resource at a socket of its own", other, r.GetName(), filepath.Base(r.GetEndpoint()))
		}
		at[r.GetEndpoint()] = r.GetName()
	}
	text := strings.Join(texts, "; ")
	if slices.ContainsFunc(l.resources, func(r *devicev1.Resource) bool { return r.GetCapacity() == 0 }) {
		return "", warnf("%s: nothing can be allocated", text)
	}
	return text, nil
}

// endPlugin terminates the plugin.
func (l *life) endPlugin(ctx context.Context) (string, error) {
	if l.crash != nil {
		return "", skipped("the plugin's command has ended before")
	}
	if l.process == nil {
		if err := l.registered(); err != nil {
			return "", err
		}
		return "", skipped("it was not started here: give its command after --")
	}
	ctx, cancel := context.WithTimeout(ctx, l.Timeout)
	defer cancel()
	began := time.Now()
	if err := l.process.stop(ctx); err != nil {
		return "", warnf("it did not end within %s of SIGTERM, and was killed", l.Timeout)
	}
	return fmt.Sprintf("%s after SIGTERM", time.Since(began).Round(time.Millisecond)), nil
}

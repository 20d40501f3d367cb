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

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	devicev1 "github.com/berthd/berth/api/berth/device/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/convert"
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
	// had is how many devices each of them had at first; what comes later is held
	// against that.
	had map[string]int64
}

// stage is a check of a life; needs returns why it is not possible.
type stage struct {
	name  string
	needs func(*life) error
	run   func(*life, context.Context) (string, error)
}

var stages = []stage{
	{"berthd starts", nil, (*life).begin},
	{"plugin registers", (*life).served, (*life).register},
	{"devices arrive", (*life).registered, (*life).devices},
	{"admission", (*life).allocatable, (*life).admitOne},
	{"readers", (*life).allocatable, (*life).readers},
	{"all devices", (*life).allocatable, (*life).admitAll},
	{"one too many", (*life).allocatable, (*life).admitTooMany},
	{"container starts", (*life).allocatable, (*life).startContainer},
	{"many pods", (*life).allocatable, (*life).manyPods},
	{"berthd restarts", (*life).registered, (*life).restart},
	{"its socket goes", (*life).signalled, (*life).loseSocket},
	{"kubelet.sock is new", (*life).signalled, (*life).renewServer},
	{"plugin is killed", (*life).startedHere, (*life).killPlugin},
	{"plugin comes back", (*life).startedHere, (*life).startAgain},
}

// Live tests a plugin with its own berthd: it registers, its devices are allocated to pods, and
// berthd and the plugin are restarted. Then it is probed as by Run. The report has all checks in
// any case. An error is about the test itself.
func Live(ctx context.Context, p Plugin, o Options) (Report, error) {
	if o.Timeout == 0 {
		o.Timeout = defaultTimeout
	}
	l := &life{Options: o, Plugin: p, report: Report{Socket: p.Socket}}
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
		l.report.take(ctx, s.name, func(ctx context.Context) (string, error) {
			if skip != nil {
				return "", skip
			}
			text, err := s.run(l, ctx)
			return text, l.survived(err)
		})
	}
	// A plugin has one list read at a time, so berthd ends first.
	l.stopDaemon(ctx)
	for _, r := range l.resources {
		l.report.Resource, l.report.Socket = r.GetName(), r.GetEndpoint()
		direct := Run(ctx, r.GetEndpoint(), o)
		for _, c := range direct.Checks {
			if len(l.resources) > 1 {
				c.Name = r.GetName() + ": " + c.Name
			}
			l.report.Checks = append(l.report.Checks, c)
		}
	}
	l.report.take(ctx, "plugin ends", func(ctx context.Context) (string, error) {
		if l.crash == nil && l.survived(nil) != nil {
			return "", l.crash
		}
		return l.endPlugin(ctx)
	})
	return l.report, nil
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

// launch starts the plugin's command.
func (l *life) launch() error {
	places := strings.NewReplacer("{plugins}", l.plugins(), "{registry}", l.registry(), "{root}", l.Root)
	command := make([]string, len(l.Command))
	for i, word := range l.Command {
		command[i] = places.Replace(word)
	}
	folder := ""
	if l.AsKubeletDir {
		folder = l.Root
	}
	p, err := run(command, folder)
	l.process = p
	return err
}

// more is how long is waited for further resources after the first one.
const more = 500 * time.Millisecond

func (l *life) register(ctx context.Context) (string, error) {
	began := time.Now()
	switch {
	case l.Socket != "":
		if err := l.introduce(ctx); err != nil {
			return "", err
		}
	case len(l.Command) > 0:
		if err := l.launch(); err != nil {
			return "", err
		}
	default:
		l.Say(fmt.Sprintf("waiting for a plugin at %s, or in %s", filepath.Join(l.plugins(), "kubelet.sock"), l.registry()))
	}
	if err := l.connected(ctx, nil); err != nil {
		return "", err
	}
	took := time.Since(began)
	select {
	case <-time.After(more):
	case <-ctx.Done():
		return "", ctx.Err()
	}
	if err := l.connected(ctx, nil); err != nil { // the others have come as well
		return "", err
	}
	now, err := l.daemon.resources(ctx)
	if err != nil {
		return "", err
	}
	l.resources, l.had = now, capacities(now)
	var names []string
	for _, r := range now {
		names = append(names, r.GetName())
	}
	l.report.Resource = names[0]
	return fmt.Sprintf("%s after %s", strings.Join(names, ", "), took.Round(time.Millisecond)), nil
}

// introduce registers a running plugin that does not know this berthd. It links the plugin's
// socket into the plugin directory, because an endpoint is a name in that directory.
func (l *life) introduce(ctx context.Context) error {
	const link = "plugin-under-test.sock"
	path := filepath.Join(l.plugins(), link)
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := os.Symlink(l.Socket, path); err != nil {
		return err
	}
	conn, err := grpc.NewClient("unix://"+filepath.Join(l.plugins(), "kubelet.sock"),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(ctx, l.Wait)
	defer cancel()
	_, err = pluginapi.NewRegistrationClient(conn).Register(ctx, &pluginapi.RegisterRequest{
		Version: pluginapi.Version, Endpoint: link, ResourceName: l.Resource,
	})
	if err != nil {
		return fmt.Errorf("berthd refuses it: %w", err)
	}
	return nil
}

// errEnded is of a plugin that does not run any more.
var errEnded = errors.New("the plugin's command has ended")

// connected waits until the plugin of every resource is connected by a registration
// that is newer than the one given, and has sent its list.
func (l *life) connected(ctx context.Context, than map[string]uint64) error {
	ctx, cancel := context.WithTimeout(ctx, l.Wait)
	defer cancel()
	ctx, gone := context.WithCancelCause(ctx)
	defer gone(nil)
	if p := l.process; p != nil {
		go func() {
			select {
			case <-p.ended:
				gone(errEnded)
			case <-ctx.Done():
			}
		}()
	}
	var last []*devicev1.Resource
	err := l.daemon.until(ctx, func(now []*devicev1.Resource) bool {
		last = now
		return len(now) > 0 && !slices.ContainsFunc(now, func(r *devicev1.Resource) bool {
			return r.GetPluginState() != typesv1.PluginState_PLUGIN_STATE_CONNECTED || r.GetAwaited() ||
				r.GetRegistration() <= than[r.GetName()]
		})
	})
	if err == nil {
		return nil
	}
	if errors.Is(context.Cause(ctx), errEnded) {
		return fmt.Errorf("%w; %s", errEnded, l.process.lastWords())
	}
	text := "no plugin has registered"
	for _, r := range last {
		text = fmt.Sprintf("the plugin for %s is %s", r.GetName(), convert.Word(r.GetPluginState()))
		if r.GetPluginState() == typesv1.PluginState_PLUGIN_STATE_CONNECTED && r.GetAwaited() {
			text += " and has sent no list"
		}
	}
	if l.process != nil {
		text += "; " + l.process.lastWords()
	}
	return fmt.Errorf("after %s %s", l.Wait, text)
}

func (l *life) devices(context.Context) (string, error) {
	var texts []string
	for _, r := range l.resources {
		texts = append(texts, fmt.Sprintf("%s: %d devices, %d of them healthy", r.GetName(), r.GetCapacity(), r.GetAllocatable()))
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

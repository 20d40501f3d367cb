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
	p, err := run(command, folder, nil)
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
		l.say("waiting: " + l.advice())
	}
	if err := l.first(ctx); err != nil {
		return "", err
	}
	took := time.Since(began)
	select {
	case <-time.After(more):
	case <-ctx.Done():
		return "", ctx.Err()
	}
	if err := l.connected(ctx, nil, l.Wait); err != nil { // the others have come as well
		return "", err
	}
	now, err := l.daemon.resources(ctx)
	if err != nil {
		return "", err
	}
	l.resources, l.had = now, listedIDs(now)
	var names []string
	for _, r := range now {
		names = append(names, r.GetName())
	}
	l.report.Resource = names[0]
	return fmt.Sprintf("%s after %s", strings.Join(names, ", "), took.Round(time.Millisecond)), nil
}

// patience is how long a registration is awaited without a word.
const patience = 5 * time.Second

// first waits for the first registration, and says after a while what a plugin has to do for one.
func (l *life) first(ctx context.Context) error {
	if l.Wait <= patience || len(l.Command) == 0 {
		return l.connected(ctx, nil, l.Wait)
	}
	err := l.connected(ctx, nil, patience)
	if err == nil || ctx.Err() != nil || errors.Is(err, errEnded) {
		return err
	}
	l.say(fmt.Sprintf("%v; this goes on until --wait, %s, has passed", err, l.Wait))
	return l.connected(ctx, nil, l.Wait-patience)
}

func (l *life) say(text string) {
	if l.Say != nil {
		l.Say(text)
	}
}

// advice is what a plugin has to do so that it registers here.
func (l *life) advice() string {
	placeholder := func(word string) bool {
		return strings.Contains(word, "{plugins}") || strings.Contains(word, "{registry}") || strings.Contains(word, "{root}")
	}
	server, registry := filepath.Join(l.plugins(), filepath.Base(pluginapi.KubeletSocket)), l.registry()
	if l.AsKubeletDir {
		server, registry = pluginapi.KubeletSocket, filepath.Join(kubeletDir, filepath.Base(registry))
	} else if len(l.Command) > 0 && !slices.ContainsFunc(l.Command, placeholder) {
		return "its arguments have none of {plugins}, {registry} and {root}, so it does not know this berthd; " +
			"a plugin that always uses " + kubeletDir + " needs --as-kubelet-dir"
	}
	return fmt.Sprintf("a plugin registers at %s, or has its socket in %s", server, registry)
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
func (l *life) connected(ctx context.Context, than map[string]uint64, wait time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, wait)
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
		return fmt.Errorf("%w; %s", errEnded, l.process.excerpt())
	}
	text := "no plugin has registered: " + l.advice()
	if ends := l.endings(); ends != nil {
		return fmt.Errorf("after %s the plugin is not connected: %w%s", wait, ends, l.wrote())
	}
	for _, r := range last {
		text = fmt.Sprintf("the plugin for %s is %s", r.GetName(), convert.Word(r.GetPluginState()))
		if r.GetPluginState() == typesv1.PluginState_PLUGIN_STATE_CONNECTED && r.GetAwaited() {
			text += " and has sent no list"
		}
	}
	return fmt.Errorf("after %s %s%s", wait, text, l.wrote())
}

// wrote is what the plugin's command wrote, after a semicolon.
func (l *life) wrote() string {
	if l.process == nil {
		return ""
	}
	return "; " + l.process.excerpt()
}

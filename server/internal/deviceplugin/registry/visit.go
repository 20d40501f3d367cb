package registry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"

	registrationapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/server/internal/deviceplugin"
)

// errForeign is of a plugin that others serve: nothing for berth to do.
var errForeign = errors.New("not a device plugin")

// follow visits a socket until it is removed. After a long visit the pause is the shortest again.
func (r *Registry) follow(ctx context.Context, path string, s *socket) {
	for pause := FirstPause; ; pause = min(2*pause, MaxPause) {
		began := r.Now()
		err := r.visit(ctx, path, s)
		if ctx.Err() != nil {
			return
		}
		if errors.Is(err, errForeign) {
			r.Log.Info("a plugin of another kind is in the plugin registry; berthd ignores it", "socket", path)
			return
		}
		if r.Now().Sub(began) >= MaxPause {
			pause = FirstPause
		}
		r.Log.Warn("plugin in the registry is not connected", "socket", path, "error", err, "again_in", pause)
		select {
		case <-r.After(pause):
		case <-ctx.Done():
			return
		}
	}
}

// visit attaches the plugin behind a socket. It returns when the connection has ended and no
// other plugin serves the resource. The error is never nil.
func (r *Registry) visit(ctx context.Context, path string, s *socket) error {
	resource, plugin, err := r.introduce(ctx, path)
	if err != nil {
		return err
	}
	s.registered.Store(true)
	select {
	case <-plugin.Ended():
	case <-ctx.Done():
	}
	s.registered.Store(false)
	if ctx.Err() != nil {
		release(ctx, plugin)
		return context.Cause(ctx)
	}
	// Where a newer plugin has taken its place this one waits, so that the two do
	// not push each other out in turn.
	if err := r.Plugins.Vacant(ctx, resource); err != nil {
		return err
	}
	return errdefs.Unavailablef("the connection of the plugin for %s has ended", resource)
}

// release detaches a plugin, unless berthd is stopping. The plugin server then closes all
// connections, and the plugins do not count as disconnected.
func release(ctx context.Context, plugin deviceplugin.Attached) {
	if ctx.Err() == nil || errors.Is(context.Cause(ctx), errGone) {
		plugin.Detach()
	}
}

// introduce gets a plugin's data, attaches the plugin, and notifies the plugin of the result.
func (r *Registry) introduce(ctx context.Context, path string) (resource string, plugin deviceplugin.Attached, err error) {
	dialing, cancel := context.WithTimeout(ctx, r.Deadlines.Dial)
	defer cancel()
	conn, err := deviceplugin.Dial(dialing, path)
	if err != nil {
		return "", plugin, err
	}
	defer func() { _ = conn.Close() }()
	client := registrationapi.NewRegistrationClient(conn)
	info, err := r.info(ctx, client)
	if err != nil {
		return "", plugin, err
	}
	if plugin, err = r.attach(ctx, info, path); err != nil {
		// What ended the call from this side is nothing that was decided.
		if ctx.Err() == nil && !errors.Is(err, errForeign) {
			if nerr := r.notify(ctx, client, err); nerr != nil {
				r.Log.Warn("a refused plugin could not be notified", "socket", path, "error", nerr)
			}
		}
		return "", plugin, err
	}
	if err := r.notify(ctx, client, nil); err != nil {
		release(ctx, plugin)
		return "", plugin, err
	}
	return info.GetName(), plugin, nil
}

// attach validates a plugin's data and connects to its device service.
func (r *Registry) attach(ctx context.Context, info *registrationapi.PluginInfo, path string) (deviceplugin.Attached, error) {
	var none deviceplugin.Attached
	switch info.GetType() {
	case registrationapi.DevicePlugin:
	case registrationapi.CSIPlugin, registrationapi.DRAPlugin:
		return none, errForeign
	default:
		return none, errdefs.Unsupportedf("no handler registered for plugin type: %q", info.GetType())
	}
	if err := r.Plugins.Supports(info.GetName(), info.GetSupportedVersions()); err != nil {
		return none, fmt.Errorf("plugin validation failed with err: %w", err)
	}
	endpoint := cmp.Or(info.GetEndpoint(), path)
	if !filepath.IsAbs(endpoint) {
		return none, errdefs.Invalidf("plugin validation failed with err: the endpoint %q is not an absolute path", endpoint)
	}
	plugin, err := r.Plugins.Attach(ctx, info.GetName(), endpoint)
	if err != nil {
		return none, fmt.Errorf("plugin registration failed with err: %w", err)
	}
	return plugin, nil
}

func (r *Registry) info(ctx context.Context, client registrationapi.RegistrationClient) (*registrationapi.PluginInfo, error) {
	limited, cancel := context.WithTimeout(ctx, r.Deadlines.Info)
	defer cancel()
	info, err := client.GetInfo(limited, &registrationapi.InfoRequest{})
	if err != nil {
		return nil, errdefs.Unavailablef("failed to get plugin info (within %s): %w", r.Deadlines.Info, err)
	}
	return info, nil
}

// notify sends a plugin the result of its registration.
func (r *Registry) notify(ctx context.Context, client registrationapi.RegistrationClient, refusal error) error {
	limited, cancel := context.WithTimeout(ctx, r.Deadlines.Notify)
	defer cancel()
	status := &registrationapi.RegistrationStatus{PluginRegistered: refusal == nil}
	if refusal != nil {
		status.Error = refusal.Error()
	}
	if _, err := client.NotifyRegistrationStatus(limited, status); err != nil {
		return errdefs.Unavailablef("the plugin does not take the news of its registration (within %s): %w", r.Deadlines.Notify, err)
	}
	return nil
}

package plugintest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	devicev1 "github.com/berthd/berth/api/berth/device/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
)

// registrations returns the number of the registration of each resource.
func (l *life) registrations(ctx context.Context) (map[string]uint64, error) {
	now, err := l.daemon.resources(ctx)
	out := map[string]uint64{}
	for _, r := range now {
		out[r.GetName()] = r.GetRegistration()
	}
	return out, err
}

// listedIDs returns the sorted ids of the devices that the plugin of each resource lists.
func listedIDs(resources []*devicev1.Resource) map[string][]string {
	out := map[string][]string{}
	for _, r := range resources {
		ids := []string{}
		for _, d := range r.GetDevices() {
			// One that is only held has no health.
			if d.GetDevice().GetHealth() != typesv1.Health_HEALTH_UNSPECIFIED {
				ids = append(ids, d.GetDevice().GetId())
			}
		}
		slices.Sort(ids)
		out[r.GetName()] = ids
	}
	return out
}

// changed says of the first resource with other devices now which ids are gone and new. New ones alone harm no pod.
func changed(had, now map[string][]string) error {
	for _, name := range slices.Sorted(maps.Keys(had)) {
		gone, added := without(had[name], now[name]), without(now[name], had[name])
		if len(gone) == 0 {
			continue
		}
		text := fmt.Sprintf("%s: %d of its device ids are gone (such as %.80q)", name, len(gone), gone[0])
		if len(added) > 0 {
			text += fmt.Sprintf(", %d are new (such as %.80q)", len(added), added[0])
		}
		return errors.New(text + ": a running pod would keep a device that does not exist; list the same ids after each restart")
	}
	for _, name := range slices.Sorted(maps.Keys(now)) {
		if added := without(now[name], had[name]); len(added) > 0 {
			return warnf("%s: %d device ids are new (such as %.80q); list the same ids after each restart", name, len(added), added[0])
		}
	}
	return nil
}

// without returns the ids that are not among others, which are sorted.
func without(ids, others []string) []string {
	return slices.DeleteFunc(slices.Clone(ids), func(id string) bool {
		_, found := slices.BinarySearch(others, id)
		return found
	})
}

// same waits until everything is as it was: the devices, as soon as the plugin has
// sent its list, and what the keeper holds.
func (l *life) same(ctx context.Context, held map[string][]string) error {
	limited, cancel := context.WithTimeout(ctx, l.Timeout)
	defer cancel()
	err := l.daemon.until(limited, func(now []*devicev1.Resource) bool {
		l.resources = now // even unexpected ones, because the plugin serves them now
		return maps.EqualFunc(listedIDs(now), l.had, slices.Equal)
	})
	if err != nil {
		return cmp.Or(changed(l.had, listedIDs(l.resources)), err)
	}
	if len(held) == 0 {
		return nil
	}
	got, err := l.ids(ctx, keeper)
	if err == nil && !maps.EqualFunc(got, held, slices.Equal) {
		err = fmt.Errorf("the pod holds %s now, and held %s", listed(got), listed(held))
	}
	return err
}

// holds is what the keeper holds, nothing if there is none.
func (l *life) holds(ctx context.Context) map[string][]string {
	held, err := l.ids(ctx, keeper)
	if err != nil {
		return nil
	}
	return held
}

// restart restarts berthd. For the plugin, its socket is removed, its list ends, and there is a
// new kubelet.sock.
func (l *life) restart(ctx context.Context) (string, error) {
	held := l.holds(ctx)
	l.stopDaemon(ctx)
	if err := l.daemon.start(ctx); err != nil {
		return "", err
	}
	if l.Socket != "" {
		if err := l.introduce(ctx); err != nil {
			return "", err
		}
	}
	if err := l.connected(ctx, nil, l.Wait); err != nil {
		return "", fmt.Errorf("it does not register again: %w", err)
	}
	if l.Socket != "" {
		return "it can be registered again", l.same(ctx, held)
	}
	return "it registers again", l.same(ctx, held)
}

// away is the temporary path of a socket; names with a leading dot are ignored.
func away(path string) string {
	return filepath.Join(filepath.Dir(path), ".away-"+filepath.Base(path))
}

// noticed waits for a new registration after a sign of a restart. A plugin needs to notice only
// one of the two signs, so missing this one is only a warning.
func (l *life) noticed(ctx context.Context, before map[string]uint64) (string, error) {
	wait := min(l.Wait, 2*l.Timeout)
	err := l.connected(ctx, before, wait)
	if errors.Is(err, errEnded) {
		return "", err
	}
	if err != nil {
		return "", warnf("it does not take that for a restart within %s, so it relies on the other sign", wait)
	}
	return "it registers again", l.same(ctx, l.holds(ctx))
}

// loseSocket takes the plugin's sockets away, as the start of a server does.
func (l *life) loseSocket(ctx context.Context) (string, error) {
	before, err := l.registrations(ctx)
	if err != nil {
		return "", err
	}
	var paths []string
	for _, r := range l.resources {
		if path := r.GetEndpoint(); path != "" && os.Rename(path, away(path)) == nil {
			paths = append(paths, path)
		}
	}
	text, err := l.noticed(ctx, before)
	for _, path := range paths {
		if _, missing := os.Lstat(path); missing != nil {
			_ = os.Rename(away(path), path)
		} else {
			_ = os.Remove(away(path))
		}
	}
	return text, err
}

// renewServer makes kubelet.sock appear once more, as the start of a server does.
func (l *life) renewServer(ctx context.Context) (string, error) {
	before, err := l.registrations(ctx)
	if err != nil {
		return "", err
	}
	path := filepath.Join(l.plugins(), "kubelet.sock")
	if err := os.Rename(path, away(path)); err != nil {
		return "", err
	}
	// A plugin that polls compares the time.
	now := time.Now()
	if err := errors.Join(os.Chtimes(away(path), now, now), os.Rename(away(path), path)); err != nil {
		return "", err
	}
	return l.noticed(ctx, before)
}

// killPlugin kills the plugin: its devices stay known, and its pods keep theirs.
func (l *life) killPlugin(ctx context.Context) (string, error) {
	held := l.holds(ctx)
	l.process.kill()
	ctx, cancel := context.WithTimeout(ctx, l.Timeout)
	defer cancel()
	err := l.daemon.until(ctx, func(now []*devicev1.Resource) bool {
		return !slices.ContainsFunc(now, func(r *devicev1.Resource) bool {
			return r.GetPluginState() == typesv1.PluginState_PLUGIN_STATE_CONNECTED
		})
	})
	if err != nil {
		return "", fmt.Errorf("another plugin still serves its devices: %w", err)
	}
	if got := l.holds(ctx); !maps.EqualFunc(got, held, slices.Equal) {
		return "", fmt.Errorf("the pod holds %s now, and held %s", listed(got), listed(held))
	}
	if len(held) == 0 {
		return "its devices count as unhealthy", nil
	}
	return "its devices count as unhealthy, and the pod keeps its own", nil
}

// startAgain starts the plugin after it was killed; its socket may be there still.
func (l *life) startAgain(ctx context.Context) (string, error) {
	held := l.holds(ctx)
	before, err := l.registrations(ctx)
	if err != nil {
		return "", err
	}
	if err := l.launch(); err != nil {
		return "", err
	}
	if err := l.connected(ctx, before, l.Wait); err != nil {
		return "", err
	}
	return "it registers again", l.same(ctx, held)
}

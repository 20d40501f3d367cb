package observe

import (
	"context"
	"path/filepath"

	"github.com/fsnotify/fsnotify"
)

// watch calls changed when the state files in the kubelet's directory may have changed, until ctx ends. Where they cannot be watched, the
// node is read from time to time only.
func (f *follower) watch(ctx context.Context, dir string, changed func()) {
	files, err := fsnotify.NewWatcher()
	if err == nil {
		defer func() { _ = files.Close() }()
		err = files.Add(dir)
	}
	if err != nil {
		f.Log.WarnContext(ctx, "the kubelet's directory cannot be watched, so changes are seen late", "directory", dir, "every",
			anyway.String(), "error", err)
		return
	}
	plugins := filepath.Join(dir, "device-plugins")
	_ = files.Add(plugins) // a kubelet makes it when it starts
	changed()              // since the node was read
	for {
		select {
		case e := <-files.Events:
			if e.Name == plugins && e.Has(fsnotify.Create) {
				_ = files.Add(plugins)
			}
			if filepath.Ext(e.Name) != ".sock" {
				changed()
			}
		case err := <-files.Errors:
			f.Log.DebugContext(ctx, "changes of the kubelet's files may have been missed", "error", err)
			changed()
		case <-ctx.Done():
			return
		}
	}
}

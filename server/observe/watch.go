package observe

import (
	"context"
	"path/filepath"

	"github.com/fsnotify/fsnotify"
)

// watch calls changed when the kubelet's state files may have changed, until ctx ends. Where they cannot be watched, the node is read from
// time to time only.
func (f *follower) watch(ctx context.Context, changed func()) {
	files, err := fsnotify.NewWatcher()
	if err == nil {
		defer func() { _ = files.Close() }()
		err = files.Add(f.dir())
	}
	if err != nil {
		f.Log.WarnContext(ctx, "the kubelet's directory cannot be watched, so changes are seen late", "directory", f.dir(), "every",
			anyway.String(), "error", err)
		return
	}
	_ = files.Add(filepath.Join(f.dir(), "device-plugins")) // a kubelet without device plugins has none
	for {
		select {
		case e := <-files.Events:
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

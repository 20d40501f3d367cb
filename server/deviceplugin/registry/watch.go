package registry

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/fsnotify/fsnotify"

	"github.com/berthd/berth/managers/fault"
)

// noticed deals with one event.
func (r *Registry) noticed(ctx context.Context, watcher *fsnotify.Watcher, e fsnotify.Event) error {
	switch {
	case !within(e.Name, r.Dir):
		// Of the folder around it only the directory itself is of interest.
	case e.Has(fsnotify.Create):
		return r.look(ctx, watcher, e.Name)
	case e.Has(fsnotify.Remove), e.Has(fsnotify.Rename):
		r.gone(watcher, e.Name)
		if e.Name == r.Dir {
			return r.scan(ctx, watcher)
		}
	}
	return nil
}

// within tells whether a path is a folder or below it.
func within(path, folder string) bool {
	return path == folder || strings.HasPrefix(path, folder+string(filepath.Separator))
}

// scan makes the directory if need be, watches it and every folder below it, and
// follows exactly the sockets that are there. The folder around it is watched as
// well, to learn that the directory itself was removed.
func (r *Registry) scan(ctx context.Context, watcher *fsnotify.Watcher) error {
	if err := os.MkdirAll(r.Dir, dirMode); err != nil {
		return fault.Unavailablef("make the plugin registry: %w", err)
	}
	if err := watcher.Add(filepath.Dir(r.Dir)); err != nil {
		return fault.Unavailablef("watch the folder of the plugin registry %s: %w", r.Dir, err)
	}
	for _, s := range r.Sockets() {
		if _, err := os.Stat(s.Path); errors.Is(err, fs.ErrNotExist) {
			r.forget(s.Path)
		}
	}
	return r.look(ctx, watcher, r.Dir)
}

// look follows a path if it is a socket, and all below it if it is a folder. What
// goes while it is looked at has its own event.
func (r *Registry) look(ctx context.Context, watcher *fsnotify.Watcher, top string) error {
	return filepath.WalkDir(top, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			r.Log.Warn("cannot look at a part of the plugin registry", "path", path, "error", err)
			return nil
		case path != r.Dir && strings.HasPrefix(filepath.Base(path), "."):
			if entry.IsDir() {
				return fs.SkipDir
			}
			return nil
		case entry.IsDir():
			// First the watch, then what is inside, so that nothing is missed.
			if err := watcher.Add(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fault.Unavailablef("watch the plugin registry at %s: %w", path, err)
			}
			return nil
		}
		if file, err := os.Stat(path); err == nil && file.Mode().Type() == fs.ModeSocket {
			r.appeared(ctx, path, file)
		}
		return nil
	})
}

// gone forgets the socket at a path and all sockets below it. Folders below it are
// not watched any more: one that was moved would go on telling of its old path.
func (r *Registry) gone(watcher *fsnotify.Watcher, top string) {
	for _, folder := range watcher.WatchList() {
		if within(folder, top) {
			_ = watcher.Remove(folder) // fails if the kernel has dropped it already
		}
	}
	for _, s := range r.Sockets() {
		if within(s.Path, top) {
			r.forget(s.Path)
		}
	}
}

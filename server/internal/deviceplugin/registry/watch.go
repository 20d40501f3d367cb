package registry

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/berthd/berth/api/trust"
	"github.com/berthd/berth/managers/errdefs"
)

// channels returns the events of the watcher, or the ticks of the poll if there is no watcher.
func (r *Registry) channels(poll *time.Ticker) (<-chan fsnotify.Event, <-chan error, <-chan time.Time) {
	if r.watcher == nil {
		return nil, nil, poll.C
	}
	return r.watcher.Events, r.watcher.Errors, nil
}

// noticed deals with one event.
func (r *Registry) noticed(ctx context.Context, e fsnotify.Event) {
	switch {
	case !within(e.Name, r.Dir):
		// Of the folder around it only the directory itself is of interest.
	case e.Has(fsnotify.Create):
		if err := r.look(ctx, e.Name); err != nil {
			r.poll(ctx, err)
		}
	case e.Has(fsnotify.Remove), e.Has(fsnotify.Rename):
		r.gone(e.Name)
		if e.Name == r.Dir {
			r.scan(ctx)
		}
	}
}

// within reports whether a path is a folder or below it.
func within(path, folder string) bool {
	return path == folder || strings.HasPrefix(path, folder+string(filepath.Separator))
}

// scan watches the directory, if that is possible, and follows exactly the sockets that are there.
func (r *Registry) scan(ctx context.Context) {
	err := r.watch()
	if err == nil {
		err = r.followAll(ctx)
	}
	if err != nil {
		r.poll(ctx, err)
		return
	}
	if r.polled {
		r.polled = false
		r.Log.Info("the plugin registry is watched again", "dir", r.Dir)
	}
}

// poll closes the watcher and reads the whole directory. The next tick tries to watch again.
func (r *Registry) poll(ctx context.Context, why error) {
	r.unwatch()
	if !r.polled {
		r.polled = true
		r.Log.Warn("the plugin registry cannot be watched; it is read periodically until it can, so plugins are found later",
			"dir", r.Dir, "every", r.Poll, "error", why)
	}
	if err := r.followAll(ctx); err != nil {
		r.Log.Debug("reading the plugin registry failed", "dir", r.Dir, "error", err)
	}
}

// watch makes a watcher unless there is one.
func (r *Registry) watch() error {
	if r.watcher != nil {
		return nil
	}
	if err := r.failWatch(""); err != nil {
		return err
	}
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return err
	}
	r.watcher = watcher
	return nil
}

// unwatch ends the watcher.
func (r *Registry) unwatch() {
	if r.watcher != nil {
		_ = r.watcher.Close()
		r.watcher = nil
	}
}

// add watches a folder; nothing while the directory is polled.
func (r *Registry) add(folder string) error {
	if r.watcher == nil {
		return nil
	}
	if err := r.failWatch(folder); err != nil {
		return err
	}
	return r.watcher.Add(folder)
}

func (r *Registry) failWatch(path string) error {
	if r.FailWatch == nil {
		return nil
	}
	return r.FailWatch(path)
}

// makeDir makes the directory if need be.
func (r *Registry) makeDir() error {
	if err := trust.MkdirAll(r.Dir, dirMode); err != nil {
		return errdefs.Unavailablef("make the plugin registry: %w", err)
	}
	return nil
}

// followAll creates the directory if it is missing, watches it with all subdirectories, and
// follows exactly its sockets. The parent is watched too, to detect the removal of the directory.
func (r *Registry) followAll(ctx context.Context) error {
	if err := r.makeDir(); err != nil {
		return err
	}
	if err := r.add(filepath.Dir(r.Dir)); err != nil {
		return errdefs.Unavailablef("watch the folder of the plugin registry %s: %w", r.Dir, err)
	}
	for _, s := range r.Sockets() {
		file, err := os.Stat(s.Path)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) || err == nil && file.Mode().Type() != fs.ModeSocket {
			r.forget(s.Path)
		}
	}
	return r.look(ctx, r.Dir)
}

// look follows a path if it is a socket, and everything below it if it is a directory. Files that
// disappear meanwhile have their own event. Errors are errors of a watch.
func (r *Registry) look(ctx context.Context, top string) error {
	return filepath.WalkDir(top, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case errors.Is(err, fs.ErrPermission):
			if !r.polled {
				r.Log.Warn("cannot read a part of the plugin registry", "path", path, "error", err)
			}
			return nil
		case err != nil:
			// Out of descriptors, the rest is found by polling.
			return errdefs.Unavailablef("read the plugin registry at %s: %w", path, err)
		case path != r.Dir && strings.HasPrefix(filepath.Base(path), "."):
			if entry.IsDir() {
				return fs.SkipDir
			}
			return nil
		case entry.IsDir():
			if err := trust.Check(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				// Its owner could register plugins.
				if !r.polled {
					r.Log.Warn("a directory of the plugin registry is not trusted, so its plugins are not used", "path", path, "error", err)
				}
				return fs.SkipDir
			}
			// The watch comes before reading, so that no file is missed.
			if err := r.add(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return errdefs.Unavailablef("watch the plugin registry at %s: %w", path, err)
			}
			return nil
		}
		if file, err := os.Stat(path); err == nil && file.Mode().Type() == fs.ModeSocket {
			r.appeared(ctx, path, file)
		}
		return nil
	})
}

// gone stops following the socket at a path and all sockets below it. Directories below it are no
// longer watched, because a moved one would send events with its old path.
func (r *Registry) gone(top string) {
	for _, folder := range r.watcher.WatchList() {
		if within(folder, top) {
			_ = r.watcher.Remove(folder) // fails if the kernel has dropped it already
		}
	}
	for _, s := range r.Sockets() {
		if within(s.Path, top) {
			r.forget(s.Path)
		}
	}
}

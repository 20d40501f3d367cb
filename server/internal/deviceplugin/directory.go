package deviceplugin

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/berthd/berth/api/trust"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/server/internal/socket"
)

// deprecation is a file that Kubernetes' own plugin stub takes for a sign that
// kubelet.sock is no longer served: where it exists the stub does not register.
const deprecation = "DEPRECATION"

// Permissions of the directory and of kubelet.sock, as under the kubelet with
// the usual umask. Writing, which connecting needs, is for the owner.
const (
	dirMode    fs.FileMode = 0o755
	socketMode fs.FileMode = 0o755
)

// open prepares the directory and listens on kubelet.sock. Sockets are removed before
// kubelet.sock is created, so that a plugin can register immediately after either event.
func (s *Server) open() (*socket.Keeper, error) {
	if s.Dir == "" {
		return nil, nil
	}
	if err := socket.CheckPath(s.Path()); err != nil {
		return nil, err
	}
	if err := trust.MkdirAll(s.Dir, dirMode); err != nil {
		return nil, errdefs.Unavailablef("make the device plugin directory %s: %w", s.Dir, err)
	}
	if err := socket.Unserved(s.Path()); err != nil {
		return nil, err
	}
	if err := s.clean(); err != nil {
		return nil, err
	}
	return socket.Keep(s.Path(), socket.Options{DirMode: dirMode, Mode: socketMode}, s.Log)
}

// clean removes the sockets, and the links to sockets, directly in the directory; other files
// stay. Plugins that watch their own socket register again when it disappears.
func (s *Server) clean() error {
	entries, err := os.ReadDir(s.Dir)
	if err != nil {
		return errdefs.Unavailablef("read the device plugin directory: %w", err)
	}
	var errs []error
	for _, e := range entries {
		path := filepath.Join(s.Dir, e.Name())
		if e.Name() == deprecation {
			s.Log.Error("a file in the device plugin directory keeps plugins from registering; remove it", "file", path)
			continue
		}
		info, err := os.Stat(path)
		switch {
		case err != nil:
			s.Log.Warn("cannot check a file in the device plugin directory; it stays", "file", path, "error", err)
		case info.Mode().Type() == fs.ModeSocket:
			errs = append(errs, os.Remove(path))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return errdefs.Unavailablef("clean the device plugin directory: %w", err)
	}
	return nil
}

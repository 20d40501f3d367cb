package app

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/berthd/berth/api/trust"
)

// checkDirectories refuses directories that other users could change: they would move
// the ledger or a socket away, or register plugins. Those that are not there yet are
// looked at again where they are made.
func (a *App) checkDirectories(context.Context) error {
	for _, dir := range []struct{ field, path string }{
		{"rootDir", a.Config.RootDir},
		{"stateDir", a.Config.StateDir},
		{"listen", filepath.Dir(a.Config.Listen)},
		{"devicePluginDir", a.Config.DevicePluginDir},
		{"pluginRegistryDir", a.Config.PluginRegistryDir},
		{"podResourcesDir", a.Config.PodResourcesDir},
		{"http", a.httpDir()},
		{"node.runtimePidFile", filepath.Dir(a.Config.Node.RuntimePIDFile)},
		{"node.agentPidFile", filepath.Dir(a.Config.Node.AgentPIDFile)},
	} {
		if !filepath.IsAbs(dir.path) {
			continue // not set
		}
		if err := trust.CheckExisting(dir.path); err != nil {
			return fmt.Errorf("%s: %w", dir.field, err)
		}
	}
	return nil
}

// httpDir is where the socket for metrics lies; empty if there is none.
func (a *App) httpDir() string {
	path, ok := a.Config.HTTPSocket()
	if !ok {
		return ""
	}
	return filepath.Dir(path)
}

// openStateDir makes the directory of the ledger so that others get through where the socket lies in it and they have
// roles. The ledger's files are berthd's alone in any case.
func (a *App) openStateDir() error {
	rel, err := filepath.Rel(a.Config.StateDir, a.Config.Listen)
	if err != nil || !filepath.IsLocal(rel) || len(a.Config.Access) == 0 {
		return nil
	}
	return trust.MkdirAll(a.Config.StateDir, 0o711)
}

// checkReach says where users who have roles cannot get to the socket.
func (a *App) checkReach() {
	if len(a.Config.Access) == 0 {
		return
	}
	for dir := filepath.Dir(a.Config.Listen); ; dir = filepath.Dir(dir) {
		info, err := os.Stat(dir)
		if err == nil && info.Mode().Perm()&0o001 == 0 {
			a.Log.Warn("users that access gives roles cannot reach listen unless they are of the directory's group: "+
				"give the directory the mode 0711, or let listen lie elsewhere", "listen", a.Config.Listen, "directory", dir, "mode", fmt.Sprintf("%#o", info.Mode().Perm()))
		}
		if dir == filepath.Dir(dir) {
			return
		}
	}
}

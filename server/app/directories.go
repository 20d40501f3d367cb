package app

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/berthd/berth/server/trust"
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

package app

import (
	nodev1 "github.com/berthd/berth/api/berth/node/v1"
	"github.com/berthd/berth/api/version"
)

// Version says which berthd this is.
func Version() *nodev1.GetVersionResponse {
	i := version.Of()
	return &nodev1.GetVersionResponse{Version: i.Version, Commit: i.Commit, GoVersion: i.Go, Platform: i.Platform}
}

package app

import (
	"cmp"
	"runtime"
	"runtime/debug"

	nodev1 "github.com/berthd/berth/api/berth/node/v1"
)

// Version says which berthd this is, as the Go tool recorded it.
func Version() *nodev1.GetVersionResponse {
	v := &nodev1.GetVersionResponse{Version: "unknown", GoVersion: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	v.Version = cmp.Or(info.Main.Version, v.Version)
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			v.Commit = s.Value
		}
	}
	return v
}

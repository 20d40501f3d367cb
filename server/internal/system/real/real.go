// Package real opens what berthd uses of a machine.
package real

import (
	"github.com/berthd/berth/server/internal/failpoint"
	"github.com/berthd/berth/server/internal/host/cgroupfs"
	"github.com/berthd/berth/server/internal/host/cgroupfs/ocicgroups"
	"github.com/berthd/berth/server/internal/host/systemd"
	"github.com/berthd/berth/server/internal/runtime/criclient"
	"github.com/berthd/berth/server/internal/store"
	"github.com/berthd/berth/server/internal/system"
)

// System returns what opens the parts of this machine. It opens nothing.
func System() system.System {
	return system.System{
		Ledger: func(path string, hook failpoint.Hook, notice func(string)) (system.Ledger, error) {
			return opened[system.Ledger](store.Open(path, store.Options{Failpoint: hook, Notice: notice}))
		},
		Setter:  ocicgroups.Setter{},
		Slices:  func(o cgroupfs.Options) (system.Slices, error) { return opened[system.Slices](systemd.Open(o)) },
		Runtime: func(endpoint string) (system.Runtime, error) { return opened[system.Runtime](criclient.Dial(endpoint)) },
	}
}

// opened returns a value as an interface; nil with an error, because a nil pointer in an interface is not nil.
func opened[I any, T any](value T, err error) (out I, _ error) {
	if err == nil {
		out = any(value).(I)
	}
	return out, err
}

package app

import (
	"os"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/memory"
	"github.com/berthd/berth/server/host/sysfs"
)

// freePages reads what the kernel has free of huge pages.
func freePages() ([]memory.FreePages, error) {
	sys, err := os.OpenRoot("/sys")
	if err != nil {
		return nil, errdefs.Unavailablef("look at free huge pages: %w", err)
	}
	defer sys.Close()
	nodes, err := sysfs.FreeHugePages(sys.FS())
	var out []memory.FreePages
	for _, n := range nodes {
		for _, p := range n.HugePages {
			out = append(out, memory.FreePages{Node: n.ID, SizeKiB: p.SizeKiB, Pages: p.Count})
		}
	}
	return out, err
}

// kernelFree reads what the kernel has free of memory and huge pages; nil if the machine is
// not this one.
func (a *App) kernelFree() func() ([]machine.Node, error) {
	if a.Config.Machine != "" {
		return nil
	}
	return func() ([]machine.Node, error) {
		sys, err := os.OpenRoot("/sys")
		if err != nil {
			return nil, errdefs.Unavailablef("read free memory: %w", err)
		}
		defer sys.Close()
		return sysfs.Free(sys.FS())
	}
}

// runs tells whether a pod is admitted.
func (a *App) runs(uid string) bool {
	_, known := a.Ledger.View().Pod(uid)
	return known
}

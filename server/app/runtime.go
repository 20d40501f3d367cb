package app

import (
	"context"
	"fmt"
	"time"

	"github.com/berthd/berth/server/runtime"
)

// runtimeTimeout is how long a start waits for the container runtime, which may be
// starting itself. Nothing can be decided without: which driver spells the cgroups
// is the runtime's to say.
const runtimeTimeout = 30 * time.Second

// buildRuntime connects to the container runtime, if there is one, and takes the
// cgroup driver over from it: pods whose cgroups are spelt in two ways would be in
// two places.
func (a *App) buildRuntime(ctx context.Context) (err error) {
	if a.Config.RuntimeEndpoint == "" {
		return nil
	}
	if a.runtime, err = runtime.Dial(a.Config.RuntimeEndpoint); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, runtimeTimeout)
	defer cancel()
	about, err := a.runtime.About(ctx)
	if err != nil {
		return err
	}
	driver, known, err := a.runtime.Driver(ctx)
	if err != nil {
		return err
	}
	if !known {
		a.metrics.OldRuntime()
	}
	log := a.Log.With("runtime", about, "endpoint", a.Config.RuntimeEndpoint)
	switch {
	case driver == "":
		log.WarnContext(ctx, "the container runtime does not tell its cgroup driver; it has to be the configured one", "driver", a.Config.Cgroups.Driver)
	case string(driver) != a.Config.Cgroups.Driver:
		log.WarnContext(ctx, "the container runtime's cgroup driver holds, not the configured one", "driver", driver, "configured", a.Config.Cgroups.Driver)
		a.Config.Cgroups.Driver = string(driver)
	default:
		log.InfoContext(ctx, "containers are the container runtime's", "driver", driver)
	}
	return nil
}

// closeRuntime lets go of the container runtime, if there is one.
func (a *App) closeRuntime() error {
	if a.runtime == nil {
		return nil
	}
	if err := a.runtime.Close(); err != nil {
		return fmt.Errorf("close the connection to the container runtime: %w", err)
	}
	return nil
}

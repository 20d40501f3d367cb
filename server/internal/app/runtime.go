package app

import (
	"context"
	"fmt"
	"time"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/server/internal/runtime"
)

// runtimeTimeout is how long a start waits for the container runtime, which may be starting
// itself. The start needs the runtime's cgroup driver.
const runtimeTimeout = 30 * time.Second

// buildRuntime connects to the container runtime, if there is one. The runtime's cgroup
// driver has precedence over the configured one: otherwise a pod would have cgroups with
// two names.
func (a *App) buildRuntime(ctx context.Context) (err error) {
	a.driver = cgroup.Driver(a.Config.Cgroups.Driver)
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
		log.WarnContext(ctx, "the container runtime does not report its cgroup driver; it must be the configured one", "driver",
			a.Config.Cgroups.Driver)
	case driver != a.driver:
		log.WarnContext(ctx, "the container runtime's cgroup driver holds, not the configured one", "driver", driver, "configured",
			a.driver)
		a.driver = driver
	default:
		log.InfoContext(ctx, "containers are the container runtime's", "driver", driver)
	}
	return nil
}

// closeRuntime closes the container runtime, if there is one.
func (a *App) closeRuntime() error {
	if a.runtime == nil {
		return nil
	}
	if err := a.runtime.Close(); err != nil {
		return fmt.Errorf("close the connection to the container runtime: %w", err)
	}
	return nil
}

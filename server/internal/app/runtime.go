package app

import (
	"context"
	"time"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/server/internal/system"
)

// runtimeTimeout is how long a start waits for the container runtime, which may be starting
// itself. The start needs the runtime's cgroup driver.
const runtimeTimeout = 30 * time.Second

// connectRuntime connects to the container runtime, if there is one. The runtime's cgroup
// driver has precedence over the configured one: otherwise a pod would have cgroups with
// two names.
func connectRuntime(ctx context.Context, g *given, end *closers) (system.Runtime, cgroup.Driver, error) {
	configured := cgroup.Driver(g.Config.Cgroups.Driver)
	if g.Config.RuntimeEndpoint == "" {
		return nil, configured, nil
	}
	client, err := g.System.Runtime(g.Config.RuntimeEndpoint)
	if err != nil {
		return nil, "", err
	}
	end.add("the connection to the container runtime", client.Close)
	ctx, cancel := context.WithTimeout(ctx, runtimeTimeout)
	defer cancel()
	about, err := client.About(ctx)
	if err != nil {
		return nil, "", err
	}
	driver, known, err := client.Driver(ctx)
	if err != nil {
		return nil, "", err
	}
	if !known {
		g.Metrics.OldRuntime()
	}
	log := g.Log.With("runtime", about, "endpoint", g.Config.RuntimeEndpoint)
	switch {
	case driver == "":
		log.WarnContext(ctx, "the container runtime does not report its cgroup driver; it must be the configured one", "driver",
			configured)
		driver = configured
	case driver != configured:
		log.WarnContext(ctx, "the container runtime's cgroup driver holds, not the configured one", "driver", driver, "configured",
			configured)
	default:
		log.InfoContext(ctx, "containers are the container runtime's", "driver", driver)
	}
	return client, driver, nil
}

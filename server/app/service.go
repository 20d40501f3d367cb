package app

import (
	"context"
	"fmt"
	"time"

	"github.com/berthd/berth/server/host/service"
)

// statusEvery is how often systemctl status gets a new line, if that is not the same.
const statusEvery = 10 * time.Second

// notify tells the service manager what berthd does. A manager that does not listen is a
// matter for the log only: it will act on its own.
func (a *App) notify(status string, states ...string) {
	if err := a.Service.Status(status, states...); err != nil {
		a.Log.Warn("the service manager was not told", "status", status, "error", err)
	}
}

// statusLine tells what is going on, in a line.
func (a *App) statusLine() string {
	view := a.Ledger.View()
	line := fmt.Sprintf("serves %d pods at revision %d", view.NumPods(), view.Generation())
	if uncertain := view.Uncertain(); uncertain != "" {
		line += "; waits for the agent's SyncPods"
	}
	whole, some := a.monitor.Lines()
	for _, problem := range append(whole, some...) {
		line += "; does not work: " + problem
	}
	return line
}

// followService tells the service manager that berthd is alive and what it does. It is alive
// as long as commits come to an end: with one that hangs, systemd ends berthd and starts it
// again.
func (a *App) followService(ctx context.Context) error {
	select {
	case <-a.plugins.Ready():
	case <-ctx.Done():
		return ctx.Err()
	}
	every := statusEvery
	if w := a.Service.Watchdog(); w > 0 {
		every = min(every, w/3)
	}
	return alive(ctx, every, a.Engine.Settled, func() {
		if a.Service.Watchdog() > 0 {
			a.notify(a.statusLine(), service.Alive)
		} else {
			a.notify(a.statusLine())
		}
	})
}

// followReloadSignals reads the configuration again whenever a signal asks for it.
func (a *App) followReloadSignals(ctx context.Context) error {
	select {
	case <-a.plugins.Ready():
	case <-ctx.Done():
		return ctx.Err()
	}
	for {
		select {
		case <-a.Reloads:
		case <-ctx.Done():
			return ctx.Err()
		}
		a.notify("reads the configuration again", service.ReloadingNow()...)
		if _, err := a.Reload(ctx, false); err != nil {
			a.Log.ErrorContext(ctx, "the configuration was not changed", "error", err)
		}
		a.notify(a.statusLine(), service.Ready)
	}
}

// alive calls tell again and again, each time after settled has returned.
func alive(ctx context.Context, every time.Duration, settled func(context.Context) error, tell func()) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		if err := settled(ctx); err != nil {
			return err
		}
		tell()
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

package systemd

import (
	"context"
	"errors"
	"fmt"

	"github.com/godbus/dbus/v5"

	"github.com/berthd/berth/managers/errdefs"
)

const (
	systemdName      = "org.freedesktop.systemd1"
	systemdPath      = dbus.ObjectPath("/org/freedesktop/systemd1")
	managerInterface = systemdName + ".Manager"
)

// errBusGone ends the watch when the bus does.
var errBusGone = errors.New("the system bus has ended the connection")

// Reloads calls done after each reload or restart of systemd, until ctx or the bus connection
// ends. systemd may then have created removed slices again, and have reset values. Reloads
// returns the reason of its end.
func (d *Driver) Reloads(ctx context.Context, done func()) error {
	conn, err := dbus.ConnectSystemBus(dbus.WithContext(ctx))
	if err != nil {
		return errdefs.Unavailablef("watch systemd: %w", err)
	}
	defer func() { _ = conn.Close() }()
	// One signal can arrive while another is handled. Later ones can be dropped, because one call
	// of done handles them all.
	signals := make(chan *dbus.Signal, 4)
	conn.Signal(signals)
	err = conn.AddMatchSignalContext(ctx, dbus.WithMatchObjectPath(systemdPath),
		dbus.WithMatchInterface(managerInterface), dbus.WithMatchMember("Reloading"))
	if err == nil {
		// systemd sends signals only to subscribers.
		err = conn.Object(systemdName, systemdPath).CallWithContext(ctx, managerInterface+".Subscribe", 0).Err
	}
	if err != nil {
		return errdefs.Unavailablef("watch systemd: %w", err)
	}
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case s, open := <-signals:
			if !open {
				return errdefs.Unavailablef("watch systemd: %w", errBusGone)
			}
			if begins, err := reloading(s); err == nil && !begins {
				done()
			}
		}
	}
}

// reloading reads the signal: it comes when systemd begins to read, and when it has.
func reloading(s *dbus.Signal) (begins bool, err error) {
	if s.Name != managerInterface+".Reloading" {
		return false, fmt.Errorf("it is %s", s.Name)
	}
	return begins, dbus.Store(s.Body, &begins)
}

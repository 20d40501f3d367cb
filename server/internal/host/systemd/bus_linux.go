package systemd

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	units "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"

	"github.com/berthd/berth/managers/errdefs"
)

// manager is systemd's manager of units, with the methods for slices. An error about an unknown
// unit wraps errNoUnit. If systemd does not respond in time, the error is of class Unavailable.
type manager interface {
	// Create starts a slice that is not loaded, as a transient unit; false if it is.
	Create(ctx context.Context, unit string, properties []units.Property) (created bool, err error)
	// Start starts a slice that is loaded.
	Start(ctx context.Context, unit string) error
	Stop(ctx context.Context, unit string) error
	Set(ctx context.Context, unit string, properties []units.Property) error
	// Active lists the units with names of these patterns that are active.
	Active(ctx context.Context, patterns ...string) (map[string]bool, error)
	// Version of systemd; 0 if unknown.
	Version(ctx context.Context) (int, error)
	Close() error
}

const (
	// answerTimeout limits all calls of systemd for one operation on a cgroup. systemd does not
	// respond while it reloads its units, which takes a second on a small system. An agent should
	// get the reason before its own deadline, which is rarely less than 15 s.
	answerTimeout = 10 * time.Second
	// probeTimeout limits each attempt, and is the interval of attempts, while systemd does not
	// respond. The long wait is not repeated for each of many cgroups.
	probeTimeout = time.Second
)

var (
	errNoUnit = errors.New("the unit is not loaded in systemd")
	errSilent = errors.New("systemd does not answer")
)

// silent is the error about a systemd that does not answer.
func silent(what string) error {
	return errdefs.Unavailablef("%s: %w; it may be reloading its units: try again in a moment, and see systemctl status", what, errSilent)
}

// timeout bounds an operation.
func timeout(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, answerTimeout, errSilent)
}

// bus is systemd's manager over D-Bus. It connects when it is first needed, and again
// after it was cut off, as when systemd is replaced.
type bus struct {
	// turn is held during a call: systemd answers one after the other anyhow.
	turn chan struct{}
	// dial connects; the connection ends with the context.
	dial func(ctx context.Context) (*units.Conn, error)

	conn    *units.Conn        // guarded by turn
	hangUp  context.CancelFunc // guarded by turn
	version int                // guarded by turn: of systemd on conn
	probe   time.Time          // guarded by turn: when one that was silent may be called again

	closing sync.Once
}

var _ manager = (*bus)(nil)

func newBus() *bus { return &bus{turn: make(chan struct{}, 1), dial: units.NewWithContext} }

// call makes one call of systemd, and that again if the connection was an old one.
func (b *bus) call(ctx context.Context, what string, do func(ctx context.Context, conn *units.Conn) error) error {
	select {
	case b.turn <- struct{}{}:
		defer func() { <-b.turn }()
	case <-ctx.Done():
		return failed(ctx, what, ctx.Err())
	}
	if !b.probe.IsZero() {
		if time.Now().Before(b.probe) {
			return silent(what)
		}
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, probeTimeout, errSilent)
		defer cancel()
	}
	old := b.conn != nil
	err := b.connect(ctx)
	if err == nil {
		err = do(ctx, b.conn)
	}
	if old && errors.Is(err, dbus.ErrClosed) {
		b.disconnect()
		if err = b.connect(ctx); err == nil {
			err = do(ctx, b.conn)
		}
	}
	if err == nil {
		b.probe = time.Time{}
		return nil
	}
	if ctx.Err() != nil && errors.Is(context.Cause(ctx), errSilent) { // not the caller's own deadline
		b.probe = time.Now().Add(probeTimeout)
	}
	return failed(ctx, what, err)
}

// failed gives an error its class and words.
func failed(ctx context.Context, what string, err error) error {
	var said dbus.Error
	switch {
	case ctx.Err() != nil && errors.Is(context.Cause(ctx), errSilent):
		return silent(what)
	case ctx.Err() != nil:
		return fmt.Errorf("%s: %w: %w", what, errSilent, ctx.Err())
	case errors.As(err, &said) && said.Name == "org.freedesktop.systemd1.NoSuchUnit":
		return errdefs.NotFoundf("%s: %w", what, errNoUnit)
	}
	return errdefs.Unavailablef("%s: %w", what, err)
}

// connect opens the connection if necessary. It does not wait for a bus beyond ctx; a connection
// that opens later is closed.
func (b *bus) connect(ctx context.Context) error {
	if b.conn != nil {
		return nil
	}
	life, hangUp := context.WithCancel(context.WithoutCancel(ctx))
	intime := context.AfterFunc(ctx, hangUp)
	conn, err := b.dial(life)
	if err != nil {
		hangUp()
		return fmt.Errorf("connect to systemd: %w", err)
	}
	text, err := conn.GetManagerProperty("Version")
	if err != nil || !intime() {
		conn.Close()
		hangUp()
		return fmt.Errorf("read systemd's version: %w", errors.Join(err, ctx.Err()))
	}
	b.conn, b.hangUp, b.version = conn, hangUp, parseVersion(text)
	return nil
}

// disconnect drops a connection.
func (b *bus) disconnect() {
	if b.conn != nil {
		b.conn.Close()
		b.hangUp()
		b.conn = nil
	}
}

// parseVersion reads "252.39-1~deb12u1" or "v244", with or without quotes, as 252 and
// 244; 0 for anything else.
func parseVersion(text string) int {
	text = strings.TrimLeft(text, `"v`)
	if end := strings.IndexFunc(text, func(r rune) bool { return r < '0' || r > '9' }); end >= 0 {
		text = text[:end]
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		return 0
	}
	return n
}

// Version implements manager.
func (b *bus) Version(ctx context.Context) (version int, err error) {
	err = b.call(ctx, "read systemd's version", func(context.Context, *units.Conn) error {
		version = b.version
		return nil
	})
	return version, err
}

// errJob is why a job was not done: another one took its place, as a rule.
var errJob = errors.New("the job was not done")

// job waits for a queued job of systemd. A job that did not finish is an error that wraps errJob.
func job(ctx context.Context, start func(done chan<- string) (int, error)) error {
	done := make(chan string, 1)
	if _, err := start(done); err != nil {
		return err
	}
	select {
	case result := <-done:
		if result != "done" {
			return fmt.Errorf("%w: it is %s", errJob, result)
		}
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// mode of jobs: a new job replaces contradicting ones.
const mode = "replace"

// Create implements manager.
func (b *bus) Create(ctx context.Context, unit string, properties []units.Property) (created bool, err error) {
	err = b.call(ctx, "create slice "+unit, func(ctx context.Context, conn *units.Conn) error {
		err := job(ctx, func(done chan<- string) (int, error) {
			return conn.StartTransientUnitContext(ctx, unit, mode, properties, done)
		})
		var said dbus.Error
		if errors.As(err, &said) && said.Name == "org.freedesktop.systemd1.UnitExists" {
			return nil
		}
		created = err == nil
		return err
	})
	return created, err
}

// Start implements manager.
func (b *bus) Start(ctx context.Context, unit string) error {
	return b.call(ctx, "start slice "+unit, func(ctx context.Context, conn *units.Conn) error {
		_ = conn.ResetFailedUnitContext(ctx, unit) // it has not failed, as a rule
		return job(ctx, func(done chan<- string) (int, error) { return conn.StartUnitContext(ctx, unit, mode, done) })
	})
}

// Stop implements manager.
func (b *bus) Stop(ctx context.Context, unit string) error {
	return b.call(ctx, "stop slice "+unit, func(ctx context.Context, conn *units.Conn) error {
		err := job(ctx, func(done chan<- string) (int, error) { return conn.StopUnitContext(ctx, unit, mode, done) })
		if err != nil && !errors.Is(err, errJob) {
			return err
		}
		// A failed unit is removed from systemd's memory. If its job was not done, its
		// directories show what is left.
		_ = conn.ResetFailedUnitContext(ctx, unit)
		return nil
	})
}

// Set implements manager.
func (b *bus) Set(ctx context.Context, unit string, properties []units.Property) error {
	return b.call(ctx, "set properties of slice "+unit, func(ctx context.Context, conn *units.Conn) error {
		const runtime = true // they go with the unit
		return conn.SetUnitPropertiesContext(ctx, unit, runtime, properties...)
	})
}

// Active implements manager.
func (b *bus) Active(ctx context.Context, patterns ...string) (active map[string]bool, err error) {
	err = b.call(ctx, "list the slices", func(ctx context.Context, conn *units.Conn) error {
		listed, err := conn.ListUnitsByPatternsContext(ctx, []string{"active"}, patterns)
		active = make(map[string]bool, len(listed))
		for _, u := range listed {
			active[u.Name] = true
		}
		return err
	})
	return active, err
}

// Close ends the connection. Calls after it connect again.
func (b *bus) Close() error {
	b.closing.Do(func() {
		b.turn <- struct{}{}
		b.disconnect()
		<-b.turn
	})
	return nil
}

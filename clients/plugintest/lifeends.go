package plugintest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// interval is a time in which the test made lists end.
type interval struct{ from, to time.Time }

// cause begins such a time, and returns what ends it.
func (l *life) cause() (done func()) {
	// The times of berthd's log are whole milliseconds.
	l.caused = append(l.caused, interval{from: time.Now().Truncate(time.Millisecond)})
	return func() {
		l.caused[len(l.caused)-1].to = time.Now()
		l.daemon.mu.Lock()
		defer l.daemon.mu.Unlock()
		l.daemon.ends = slices.DeleteFunc(l.daemon.ends, l.meant)
	}
}

// meant reports whether the test made a list end.
func (l *life) meant(e ending) bool {
	return slices.ContainsFunc(l.caused, func(i interval) bool {
		return !e.at.Before(i.from) && (i.to.IsZero() || !e.at.After(i.to))
	})
}

// ending is what berthd's log says of a plugin that has gone.
type ending struct {
	at       time.Time
	resource string
	// after is how long it was there.
	after time.Duration
	why   string
}

// maxEnds bounds what is kept of a plugin that comes and goes all the time.
const maxEnds = 1000

// read takes a line of berthd's log (docs/configuration.md: a line has keys and values).
func (d *daemon) read(line string) {
	keys := keysOf(line)
	if keys["event"] != "peer" || keys["kind"] != "plugin" {
		return
	}
	at, err := time.Parse(time.RFC3339Nano, keys["time"])
	if err != nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	resource := keys["resource"]
	switch {
	case keys["state"] != "gone":
		if len(d.opened) < maxEnds {
			d.opened[resource] = at
		}
	case len(d.ends) < maxEnds:
		d.ends = append(d.ends, ending{at: at, resource: resource, after: at.Sub(d.opened[resource]), why: keys["error"]})
	}
}

// keysOf reads a line of the form key=value key="a value".
func keysOf(line string) map[string]string {
	out := map[string]string{}
	for line != "" {
		key, rest, found := strings.Cut(line, "=")
		if !found {
			break
		}
		var value string
		if quoted, err := strconv.QuotedPrefix(rest); err == nil {
			value, _ = strconv.Unquote(quoted)
			rest = rest[len(quoted):]
		} else {
			value, rest, _ = strings.Cut(rest, " ")
		}
		out[key] = value
		line = strings.TrimPrefix(rest, " ")
	}
	return out
}

// endings says which lists have ended, and when, that the test did not make end.
func (l *life) endings() error {
	l.daemon.mu.Lock()
	defer l.daemon.mu.Unlock()
	first, count := map[string]ending{}, map[string]int{}
	for _, e := range l.daemon.ends {
		if l.meant(e) {
			continue
		}
		if count[e.resource]++; count[e.resource] == 1 {
			first[e.resource] = e
		}
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(first)) {
		errs = append(errs, fmt.Errorf("%s: the list ended %s by itself, at first %s after it was opened: %s; it has to stay open as long as the plugin runs",
			name, times(count[name]), rounded(first[name].after), first[name].why))
	}
	return errors.Join(errs...)
}

func times(n int) string {
	switch n {
	case 0:
		return "never"
	case 1:
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}

// staysConnected waits until the plugin was left alone for as long as a list has to stay open.
func (l *life) staysConnected(ctx context.Context) (string, error) {
	quiet := time.Now()
	if n := len(l.caused); n > 0 {
		quiet = l.caused[n-1].to
	}
	over := time.After(time.Until(quiet.Add(l.Watch)))
	tick := time.NewTicker(look)
	defer tick.Stop()
	for waiting := true; waiting; {
		if err := l.endings(); err != nil {
			return "", err
		}
		select {
		case <-tick.C:
		case <-over:
			waiting = false
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}
	return "its list ended only when the test made it end", nil
}

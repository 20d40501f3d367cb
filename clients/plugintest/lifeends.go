package plugintest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// interval is a time in which the test made lists end.
type interval struct{ from, to time.Time }

// cause begins such a time, and returns what ends it.
func (l *life) cause() (done func()) {
	l.caused = append(l.caused, interval{from: time.Now()})
	return func() { l.caused[len(l.caused)-1].to = time.Now() }
}

// peer is what berthd's log says of a plugin that came or has gone.
type peer struct {
	at       time.Time
	resource string
	gone     bool
	why      string
}

// maxPeers bounds what is kept of a plugin that comes and goes all the time.
const maxPeers = 1000

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
	if len(d.peers) < maxPeers {
		d.peers = append(d.peers, peer{at: at, resource: keys["resource"], gone: keys["state"] == "gone", why: keys["error"]})
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
	opened := map[string]time.Time{}
	type ended struct {
		times int
		first time.Duration
		why   string
	}
	all := map[string]*ended{}
	var names []string
	for _, p := range l.daemon.peers {
		switch {
		case !p.gone:
			opened[p.resource] = p.at
			continue
		case slices.ContainsFunc(l.caused, func(i interval) bool {
			return !p.at.Before(i.from) && (i.to.IsZero() || !p.at.After(i.to))
		}):
			continue
		}
		e := all[p.resource]
		if e == nil {
			e = &ended{first: p.at.Sub(opened[p.resource]), why: p.why}
			all[p.resource] = e
			names = append(names, p.resource)
		}
		e.times++
	}
	var errs []error
	for _, name := range names {
		e := all[name]
		errs = append(errs, fmt.Errorf("%s: the list ended %s by itself, at first %s after it was opened: %s; it has to stay open as long as the plugin runs",
			name, times(e.times), rounded(e.first), e.why))
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

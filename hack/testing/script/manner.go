package script

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Method is a method of the plugin.
type Method string

// The methods.
const (
	Register     Method = "Register"
	Options      Method = "Options"
	ListAndWatch Method = "ListAndWatch"
	Preferred    Method = "Preferred"
	Allocate     Method = "Allocate"
	PreStart     Method = "PreStart"
	Info         Method = "Info"
	Notify       Method = "Notify"
)

// Manner is how a plugin behaves at a method. The zero value is well.
type Manner string

const (
	// Well answers as a good plugin does.
	Well Manner = "well"
	// Hang never answers.
	Hang Manner = "hang"
	// Refuse answers with an error.
	Refuse Manner = "refuse"
	// Empty answers nothing: an answer without any container.
	Empty Manner = "empty"
	// Garbage answers bytes that are no message, or at Preferred unknown ids.
	Garbage Manner = "garbage"
	// Die ends the plugin before it answers, and leaves its socket behind.
	Die Manner = "die"
	// Shrink, at Allocate, sends a list without the devices first.
	Shrink Manner = "shrink"
	// End, at ListAndWatch, ends the stream.
	End Manner = "end"
	// Reorder, at ListAndWatch, begins every stream with another order of the devices.
	Reorder Manner = "reorder"
	// Flap, at ListAndWatch, changes the health of the first device every flapEvery.
	Flap Manner = "flap"
	// Resend, at ListAndWatch, sends the same list every flapEvery.
	Resend Manner = "resend"
	// Renumber, at ListAndWatch, begins every stream with new ids, of the process and the stream.
	Renumber Manner = "renumber"
	// endAfter, with a time as in "end after 2s", at ListAndWatch, ends the stream then.
	endAfter = "end after "
	// after, with a time as in "after 200ms", answers well but late.
	after = "after "
)

var manners = map[Method][]Manner{
	Options:      {Well, Hang, Refuse, Die},
	ListAndWatch: {Well, Refuse, Garbage, Die, End, Reorder, Flap, Resend, Renumber},
	Preferred:    {Well, Hang, Refuse, Empty, Garbage, Die},
	Allocate:     {Well, Hang, Refuse, Empty, Garbage, Die, Shrink},
	PreStart:     {Well, Hang, Refuse, Garbage, Die},
	Info:         {Well, Hang, Refuse, Die},
	Notify:       {Well, Hang, Refuse, Die},
}

// ParseManner reads "METHOD=MANNER", as in "allocate=hang" or
// "prestart=after 2s". The method may be in lower case.
func ParseManner(text string) (Method, Manner, error) {
	name, how, ok := strings.Cut(text, "=")
	if !ok {
		return "", "", fmt.Errorf("%q: expected METHOD=MANNER", text)
	}
	for m, known := range manners {
		if !strings.EqualFold(name, string(m)) {
			continue
		}
		wait, late := strings.CutPrefix(how, after)
		if end, ends := strings.CutPrefix(how, endAfter); ends && m == ListAndWatch {
			wait, late = end, true
		}
		if late {
			if _, err := time.ParseDuration(wait); err != nil {
				return "", "", fmt.Errorf("%q: %w", text, err)
			}
			return m, Manner(how), nil
		}
		if !slices.Contains(known, Manner(how)) {
			return "", "", fmt.Errorf("%q: at %s a plugin can do %q, or %q and a time", text, m, known, after)
		}
		return m, Manner(how), nil
	}
	return "", "", fmt.Errorf("%q: no method %q", text, name)
}

// Late is the manner of a plugin that answers well, after a time.
func Late(wait time.Duration) Manner { return Manner(after + wait.String()) }

// EndAfter is the manner of a plugin that ends every stream of lists after a time.
func EndAfter(wait time.Duration) Manner { return Manner(endAfter + wait.String()) }

// flapEvery is the time between two lists that nothing caused.
const flapEvery = 50 * time.Millisecond

var errRefused = status.Error(codes.Unknown, "the plugin was told to refuse")

// begin does the common part of every method, and returns the manner.
func (p *Plugin) begin(ctx context.Context, m Method) (Manner, error) {
	p.mu.Lock()
	how, dying := p.manners[m], p.dying
	p.mu.Unlock()
	if wait, late := strings.CutPrefix(string(how), after); late {
		d, err := time.ParseDuration(wait)
		if err != nil {
			return how, err
		}
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return how, ctx.Err()
		}
		return how, nil
	}
	switch how {
	case Refuse:
		return how, errRefused
	case Hang:
		p.hangs(1)
		<-ctx.Done()
		p.hangs(-1)
		return how, ctx.Err()
	case Die:
		p.Die()
		<-dying
		<-ctx.Done()
		return how, ctx.Err()
	}
	return how, nil
}

// Package loglevel has the flag --log-level of the programs that log to standard error.
//
// Only the four levels of the help text are accepted, not slog's numbers such as INFO+2.
package loglevel

import (
	"errors"
	"io"
	"log/slog"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// Level is the value of the flag; the zero value is info.
type Level struct{ level slog.Level }

var levels = []slog.Level{slog.LevelDebug, slog.LevelInfo, slog.LevelWarn, slog.LevelError}

// Add adds the flag to a program's flags.
func Add(f *pflag.FlagSet) *Level {
	l := new(Level)
	f.Var(l, "log-level", "debug, info, warn or error")
	return l
}

// Logger returns a logger that writes text. The flags must have been parsed.
func (l *Level) Logger(w io.Writer) *slog.Logger {
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: l.level}))
}

// String implements pflag.Value.
func (l *Level) String() string { return strings.ToLower(l.level.String()) }

// Set implements pflag.Value.
func (l *Level) Set(text string) error {
	var level slog.Level
	if err := level.UnmarshalText([]byte(text)); err != nil || !slices.Contains(levels, level) {
		return errors.New("expected debug, info, warn or error")
	}
	l.level = level
	return nil
}

// Type implements pflag.Value.
func (l *Level) Type() string { return "string" }

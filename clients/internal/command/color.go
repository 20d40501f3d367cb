package command

import (
	"fmt"
	"slices"
	"strings"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
)

// The colors, as parameters of SGR sequences.
const (
	red    = "31"
	green  = "32"
	yellow = "33"
)

// When the output has colors: the values of --color.
const (
	ColorAuto   = "auto"
	colorAlways = "always"
	colorNever  = "never"
)

func ColorNames() []string { return []string{ColorAuto, colorAlways, colorNever} }

func (c *Ctl) CheckColor() error {
	if !slices.Contains(ColorNames(), c.Color) {
		return fmt.Errorf("--color %s: expected one of %s", c.Color, strings.Join(ColorNames(), ", "))
	}
	return nil
}

// Colored reports whether the output has colors.
func (c *Ctl) Colored() bool {
	switch c.Color {
	case colorAlways:
		return true
	case colorNever:
		return false
	}
	return TerminalWidth(c.Out) > 0 && c.Getenv("NO_COLOR") == "" && c.Getenv("TERM") != "dumb"
}

// VerdictColor is the color of a verdict.
func VerdictColor(v admissionv1.Verdict) string {
	switch v {
	case admissionv1.Verdict_VERDICT_ADMITTED:
		return green
	case admissionv1.Verdict_VERDICT_REJECTED:
		return red
	}
	return yellow
}

// stateColor is the color of a cell with a state.
func stateColor(column, cell string) string {
	switch column {
	case "HEALTH", "STATE", "PLUGIN", "VERDICT", "ADMITTED":
	default:
		return ""
	}
	switch cell {
	case "Unhealthy", "Missing", "invalid", "away", "rejected", "no":
		return red
	case "suspended", "expected", "stopped", "deferred":
		return yellow
	}
	return ""
}

// SeverityColor is the color of a finding's severity.
func SeverityColor(severity string) string {
	if severity == SeverityError {
		return red
	}
	return yellow
}

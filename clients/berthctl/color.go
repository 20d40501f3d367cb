package main

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
	colorAuto   = "auto"
	colorAlways = "always"
	colorNever  = "never"
)

func colorNames() []string { return []string{colorAuto, colorAlways, colorNever} }

func (c *ctl) checkColor() error {
	if !slices.Contains(colorNames(), c.color) {
		return fmt.Errorf("--color %s: expected one of %s", c.color, strings.Join(colorNames(), ", "))
	}
	return nil
}

// colored reports whether the output has colors.
func (c *ctl) colored() bool {
	switch c.color {
	case colorAlways:
		return true
	case colorNever:
		return false
	}
	return terminalWidth(c.out) > 0 && c.getenv("NO_COLOR") == "" && c.getenv("TERM") != "dumb"
}

// verdictColor is the color of a verdict.
func verdictColor(v admissionv1.Verdict) string {
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

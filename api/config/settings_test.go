package config

import (
	"maps"
	"strings"
	"testing"
	"unicode/utf8"
)

// TestSettings: settings have the names of the configuration file, and none is there with its default.
func TestSettings(t *testing.T) {
	t.Parallel()
	c := Default()
	if got, err := c.Settings(); err != nil || got == nil || len(got) > 0 {
		t.Errorf("of the defaults: %v, %v", got, err)
	}
	c.CPU.Policy, c.Topology.Scope, c.Providers.Order = "static", "pod", []string{"memory", "cpu"}
	want := map[string]string{"cpu.policy": `"static"`, "topology.scope": `"pod"`, "providers.order": `["memory","cpu"]`}
	if got, err := c.Settings(); err != nil || !maps.Equal(got, want) {
		t.Errorf("got %v, %v; want %v", got, err, want)
	}
}

// TestSettingsAreBounded: settings are stored with the ledger, whatever the configuration has.
func TestSettingsAreBounded(t *testing.T) {
	t.Parallel()
	c := Default()
	c.Providers.Order = []string{strings.Repeat("\u00e4", 1000)}
	c.CPU.Options = map[string]string{}
	for i := range 1000 {
		c.CPU.Options[strings.Repeat("x", i+1)] = "true"
	}
	got, err := c.Settings()
	if err != nil || len(got) != mostSettings {
		t.Errorf("%d settings, %v", len(got), err)
	}
	c.CPU.Options = nil
	got, err = c.Settings()
	if text := got["providers.order"]; err != nil || !strings.HasSuffix(text, "...") || len(text) > longestSetting+3 ||
		!utf8.ValidString(text) {
		t.Errorf("%q, %v", text, err)
	}
}

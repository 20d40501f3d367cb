package config

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// What Settings returns is stored in the ledger: longestSetting limits a value, and mostSettings the number of values.
const (
	longestSetting = 256
	mostSettings   = 128
)

// Settings returns the settings that Digest depends on, by their names in the configuration file, as JSON. Those with their
// default are left out. A value that is too long is cut, so it may not show a change; of too many settings, the last ones by
// name are left out.
func (c Config) Settings() (map[string]string, error) {
	own, err := c.decisiveChanges()
	if err != nil {
		return nil, err
	}
	all := map[string]string{}
	for group, value := range own {
		name := strings.ToLower(group)
		if name == "providers" {
			name = "providers.order"
		}
		if err := flatten(all, name, value); err != nil {
			return nil, err
		}
	}
	if names := slices.Sorted(maps.Keys(all)); len(names) > mostSettings {
		for _, name := range names[mostSettings:] {
			delete(all, name)
		}
	}
	return all, nil
}

// flatten adds a setting, or those of a group, to all.
func flatten(all map[string]string, name string, value any) error {
	if group, ok := value.(map[string]any); ok {
		for inner, value := range group {
			if err := flatten(all, name+"."+inner, value); err != nil {
				return err
			}
		}
		return nil
	}
	text, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("setting %s: %w", name, err)
	}
	if len(text) > longestSetting {
		text = append(text[:longestSetting:longestSetting], "..."...)
	}
	all[name] = strings.ToValidUTF8(string(text), "")
	return nil
}

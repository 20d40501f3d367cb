package config

import (
	"encoding/json"
	"testing"
)

// TestDigestHasNoDefaults: a setting with its default does not count in the digest, whatever else there is.
func TestDigestHasNoDefaults(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ settings, defaults, want string }{
		{`{}`, `{}`, `{}`},
		{`{"a":1,"new":5}`, `{"a":1,"new":5}`, `{}`},
		{`{"a":2,"new":5}`, `{"a":1,"new":5}`, `{"a":2}`},
		{`{"a":{"b":1,"c":[1]}}`, `{"a":{"b":1,"c":[]}}`, `{"a":{"c":[1]}}`},
		{`{"a":{"b":1}}`, `{"a":{"b":1,"c":true}}`, `{"a":{"c":null}}`},
		{`{"a":{"b":{}}}`, `{}`, `{}`},
		{`{"a":null}`, `{"a":{"b":1}}`, `{"a":null}`},
	} {
		var settings, defaults map[string]any
		if err := json.Unmarshal([]byte(row.settings), &settings); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal([]byte(row.defaults), &defaults); err != nil {
			t.Fatal(err)
		}
		got, err := json.Marshal(withoutDefaults(settings, defaults))
		if err != nil || string(got) != row.want {
			t.Errorf("%s with the defaults %s: %s, %v; want %s", row.settings, row.defaults, got, err, row.want)
		}
	}
	changed := Default()
	changed.CPU.Policy = "static"
	for want, c := range map[string]Config{`{}`: Default(), `{"CPU":{"policy":"static"}}`: changed} {
		settings, err := c.decisive()
		if err != nil {
			t.Fatal(err)
		}
		defaults, err := Default().decisive()
		if err != nil {
			t.Fatal(err)
		}
		if got, err := json.Marshal(withoutDefaults(settings, defaults)); err != nil || string(got) != want {
			t.Errorf("got %s, %v; want %s", got, err, want)
		}
	}
}

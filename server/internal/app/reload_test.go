package app

import (
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/berthd/berth/api/config"
)

// leaves lists the fields of a configuration, by the names that a reload gives them.
func leaves(prefix string, t reflect.Type) (names []string) {
	for f := range t.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Type.Kind() == reflect.Struct && f.Type.PkgPath() == t.PkgPath() {
			names = append(names, leaves(prefix+name+".", f.Type)...)
			continue
		}
		names = append(names, prefix+name)
	}
	return names
}

// TestEveryFieldReloadsOrSaysWhy: no field changes nothing in silence.
func TestEveryFieldReloadsOrSaysWhy(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../../docs/operate.md")
	if err != nil {
		t.Fatal(err)
	}
	all := leaves("", reflect.TypeFor[config.Config]())
	if len(all) < 60 || !slices.Contains(all, "limits.call") || !slices.Contains(all, "log.level") {
		t.Fatalf("found only %q", all)
	}
	for _, field := range all {
		if !isReloadable(field) && restartReason(field) == restartReason("") {
			t.Errorf("%s: nobody says why it needs a restart", field)
		}
	}
	for _, r := range reloadable {
		if !slices.ContainsFunc(all, func(f string) bool { return f == r || strings.HasSuffix(r, ".") && strings.HasPrefix(f, r) }) {
			t.Errorf("%s is no field", r)
		}
		if !strings.Contains(string(page), "`"+strings.TrimSuffix(r, ".")+"`") {
			t.Errorf("docs/operate.md does not name %s", r)
		}
	}
	for _, f := range fixed {
		if !slices.ContainsFunc(all, func(name string) bool { return strings.HasPrefix(name, f.prefix) && !isReloadable(name) }) {
			t.Errorf("no field begins with %s", f.prefix)
		}
	}
}

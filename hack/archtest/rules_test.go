package archtest

import (
	"slices"
	"strings"
	"testing"
)

// made is a made-up depguard section; the tests below hold made-up files
// against it, so that the evaluation itself is seen to object.
const made = `
linters:
  settings:
    depguard:
      rules:
        pure:
          list-mode: strict
          files: ["${base-path}/managers/**", "!$test"]
          allow: [$gostd, github.com/berthd/berth/managers]
        files:
          list-mode: lax
          files: ["${base-path}/managers/**", "!$test"]
          deny:
            - pkg: os
        locks:
          list-mode: lax
          files: ["${base-path}/managers/**", "!${base-path}/managers/{ledger,device}/**"]
          deny:
            - pkg: sync
        handlers:
          list-mode: lax
          files: ["${base-path}/server/internal/rpc/*/**"]
          deny:
            - pkg: github.com/berthd/berth/server/internal/rpc/
        kernel:
          list-mode: lax
          files: ["!${base-path}/server/internal/rpc/*.go"]
          deny:
            - pkg: golang.org/x/sys/unix
            - pkg: example.com/exact$
`

func TestRulesObject(t *testing.T) {
	t.Parallel()
	rules, err := importRules([]byte(made))
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct{ file, imports, refusedBy string }{
		{"managers/cpu/a.go", "fmt", ""},
		{"managers/cpu/a.go", "os", "files"},
		{"managers/cpu/a.go", "os/exec", "files"},
		{"managers/cpu/a_test.go", "os", ""},
		{"managers/cpu/a_windows.go", "os", "files"},
		{"managers/cpu/a.go", "github.com/berthd/berth/managers/cpuset", ""},
		{"managers/cpu/a.go", "github.com/berthd/berth/server/internal/app", "pure"},
		{"managers/cpu/a.go", "example.com/osx", "pure"},
		{"managers/cpu/a.go", "sync", "locks"},
		{"managers/cpu/a.go", "sync/atomic", "locks"},
		{"managers/cpu/a_test.go", "sync", "locks"},
		{"managers/cpu/deep/a.go", "sync", "locks"},
		{"managers/device/a.go", "sync", ""},
		{"server/internal/rpc/cpu/a.go", "github.com/berthd/berth/server/internal/rpc", ""},
		{"server/internal/rpc/cpu/a.go", "github.com/berthd/berth/server/internal/rpc/node", "handlers"},
		{"server/internal/rpc/a.go", "github.com/berthd/berth/server/internal/rpc/node", ""},
		{"server/internal/rpc/a.go", "golang.org/x/sys/unix", ""},
		{"server/internal/rpc/cpu/a.go", "golang.org/x/sys/unix", "kernel"},
		{"server/internal/app/a.go", "golang.org/x/sys/unixlike", ""},
		{"server/internal/app/a.go", "example.com/exact", "kernel"},
		{"server/internal/app/a.go", "example.com/exact/below", ""},
	}
	for _, tt := range tests {
		t.Run(tt.file+" imports "+tt.imports, func(t *testing.T) {
			t.Parallel()
			s := snippet(t, tt.file, "package p\nimport _ \""+tt.imports+"\"\n")
			got := breaches(rules, s)
			switch {
			case tt.refusedBy == "" && len(got) != 0:
				t.Errorf("refused: %v", got)
			case tt.refusedBy != "" && (len(got) != 1 || !strings.Contains(got[0], `"`+tt.refusedBy+`"`)):
				t.Errorf("got %v, want one finding of the rule %q", got, tt.refusedBy)
			}
		})
	}
}

func TestStaleRulesAreFound(t *testing.T) {
	t.Parallel()
	rules, err := importRules([]byte(made))
	if err != nil {
		t.Fatal(err)
	}
	paths := []string{"managers/ledger/a.go", "server/internal/rpc/cpu/a.go", "server/internal/rpc/a.go"}
	gone := []string{"golang.org/x/sys/unix", "github.com/berthd/berth/server/internal/rpc/"}
	got := stale(rules, paths, func(entry string) bool { return !slices.Contains(gone, entry) })
	want := []string{
		`rule "handlers": github.com/berthd/berth/server/internal/rpc/ is neither in the tree nor in a module of go.mod`,
		`rule "kernel": golang.org/x/sys/unix is neither in the tree nor in a module of go.mod`,
		`rule "locks": no file fits managers/device/**`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if exists := known(t, rules); exists("example.com/exact$") || !exists("os") || !exists("golang.org/x/sys") {
		t.Error("known() must know what is in the standard library and in go.mod's modules, and nothing else")
	}
}

func TestUnreadableRulesAreRefused(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, old, new, want string }{
		{"no rule", "depguard:", "other:", "no depguard rule"},
		{"other mode", "list-mode: strict", "list-mode: original", "neither strict with"},
		{"both lists", "deny:", "allow: [fmt]\n          deny:", "neither strict with"},
		{"pattern of another form", "${base-path}/managers/**", "**/managers/**", "does not start with"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, err := importRules([]byte(strings.Replace(made, tt.old, tt.new, 1)))
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want an error about %q", err, tt.want)
			}
		})
	}
}

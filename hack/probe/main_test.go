package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestTasks(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "x")
	terminated := make(chan os.Signal, 3)
	terminated <- syscall.SIGTERM
	terminated <- syscall.SIGTERM
	terminated <- syscall.SIGTERM
	for _, row := range []struct{ task, want string }{
		{"write " + file + " hello", ""},
		{"cat " + file, ""},
		{"fail-once " + file, ""},
		{"wait", ""},
		{"spin", ""},
		{"pulse 1ms", ""},
		{"burn x 1ms", "expected a number"},
		{"burn 0 soon", "invalid duration"},
		{"pulse soon", "expected one as in 5ms"},
		{"show", ""},
		{"device /dev/null", ""},
		{"device " + file, "is no device"},
		{"complain for the test", ""},
		{"", "nothing to do"},
		{"dance", `"dance": unknown verb`},
		{"exit now", "invalid syntax"},
		{"cat " + file + "-none", "no such file"},
	} {
		err := do(strings.Fields(row.task), terminated)
		if row.want == "" && err != nil || row.want != "" && (err == nil || !strings.Contains(err.Error(), row.want)) {
			t.Errorf("%q: %v, want %q", row.task, err, row.want)
		}
	}
	if text, err := os.ReadFile(file); err != nil || string(text) != "hello\n" {
		t.Errorf("%q, %v", text, err)
	}
}

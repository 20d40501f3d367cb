package app

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A machine's file of any size is not read whole.
func TestLargeMachineFile(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "machine.json")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(file, largestMachine+1); err != nil {
		t.Fatal(err)
	}
	if _, err := findMachine(file); err == nil || !strings.Contains(err.Error(), "has more than") {
		t.Error(err)
	}
}

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestRepeatedKeysInFiles: an id or resource that is there twice is ambiguous: which one
// is meant, so the file is refused.
func TestRepeatedKeysInFiles(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte(`{"a":{"podUid":"p","container":"c"},"a":{"podUid":"q","container":"c"}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := loadContainers(t.Context(), path); err == nil || !strings.Contains(err.Error(), `"a"`) {
		t.Errorf("container ids: %v, %v", got, err)
	}
	if err := os.WriteFile(path, []byte("vendor.com/gpu: a,b\nvendor.com/gpu: c\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := (&sceneFlags{devices: path}).allDevices(t.Context(), "simulate"); err == nil || !strings.Contains(err.Error(), "vendor.com/gpu") {
		t.Errorf("devices: %v, %v", got, err)
	}
}

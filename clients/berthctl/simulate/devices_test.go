package simulate

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestRepeatedDevices: a resource that is in a file twice is ambiguous, so the file is refused.
func TestRepeatedDevices(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte("vendor.com/gpu: a,b\nvendor.com/gpu: c\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := (&sceneFlags{devices: path}).allDevices(t.Context(), "simulate"); err == nil ||
		!strings.Contains(err.Error(), "vendor.com/gpu") {
		t.Errorf("devices: %v, %v", got, err)
	}
}

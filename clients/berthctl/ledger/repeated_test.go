package ledger

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestRepeatedContainerIDs: an id that is in a file twice is ambiguous, so the file is refused.
func TestRepeatedContainerIDs(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte(`{"a":{"podUid":"p","container":"c"},"a":{"podUid":"q","container":"c"}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := loadContainers(t.Context(), path); err == nil || !strings.Contains(err.Error(), `"a"`) {
		t.Errorf("container ids: %v, %v", got, err)
	}
}

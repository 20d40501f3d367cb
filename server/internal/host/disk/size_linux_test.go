package disk

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/berthd/berth/managers/errdefs"
)

func TestSize(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	have, err := Size(dir)
	if err != nil || have <= 0 {
		t.Fatalf("%d, %v", have, err)
	}
	later, err := Size(filepath.Join(dir, "not", "made", "yet"))
	if err != nil || later != have {
		t.Errorf("a directory that is not made yet: %d, %v, want %d", later, err, have)
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Size(filepath.Join(file, "below")); errdefs.ClassOf(err) != errdefs.Unavailable {
		t.Errorf("below a file: %v", err)
	}
}

package image_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berthd/berth/clients/berthlet/image"
	"github.com/berthd/berth/managers/errdefs"
)

// TestImagesOfOthers: an image that another user could replace is not read, below the directory of images or elsewhere.
func TestImagesOfOthers(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	root := filepath.Join(dir, "web")
	if err := os.Mkdir(root, 0o755); err != nil {
		t.Fatal(err)
	}
	s := image.NewStore(dir, filepath.Join(t.TempDir(), "layers"))
	for _, ref := range []string{"web", root} {
		if _, err := s.Get(t.Context(), ref); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(root, 0o777); err != nil {
		t.Fatal(err)
	}
	for _, ref := range []string{"web", root} {
		if _, err := s.Get(t.Context(), ref); errdefs.ClassOf(err) != errdefs.Precondition ||
			!strings.Contains(err.Error(), "chmod go-w "+root) {
			t.Errorf("%s: %v", ref, err)
		}
	}
}

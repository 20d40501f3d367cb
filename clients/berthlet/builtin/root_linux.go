package builtin

import (
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berthd/berth/managers/errdefs"
)

// mountRoot puts the layers of an image and a layer of the container's own
// together (kernel documentation, filesystems/overlayfs.rst).
func mountRoot(dir string, layers []string) error {
	for _, name := range []string{rootDir, diffDir, workDir} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			return err
		}
	}
	escaped := make([]string, len(layers))
	for i, l := range layers {
		escaped[i] = escape(l, `:`)
	}
	data := "lowerdir=" + strings.Join(escaped, ":") +
		",upperdir=" + escape(filepath.Join(dir, diffDir), "") +
		",workdir=" + escape(filepath.Join(dir, workDir), "")
	if len(data) >= os.Getpagesize() {
		return errdefs.Unsupportedf("mount the root file system: the image has %d layers, whose paths are too long for mount(2)",
			len(layers))
	}
	if err := unix.Mount("overlay", filepath.Join(dir, rootDir), "overlay", 0, data); err != nil {
		return errdefs.Unavailablef("mount the root file system: overlay of %s: %w", strings.Join(layers, " over "), err)
	}
	return nil
}

// escape escapes characters with a meaning in the options of overlayfs.
func escape(path, more string) string {
	var out strings.Builder
	for _, r := range path {
		if strings.ContainsRune(`\,`+more, r) {
			out.WriteByte('\\')
		}
		out.WriteRune(r)
	}
	return out.String()
}

package volume

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// Pins are the pins of all pods of an agent.
type Pins struct{ dir string }

// NewPins takes the directory of pins, which need not be there; its parent is
// closed to others.
func NewPins(dir string) Pins { return Pins{dir: dir} }

// Holder is a container of a pod.
type Holder struct{ PodUID, Container string }

func (p Pins) holder(h Holder) string { return filepath.Join(p.dir, h.PodUID, h.Container) }

// MakeEmpty creates the directory of an emptyDir volume, writable for every user of the pod, as
// the kubelet does. With a group, the directory and new files in it belong to the group. An
// existing directory is the pod's and does not change.
func MakeEmpty(path string, group *int64) error {
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	beside := path + ".new" // no volume has a point in its name
	if err := os.RemoveAll(beside); err != nil {
		return err
	}
	if err := os.Mkdir(beside, 0o700); err != nil {
		return err
	}
	mode := fs.FileMode(0o777)
	if group != nil {
		mode |= fs.ModeSetgid
		if err := os.Lchown(beside, -1, int(*group)); err != nil {
			return err
		}
	}
	if err := os.Chmod(beside, mode); err != nil {
		return err
	}
	return os.Rename(beside, path)
}

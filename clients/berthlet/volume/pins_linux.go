package volume

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/berthd/berth/clients/berthlet/beneath"
	"github.com/berthd/berth/managers/errdefs"
)

// Pin opens a path below a volume, and creates it as a directory if it is missing. It mounts the
// path's target at the holder's pin, and returns the pin's path. A second pin of the same holder
// and number replaces the first.
func (p Pins) Pin(h Holder, number int, volume, path string) (string, error) {
	place := filepath.Join(p.holder(h), strconv.Itoa(number))
	if err := p.pin(place, volume, path); err != nil {
		return "", fmt.Errorf("subPath %q: %w", path, err)
	}
	return place, nil
}

func (p Pins) pin(place, volume, path string) error {
	root, err := beneath.Root(volume)
	if err != nil {
		return err
	}
	defer root.Close()
	info, err := root.Stat()
	if err != nil {
		return err
	}
	source, err := beneath.OpenOrMake(root, path, info.Mode().Perm())
	if err != nil {
		return err
	}
	defer source.Close()
	if info, err = source.Stat(); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(place), 0o700); err != nil {
		return err
	}
	if err := remove(place); err != nil {
		return err
	}
	switch kind := info.Mode().Type(); kind {
	case fs.ModeDir:
		err = os.Mkdir(place, 0o700)
	case 0, fs.ModeSocket:
		err = os.WriteFile(place, nil, 0o600)
	default:
		return errdefs.PermissionDeniedf("%s is of the kind %s: expected a directory, a regular file or a socket", source.Name(), kind)
	}
	if err != nil {
		return err
	}
	// The link in /proc leads to the opened file, even if its name has another target now.
	err = unix.Mount("/proc/self/fd/"+strconv.Itoa(int(source.Fd())), place, "", unix.MS_BIND, "")
	if err == nil {
		err = unix.Mount("", place, "", unix.MS_PRIVATE, "")
	}
	if err != nil {
		return errors.Join(errdefs.Unavailablef("mount %s at %s: %w", source.Name(), place, err), remove(place))
	}
	return nil
}

// Release removes the pins of a container.
func (p Pins) Release(h Holder) error { return removeAll(p.holder(h)) }

// ReleasePod removes the pins of a pod.
func (p Pins) ReleasePod(uid string) error {
	dir := filepath.Join(p.dir, uid)
	names, err := list(dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := removeAll(filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return removeIfThere(dir)
}

// Holders lists the pods that have pins.
func (p Pins) Holders() ([]string, error) { return list(p.dir) }

func list(dir string) (names []string, err error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, err
}

// removeAll removes the pins of a directory, and it.
func removeAll(dir string) error {
	names, err := list(dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := remove(filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return removeIfThere(dir)
}

// remove undoes every mount at a place and removes the place, which is empty then.
func remove(place string) error {
	for {
		err := unix.Unmount(place, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
			return removeIfThere(place)
		}
		if err != nil {
			return fmt.Errorf("unmount %s: %w", place, err)
		}
	}
}

func removeIfThere(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

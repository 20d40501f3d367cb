package image

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	// whiteout is the prefix of a deleted file's name. opaque is a file that deletes everything
	// below its directory (OCI image specification, layer.md).
	whiteout = ".wh."
	opaque   = ".wh..wh..opq"
	// overlayXattrs is the prefix of overlayfs's attributes, for example of opaque directories.
	// An image must not set them (kernel documentation, filesystems/overlayfs.rst).
	overlayXattrs = "trusted.overlay."
)

// unpack writes an archive into a directory. Every name is looked up below it, so
// that no link of the archive leads outside.
func unpack(ctx context.Context, dir string, r io.Reader) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	var dirs []*tar.Header // their times change with every entry in them
	archive := tar.NewReader(r)
	for {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return err
		}
		h.Name = strings.TrimPrefix(path.Clean("/"+h.Name), "/")
		if h.Name == "" {
			continue
		}
		if err := entry(root, h, archive); err != nil {
			return fmt.Errorf("unpack %q: %w", h.Name, err)
		}
		if h.Typeflag == tar.TypeDir {
			dirs = append(dirs, h)
		}
	}
	for _, h := range dirs {
		if err := root.Chtimes(h.Name, h.ModTime, h.ModTime); err != nil {
			return err
		}
	}
	return nil
}

// entry makes one entry of an archive.
func entry(root *os.Root, h *tar.Header, content io.Reader) error {
	dir, base := path.Split(h.Name)
	if dir != "" {
		if err := root.MkdirAll(strings.TrimSuffix(dir, "/"), 0o755); err != nil {
			return err
		}
	}
	switch {
	case base == opaque:
		return within(root, dir, func(fd int) error { return unix.Fsetxattr(fd, overlayXattrs+"opaque", []byte("y"), 0) })
	case strings.HasPrefix(base, whiteout):
		// overlayfs marks a deleted file with a character device 0/0.
		gone := strings.TrimPrefix(base, whiteout)
		return within(root, dir, func(fd int) error { return unix.Mknodat(fd, gone, unix.S_IFCHR, 0) })
	}
	if err := replace(root, h); err != nil {
		return err
	}
	if err := create(root, h, dir, base, content); err != nil {
		return err
	}
	if h.Typeflag == tar.TypeLink {
		return nil // it has the attributes of its target
	}
	if err := root.Lchown(h.Name, h.Uid, h.Gid); err != nil {
		return err
	}
	if h.Typeflag == tar.TypeSymlink {
		return nil
	}
	// After the owner, since a change of owner takes setuid away.
	if err := root.Chmod(h.Name, h.FileInfo().Mode()); err != nil {
		return err
	}
	if err := xattrs(root, h); err != nil {
		return err
	}
	return root.Chtimes(h.Name, h.ModTime, h.ModTime)
}

// replace removes an existing file at an entry's path. An existing directory stays if the entry
// is a directory.
func replace(root *os.Root, h *tar.Header) error {
	info, err := root.Lstat(h.Name)
	switch {
	case errors.Is(err, fs.ErrNotExist), err == nil && info.IsDir() && h.Typeflag == tar.TypeDir:
		return nil
	case err != nil:
		return err
	}
	return root.RemoveAll(h.Name)
}

// create makes the file of an entry, without its owner, mode and time.
func create(root *os.Root, h *tar.Header, dir, base string, content io.Reader) error {
	switch h.Typeflag {
	case tar.TypeDir:
		err := root.Mkdir(h.Name, 0o755)
		if errors.Is(err, fs.ErrExist) {
			return nil
		}
		return err
	case tar.TypeReg:
		f, err := root.OpenFile(h.Name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return err
		}
		_, err = io.Copy(f, content)
		return errors.Join(err, f.Close())
	case tar.TypeSymlink:
		return root.Symlink(h.Linkname, h.Name)
	case tar.TypeLink:
		return root.Link(strings.TrimPrefix(path.Clean("/"+h.Linkname), "/"), h.Name)
	case tar.TypeChar, tar.TypeBlock, tar.TypeFifo:
		kind := map[byte]uint32{tar.TypeChar: unix.S_IFCHR, tar.TypeBlock: unix.S_IFBLK, tar.TypeFifo: unix.S_IFIFO}[h.Typeflag]
		device := int(unix.Mkdev(uint32(h.Devmajor), uint32(h.Devminor)))
		return within(root, dir, func(fd int) error { return unix.Mknodat(fd, base, kind, device) })
	}
	return fmt.Errorf("an entry of type %q is not known", h.Typeflag)
}

// xattrs sets the extended attributes of a regular file or directory.
func xattrs(root *os.Root, h *tar.Header) error {
	const prefix = "SCHILY.xattr."
	for key, value := range h.PAXRecords {
		name, ok := strings.CutPrefix(key, prefix)
		if !ok || strings.HasPrefix(name, overlayXattrs) || h.Typeflag != tar.TypeReg && h.Typeflag != tar.TypeDir {
			continue
		}
		err := within(root, h.Name, func(fd int) error { return unix.Fsetxattr(fd, name, []byte(value), 0) })
		// As other unpackers do: a file system without this kind loses it.
		if err != nil && !errors.Is(err, unix.ENOTSUP) && !errors.Is(err, unix.EPERM) {
			return fmt.Errorf("set attribute %s: %w", name, err)
		}
	}
	return nil
}

// within opens a file below the root and hands out its descriptor.
func within(root *os.Root, name string, do func(fd int) error) error {
	if name = strings.TrimSuffix(name, "/"); name == "" {
		name = "."
	}
	f, err := root.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	return do(int(f.Fd()))
}

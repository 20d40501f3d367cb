// Package archive writes the image that the VM's kernel unpacks into its
// first file system: a cpio archive in the newc format, which is what
// Documentation/driver-api/early-userspace/buffer-format.rst of the kernel
// describes.
//
// # Words
//
//   - entry: a folder, a file, a link or a device.
//
// # Invariants
//
//   - Everything belongs to root, and has no time: the same files give the same
//     bytes.
//   - A folder stands before what is in it, since the kernel makes no parents.
package archive

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// Writer writes an archive. The first error stays, and Close returns it.
type Writer struct {
	w       io.Writer
	err     error
	written int64
	inode   int
	folders map[string]bool
}

// New makes a writer.
func New(w io.Writer) *Writer { return &Writer{w: w, folders: map[string]bool{".": true}} }

// Modes of the entries, as in inode(7).
const (
	modeFolder = 0o040755
	modeFile   = 0o100000
	modeDevice = 0o020600
	modeLink   = 0o120777
)

// Folder adds a folder and those above it; one that is there already stays.
func (a *Writer) Folder(name string) {
	name = clean(name)
	if a.folders[name] {
		return
	}
	a.Folder(path.Dir(name))
	a.folders[name] = true
	a.header(name, modeFolder, 0, 0, 0)
}

// Bytes adds a file with the given permissions.
func (a *Writer) Bytes(name string, perm fs.FileMode, data []byte) {
	a.Folder(path.Dir(clean(name)))
	a.header(clean(name), modeFile|int(perm.Perm()), len(data), 0, 0)
	a.write(data)
	a.pad()
}

// Link adds a symbolic link.
func (a *Writer) Link(name, target string) {
	a.Folder(path.Dir(clean(name)))
	a.header(clean(name), modeLink, len(target), 0, 0)
	a.write([]byte(target))
	a.pad()
}

// Device adds a character device.
func (a *Writer) Device(name string, major, minor int) {
	a.Folder(path.Dir(clean(name)))
	a.header(clean(name), modeDevice, 0, major, minor)
}

// File adds a file of the host.
func (a *Writer) File(name, host string) {
	info, err := os.Stat(host)
	if err != nil {
		a.fail(err)
		return
	}
	data, err := os.ReadFile(host)
	a.fail(err)
	a.Bytes(name, info.Mode(), data)
}

// Tree adds what is in a folder of the host, with symbolic links as they are.
func (a *Writer) Tree(name, host string) {
	a.fail(filepath.WalkDir(host, func(file string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(host, file)
		if err != nil {
			return err
		}
		to := path.Join(name, filepath.ToSlash(rel))
		switch {
		case entry.IsDir():
			a.Folder(to)
		case entry.Type()&fs.ModeSymlink != 0:
			target, err := os.Readlink(file)
			if err != nil {
				return err
			}
			a.Link(to, target)
		case entry.Type().IsRegular():
			a.File(to, file)
		}
		return a.err
	}))
}

// Close ends the archive. What it was written to stays open.
func (a *Writer) Close() error {
	a.header("TRAILER!!!", 0, 0, 0, 0)
	return a.err
}

// clean makes a name relative to the root.
func clean(name string) string { return path.Clean(strings.TrimLeft(name, "/")) }

// header writes what stands before an entry's bytes.
func (a *Writer) header(name string, mode, size, major, minor int) {
	a.inode++
	const links, noTime, noDevice, noCheck = 1, 0, 0, 0
	a.write(fmt.Appendf(nil, "070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%s\x00",
		a.inode, mode, 0, 0, links, noTime, size, noDevice, noDevice, major, minor, len(name)+1, noCheck, name))
	a.pad()
}

// pad fills up to the next multiple of four.
func (a *Writer) pad() { a.write(make([]byte, -a.written&3)) }

func (a *Writer) write(data []byte) {
	if a.err != nil {
		return
	}
	n, err := a.w.Write(data)
	a.written += int64(n)
	a.fail(err)
}

func (a *Writer) fail(err error) {
	if a.err == nil {
		a.err = err
	}
}

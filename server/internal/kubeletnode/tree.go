package kubeletnode

import (
	"bytes"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"syscall"
	"time"
)

// mostLinks is how many links a path may have.
const mostLinks = 40

// tree is a file system in memory: a directory, a file or a link.
type tree struct {
	name string
	mode fs.FileMode
	mod  time.Time
	data []byte // of a file; of a link where it leads
	in   map[string]*tree
}

func newTree() *tree { return &tree{name: ".", mode: fs.ModeDir | 0o555, in: map[string]*tree{}} }

// add puts a file or a link at a path. What is there is replaced, and directories above it are made.
func (t *tree) add(name string, file *tree) {
	at := t
	parts := strings.Split(name, "/")
	for _, part := range parts[:len(parts)-1] {
		next := at.in[part]
		if next == nil || next.in == nil {
			next = newTree()
			next.name = part
			at.in[part] = next
		}
		at = next
	}
	file.name = parts[len(parts)-1]
	at.in[file.name] = file
}

// find follows a path and its links. A link that leads out of the tree leads to its root.
func (t *tree) find(name string, links *int) (*tree, error) {
	at, before := t, ""
	for name != "" && name != "." {
		var part string
		part, name, _ = strings.Cut(name, "/")
		next := at.in[part]
		if next == nil {
			return nil, fs.ErrNotExist
		}
		if next.mode.Type() != fs.ModeSymlink {
			at, before = next, path.Join(before, part)
			continue
		}
		if *links++; *links > mostLinks {
			return nil, syscall.ELOOP
		}
		to := string(next.data)
		if !path.IsAbs(to) {
			to = path.Join("/", before, to)
		}
		return t.find(strings.TrimPrefix(path.Join(path.Clean(to), name), "/"), links)
	}
	return at, nil
}

// Open implements fs.FS.
func (t *tree) Open(name string) (fs.File, error) {
	if !fs.ValidPath(name) {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrInvalid}
	}
	found, err := t.find(name, new(int))
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	return &opened{found, bytes.NewReader(found.data), slices.Sorted(maps.Keys(found.in))}, nil
}

// opened is an open file or directory.
type opened struct {
	*tree
	*bytes.Reader
	left []string
}

func (o *opened) Stat() (fs.FileInfo, error) { return o.tree, nil }

func (o *opened) Close() error { return nil }

// ReadDir implements fs.ReadDirFile.
func (o *opened) ReadDir(n int) (out []fs.DirEntry, err error) {
	if n <= 0 || n > len(o.left) {
		if n > 0 && len(o.left) == 0 {
			return nil, io.EOF
		}
		n = len(o.left)
	}
	for _, name := range o.left[:n] {
		out = append(out, fs.FileInfoToDirEntry(o.in[name]))
	}
	o.left = o.left[n:]
	return out, nil
}

func (t *tree) Name() string       { return t.name }
func (t *tree) Size() int64        { return int64(len(t.data)) }
func (t *tree) Mode() fs.FileMode  { return t.mode }
func (t *tree) ModTime() time.Time { return t.mod }
func (t *tree) IsDir() bool        { return t.mode.IsDir() }
func (t *tree) Sys() any           { return nil }

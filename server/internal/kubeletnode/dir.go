package kubeletnode

import (
	"errors"
	"io/fs"
	"os"
	"strings"
)

// Dir is a directory with a node's files. Links do not lead out of it.
type Dir struct{ root *os.Root }

// OpenDir opens a directory.
func OpenDir(name string) (*Dir, error) {
	root, err := os.OpenRoot(name)
	if err != nil {
		return nil, err
	}
	return &Dir{root}, nil
}

// Close ends its use.
func (d *Dir) Close() error { return d.root.Close() }

// Open implements fs.FS.
func (d *Dir) Open(name string) (fs.File, error) { return d.root.FS().Open(name) }

// Stat implements fs.StatFS.
func (d *Dir) Stat(name string) (fs.FileInfo, error) { return fs.Stat(d.root.FS(), name) }

// ReadDir implements fs.ReadDirFS.
func (d *Dir) ReadDir(name string) ([]fs.DirEntry, error) { return fs.ReadDir(d.root.FS(), name) }

// openPath is the directories that lead to the file that was opened last, each below the one before. A machine has thousands of
// small files, and os.Root opens every directory of every name: that took half of the time of a reading. It is for one reading,
// because a directory may be replaced by another one of the same name.
type openPath struct {
	root  *os.Root
	names []string
	dirs  []*os.Root
}

// open opens a regular file. known is false for a link or another kind of file, and below a directory that is one.
func (p *openPath) open(name string) (f fs.File, known bool, err error) {
	names := strings.Split(name, "/")
	last := len(names) - 1
	dir, ok := p.to(names[:last])
	if !ok {
		return nil, false, nil
	}
	info, err := dir.Lstat(names[last])
	if err == nil {
		if !info.Mode().IsRegular() {
			return nil, false, nil
		}
		f, err = dir.Open(names[last])
	}
	if pathError := (*fs.PathError)(nil); errors.As(err, &pathError) {
		pathError.Path = name
	}
	return f, true, err
}

// to opens the directories of a name. It is false if one of them is a link, or cannot be opened.
func (p *openPath) to(names []string) (*os.Root, bool) {
	same := 0
	for same < min(len(names), len(p.names)) && names[same] == p.names[same] {
		same++
	}
	p.cut(same)
	dir := p.root
	if same > 0 {
		dir = p.dirs[same-1]
	}
	for _, name := range names[same:] {
		info, err := dir.Lstat(name)
		if err != nil || !info.IsDir() {
			return nil, false
		}
		if dir, err = dir.OpenRoot(name); err != nil {
			return nil, false
		}
		p.names, p.dirs = append(p.names, name), append(p.dirs, dir)
	}
	return dir, true
}

// cut closes all directories but the first ones.
func (p *openPath) cut(to int) {
	for _, dir := range p.dirs[to:] {
		_ = dir.Close()
	}
	p.names, p.dirs = p.names[:to], p.dirs[:to]
}

package trust

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/berthd/berth/api/input"
)

// CheckFile returns an error of class Precondition if a file is not trusted, or the way to it is
// not.
func CheckFile(path string) error { return check(path, want{file: true}) }

// ReadFile reads a regular file that decides, at most that many bytes.
func ReadFile(path string, most int64) ([]byte, error) {
	if err := CheckFile(path); err != nil {
		return nil, err
	}
	f, err := input.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := opened(f, path); err != nil {
		return nil, err
	}
	return input.Opened(f, path, most)
}

// Folder is an open directory whose files decide. Its methods reach what is beneath it, whatever
// its path leads to meanwhile.
type Folder struct {
	path string
	root *os.Root
}

// OpenFolder opens a trusted directory.
func OpenFolder(path string) (*Folder, error) {
	if err := Check(path); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, err
	}
	info, err := root.Stat(".")
	if err == nil {
		err = checkInfo(path, info, true, false)
	}
	if err != nil {
		_ = root.Close()
		return nil, err
	}
	return &Folder{path: path, root: root}, nil
}

// Close closes the directory.
func (f *Folder) Close() error { return f.root.Close() }

// List lists the directory, by name.
func (f *Folder) List() ([]fs.DirEntry, error) { return fs.ReadDir(f.root.FS(), ".") }

// ReadFile reads a trusted regular file beneath the directory, at most that many bytes. A link may
// lead to another file beneath it.
func (f *Folder) ReadFile(name string, most int64) ([]byte, error) {
	path := filepath.Join(f.path, name)
	if err := CheckFile(path); err != nil {
		return nil, err
	}
	file, err := input.OpenIn(f.root, name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if err := opened(file, path); err != nil {
		return nil, err
	}
	return input.Opened(file, path, most)
}

// opened checks the file that was opened: the path may lead elsewhere by now.
func opened(f *os.File, path string) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	return checkInfo(path, info, true, true)
}

// CheckSocket checks where a socket of another program lies: whoever can replace it answers in the
// program's place. The endpoint is a path, or unix:// and a path. If it leads over links, the directory of each
// is checked as that of the socket.
func CheckSocket(endpoint string) error {
	path, ok := SocketPath(endpoint)
	if !ok {
		return fmt.Errorf("%w, and %.200q is none", errNoSocket, endpoint)
	}
	return check(path, want{socket: true, partly: true})
}

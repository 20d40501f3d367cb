//go:build !linux

package claimfiles

import (
	"errors"
	"os"
)

// folder is an open directory.
type folder struct{ dir *os.Root }

func openFolder(dir *os.Root) (folder, error) { return folder{dir}, nil }

// create makes a file that is not there and writes it with one call.
func (f folder) create(name string, content []byte) error {
	out, err := f.dir.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, fileMode)
	if err != nil {
		return err
	}
	_, err = out.Write(content)
	return errors.Join(err, out.Close())
}

func (f folder) rename(from, to string) error { return f.dir.Rename(from, to) }

func (f folder) remove(name string) error { return f.dir.Remove(name) }

func (f folder) close() error { return nil }

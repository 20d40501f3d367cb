package store

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/berthd/berth/managers/errdefs"
)

// probeFile is what Probe writes, and removes again.
const probeFile = ".probe"

// probeBytes is what a small commit needs.
const probeBytes = 4096

// Probe reports whether a commit can succeed now: the ledger's file is in place and usable, and a
// file next to it can be written and synced. It waits for a commit in progress, and does not
// change the ledger's file. It takes one sync of the disk.
func (s *Store) Probe() error {
	s.mu.Lock()
	err := errors.Join(s.damage, s.broken)
	if err == nil && s.db == nil {
		err = errdefs.Unavailablef("probe %s: it is closed", s.path)
	}
	if err == nil {
		err = errors.Join(s.inPlace(), s.unwritten())
	}
	s.mu.Unlock()
	if err != nil {
		return err
	}
	path := filepath.Join(filepath.Dir(s.path), probeFile)
	if err := writeProbe(path); err != nil {
		return unavailable("write and sync a file next to the ledger", path, err)
	}
	return nil
}

func writeProbe(path string) (err error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close(), os.Remove(path)) }()
	if _, err := f.Write(make([]byte, probeBytes)); err != nil {
		return err
	}
	return f.Sync()
}

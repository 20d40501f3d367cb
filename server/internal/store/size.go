package store

import (
	"errors"
	"os"
	"path/filepath"

	"go.etcd.io/bbolt"

	"github.com/berthd/berth/server/internal/host/disk"
)

const (
	// compactedFrom is how much of a file has to be free before a start makes it smaller.
	compactedFrom = 16 << 20
	// compactStep limits one transaction of a compaction.
	compactStep = 4 << 20
)

// limit sets how large a commit may make the file. The last quarter is for commits that do not make the
// state larger: what fills the file can be removed again, although each commit writes new pages first.
func (s *Store) limit(growth int) {
	s.db.MaxSize = int(s.opts.Largest)
	if growth > 0 {
		s.db.MaxSize -= int(s.opts.Largest / 4)
	}
}

// compact replaces the file by one without free pages, because bbolt never makes a file smaller.
func (s *Store) compact() error {
	if err := os.Remove(s.fresh()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return unavailable("remove unfinished", s.fresh(), err)
	}
	if err := copyState(s.fresh(), s.path); err != nil {
		_ = os.Remove(s.fresh())
		return err
	}
	s.opts.Failpoint.Hit(AfterCompact)
	if err := os.Rename(s.fresh(), s.path); err != nil {
		return unavailable("replace", s.path, err)
	}
	return disk.Sync(filepath.Dir(s.path))
}

// copyState copies every bucket of a file with checked pages into a new file.
func copyState(to, from string) error {
	source, _, err := openFile(from, true)
	if err != nil {
		return err
	}
	defer func() { _ = source.Close() }()
	target, _, err := openFile(to, false)
	if err != nil {
		return err
	}
	if err := errors.Join(bbolt.Compact(target, source, compactStep), target.Sync(), target.Close()); err != nil {
		return unavailable("copy "+from+" to", to, err)
	}
	return nil
}

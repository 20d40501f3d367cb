package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"go.etcd.io/bbolt"
	bbolterrors "go.etcd.io/bbolt/errors"

	"github.com/berthd/berth/api/ledgerfile"
	"github.com/berthd/berth/api/trust"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger/journal"
	"github.com/berthd/berth/server/internal/failpoint"
	"github.com/berthd/berth/server/internal/host/disk"
)

// The points of this package, in the order in which a daemon comes to them.
const (
	BeforeOpen     = "store/before-open"
	AfterOpen      = "store/after-open"
	AfterCompact   = "store/after-compact"
	BeforeBegin    = "store/before-begin"
	AfterPut       = "store/after-put"
	BeforeCommit   = "store/before-commit"
	AfterCommit    = "store/after-commit"
	BeforeSetAside = "store/before-set-aside"
	AfterSalvage   = "store/after-salvage"
	AfterReport    = "store/after-report"
	AfterKeep      = "store/after-keep"
	AfterRename    = "store/after-rename"
	BeforeRecreate = "store/before-recreate"
	AfterRecreate  = "store/after-recreate"
)

// Failpoints returns all points of this package.
func Failpoints() []string {
	return []string{
		BeforeOpen, AfterOpen, AfterCompact, BeforeBegin, AfterPut, BeforeCommit, AfterCommit,
		BeforeSetAside, AfterSalvage, AfterReport, AfterKeep, AfterRename,
		BeforeRecreate, AfterRecreate,
	}
}

const (
	dirMode  = 0o700
	fileMode = 0o600
	// lockTimeout is how long bbolt waits for its own lock on the file. The state directory's
	// lock is acquired first, so only a reader can hold this one.
	lockTimeout = 500 * time.Millisecond
)

// Options are options for opening a file.
type Options struct {
	// ReadOnly opens an existing file for Load alone. It creates nothing, and
	// does not need the directory's lock; a file that a daemon has open is
	// refused with class Unavailable.
	ReadOnly bool
	// Largest is the size that the file must not exceed; 0 means ledgerfile.Largest. Other values are
	// for tests.
	Largest int64
	// Failpoint is for tests; nil otherwise.
	Failpoint failpoint.Hook
	// Notice, if set, is called when the file or the lock had to be created again while the store
	// was open.
	Notice func(text string)
}

// Store is a journal.Journal on one file. Load and Commit must not be called concurrently. Close
// may be called at any time and waits for them.
type Store struct {
	path string
	opts Options
	lock *lock
	// lost is closed when broken is set.
	lost chan struct{}

	// reading is db for those who read the history, which does not wait for commits.
	reading atomic.Pointer[bbolt.DB]

	mu sync.Mutex // held by Load, Commit and Close over all that they do
	db *bbolt.DB
	// damage is why the file cannot be used: class Corrupt. Then db is nil.
	damage error
	// broken is set when a commit has an unknown outcome.
	broken error
	last   uint64 // generation of the last commit through this store

	file *os.File       // that db is on, which closes it
	own  syscall.Stat_t // of file
	txid int            // of the last transaction that was committed
	size int64          // of the file, at least
	// pageSize of the file.
	pageSize int64
	// ahead: the file has a change that was committed and not acknowledged.
	ahead bool
}

// Open opens the file at path, and creates the directory and an empty file if they are missing. A
// damaged file is no error here: Load reports it, and OpenLedger salvages it. Errors:
// class Conflict if another process has the directory, with its pid; class Unavailable with
// operation and path for errors of the file system; class NotFound for a missing file that is
// opened for reading only.
func Open(path string, o Options) (*Store, error) {
	o.Largest = cmp.Or(o.Largest, ledgerfile.Largest)
	s := &Store{path: path, opts: o, lost: make(chan struct{})}
	if !o.ReadOnly {
		dir := filepath.Dir(path)
		if err := trust.MkdirAll(dir, dirMode); err != nil {
			return nil, unavailable("create state directory", dir, err)
		}
		lock, err := acquire(dir)
		if err != nil {
			return nil, err
		}
		s.lock = lock
	}
	if err := s.open(); err != nil {
		_ = s.Close()
		return nil, err
	}
	return s, nil
}

// open checks and opens the file, or notes its damage.
func (s *Store) open() error {
	s.opts.Failpoint.Hit(BeforeOpen)
	s.ahead = false
	info, err := os.Stat(s.path)
	missing := errors.Is(err, fs.ErrNotExist)
	switch {
	case missing && s.opts.ReadOnly:
		return errdefs.NotFoundf("open ledger file: %w", err)
	case missing:
		if err := create(s.path); err != nil {
			return err
		}
	case err != nil:
		return unavailable("open ledger file", s.path, err)
	default:
		if err := regular(s.path, info); err != nil {
			return err
		}
	}
	if s.opts.ReadOnly {
		reader, err := acquireReader(s.path)
		if err != nil {
			return err
		}
		defer reader.Close()
	}
	sparse, err := checkFile(s.path, s.opts.Largest)
	switch {
	case errdefs.ClassOf(err) == errdefs.Corrupt:
		s.damage = err
		return nil
	case err != nil:
		return err
	case sparse && !s.opts.ReadOnly:
		if err := s.compact(); err != nil {
			s.notice("the ledger's file %s is mostly empty, and could not be made smaller: %v", s.path, err)
		}
	}
	if s.db, s.file, err = openFile(s.path, s.opts.ReadOnly); err != nil {
		return err
	}
	if err := syscall.Fstat(int(s.file.Fd()), &s.own); err != nil {
		return unavailable("look at", s.path, err)
	}
	if err := s.db.View(func(tx *bbolt.Tx) error {
		s.txid, s.size, s.pageSize = tx.ID(), tx.Size(), int64(s.db.Info().PageSize)
		return nil
	}); err != nil {
		return unavailable("read", s.path, err)
	}
	s.reading.Store(s.db)
	s.opts.Failpoint.Hit(AfterOpen)
	return nil
}

// create creates an empty file under another name and renames it, so that a crash or a full disk
// leaves no file that looks damaged.
func create(path string) error {
	fresh := path + ".new"
	if err := build(fresh, nil); err != nil {
		return err
	}
	if err := os.Rename(fresh, path); err != nil {
		return unavailable("create ledger file", path, err)
	}
	return disk.Sync(filepath.Dir(path))
}

// build makes a file with entries, in place of one that was not finished.
func build(path string, entries []journal.Entry) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return unavailable("remove unfinished", path, err)
	}
	db, _, err := openFile(path, false)
	if err != nil {
		_ = os.Remove(path)
		return err
	}
	if len(entries) > 0 {
		err = db.Update(func(tx *bbolt.Tx) error {
			_, err := put(tx, entries)
			return err
		})
	}
	if err = errors.Join(err, db.Close()); err != nil {
		_ = os.Remove(path)
		return unavailable("write", path, err)
	}
	return nil
}

// openFile opens a file with checked pages, or a new one. The returned file is the database's.
func openFile(path string, readOnly bool) (*bbolt.DB, *os.File, error) {
	var file *os.File
	db, err := bbolt.Open(path, fileMode, &bbolt.Options{
		Timeout: lockTimeout, ReadOnly: readOnly, FreelistType: bbolt.FreelistMapType, NoStatistics: true,
		OpenFile: func(path string, flags int, mode os.FileMode) (f *os.File, err error) {
			file, err = openRegular(path, flags, mode)
			return file, err
		},
	})
	switch {
	case errors.Is(err, bbolterrors.ErrTimeout):
		return nil, nil, errdefs.Unavailablef("open ledger file %s: another process has it open", path)
	case err != nil:
		return nil, nil, opening("open ledger file", path, err)
	}
	return db, file, nil
}

// Load returns every entry but those of the history. Class Corrupt means that the file is
// damaged.
func (s *Store) Load(ctx context.Context) ([]journal.Entry, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(ctx, "load"); err != nil {
		return nil, err
	}
	var entries []journal.Entry
	err := s.db.View(func(tx *bbolt.Tx) error {
		return tx.ForEach(func(bucket []byte, b *bbolt.Bucket) error {
			if b == nil {
				return errdefs.Corruptf("load %s: %q is not a bucket", s.path, bucket)
			}
			if journal.OfHistory(string(bucket)) {
				return nil
			}
			return b.ForEach(func(key, value []byte) error {
				if value == nil {
					return errdefs.Corruptf("load %s: bucket %q has a bucket %q inside", s.path, bucket, key)
				}
				entries = append(entries, journal.Entry{Bucket: string(bucket), Key: string(key), Value: append([]byte{}, value...)})
				return nil
			})
		})
	})
	if err != nil {
		return nil, err
	}
	return entries, nil
}

// Commit implements journal.Journal: one transaction, synced.
func (s *Store) Commit(ctx context.Context, gen uint64, batch []journal.Entry) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(ctx, "commit"); err != nil {
		return err
	}
	if s.broken != nil {
		return s.broken
	}
	if gen <= s.last {
		return errdefs.Internalf("commit generation %d to %s after generation %d", gen, s.path, s.last)
	}
	s.opts.Failpoint.Hit(BeforeBegin)
	if err := s.unwritten(); err != nil {
		return err
	}
	tx, err := s.db.Begin(true)
	if err != nil {
		return unavailable("begin commit", s.path, err)
	}
	id, size := tx.ID(), tx.Size()
	growth, err := put(tx, batch)
	if err != nil {
		_ = tx.Rollback()
		return unavailable("commit", s.path, err)
	}
	s.limit(growth)
	s.opts.Failpoint.Hit(AfterPut)
	s.opts.Failpoint.Hit(BeforeCommit)
	if err := tx.Commit(); err != nil {
		return s.failed(id, err)
	}
	s.txid, s.size = id, size
	s.opts.Failpoint.Hit(AfterCommit)
	if err := s.inPlace(); err != nil {
		// The commit is on the disk, in a file that a start may not find. The ledger continues
		// without the commit, so this file must not be used further.
		s.ahead = true
		return err
	}
	s.last = gen
	return nil
}

// put writes a batch into a transaction. It returns by how many bytes the batch makes the state
// larger; the history has its own limit and does not count.
func put(tx *bbolt.Tx, batch []journal.Entry) (growth int, err error) {
	var b *bbolt.Bucket
	var name string             // of b
	key := make([]byte, 0, 128) // its room serves all entries: bbolt copies keys
	for _, e := range batch {
		if b == nil || e.Bucket != name {
			name = e.Bucket
			if b = tx.Bucket([]byte(name)); b == nil {
				b, err = tx.CreateBucket([]byte(name))
			}
			if err == nil && name == journal.BucketHistory {
				b.FillPercent = 0.9 // its keys ascend
			}
		}
		key = append(key[:0], e.Key...)
		if err == nil && !journal.OfHistory(name) {
			growth += len(e.Value) - len(b.Get(key))
		}
		if err == nil && e.Value == nil {
			err = b.Delete(key)
		} else if err == nil {
			err = b.Put(key, e.Value)
		}
		if err != nil {
			return 0, fmt.Errorf("%s/%s: %w", e.Bucket, e.Key, err)
		}
	}
	return growth, nil
}

// failed decides about a transaction whose commit failed. Its pages count only once a meta page
// refers to them. If readers do not see the transaction, it has no effect, and the next one may
// succeed. If they see it, it was written but not synced, and only the next start can find out
// what is on the disk.
func (s *Store) failed(id int, cause error) error {
	err := s.db.View(func(tx *bbolt.Tx) error {
		if tx.ID() >= id {
			return fmt.Errorf("it is written but not synced")
		}
		return nil
	})
	switch {
	case err == nil && errors.Is(cause, bbolterrors.ErrMaxSizeReached):
		return errdefs.Exhaustedf("commit to %s: its file would be larger than %d bytes, which a start of berthd would refuse", s.path,
			s.db.MaxSize)
	case err == nil:
		return unavailable("commit", s.path, cause)
	}
	s.broken = errdefs.Unavailablef("commit to %s has an unknown outcome (%w): %w", s.path, err, cause)
	close(s.lost)
	return s.broken
}

// Watch waits for a commit with an unknown outcome, and returns its error. The memory may then
// differ from the disk, and no commit succeeds until the file is opened again. If ctx ends first,
// its error is returned.
func (s *Store) Watch(ctx context.Context) error {
	select {
	case <-s.lost:
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.broken
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Close closes the file and gives up the lock.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var err error
	if s.db != nil {
		err = s.db.Close()
	}
	s.db, s.damage = nil, nil
	if s.lock != nil {
		err = errors.Join(err, s.lock.release())
		s.lock = nil
	}
	if err != nil {
		return unavailable("close", s.path, err)
	}
	return nil
}

// usable reports why a call cannot be served.
func (s *Store) usable(ctx context.Context, operation string) error {
	switch {
	case s.damage != nil:
		return s.damage
	case s.db == nil:
		return errdefs.Unavailablef("%s %s: it is closed", operation, s.path)
	}
	return ctx.Err()
}

// unavailable adds the operation and the path to an error of the system.
func unavailable(operation, path string, err error) error {
	var named *fs.PathError
	if errors.As(err, &named) && named.Path == path {
		err = named.Err // the path is not repeated
	}
	return errdefs.Unavailablef("%s %s: %w", operation, path, err)
}

package ledgerfile

import (
	"context"
	"errors"
	"io"
	"os"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger/journal"
)

// Largest is the size that no ledger's file exceeds. berthd refuses commits that would make its file
// larger, so every file that it wrote can be read. It also bounds what reading a file takes: a file
// may have holes.
const Largest = 1 << 30

// readAttempts limits how often a file that changes is read again, and damagedAttempts how often
// one that looks damaged is: a commit may be writing a meta page.
const (
	readAttempts    = 32
	damagedAttempts = 3
)

// Read returns the entries of the file at path, the history's included, in no order. It takes no
// lock and changes nothing, so berthd may have the file open: the entries are those after one of
// its commits. Of a damaged file it returns what is whole, and damage.
//
// Errors are of class NotFound for a missing file, Precondition for what is no regular file or is
// larger than any ledger, and Unavailable if berthd commits faster than the file can be read, or
// if the system cannot read it.
func Read(ctx context.Context, path string) (found journal.Found, damage error, err error) {
	f, err := Open(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return found, nil, errdefs.NotFoundf("read the ledger file: %w", err)
	case err != nil:
		return found, nil, errdefs.Unavailablef("read the ledger file: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return found, nil, errdefs.Unavailablef("read the ledger file: %w", err)
	case !info.Mode().IsRegular():
		return found, nil, errdefs.Preconditionf("%s is no regular file, so it is no ledger", path)
	}
	return readStable(ctx, path, f, readAttempts)
}

// source is a file that may change while it is read.
type source interface {
	io.ReaderAt
	Stat() (os.FileInfo, error)
}

// readStable reads a file until it was read without a commit in between. A commit writes pages
// that the state before it does not use, and then its meta page. So what the newest meta page of
// a reading leads to is intact as long as that meta page is still the newest one afterwards.
func readStable(ctx context.Context, path string, f source, attempts int) (found journal.Found, damage error, err error) {
	damaged, last := 0, uint64(0)
	for range attempts {
		if err := ctx.Err(); err != nil {
			return found, nil, err
		}
		data, err := readAll(path, f)
		if err != nil {
			return found, nil, err
		}
		number, known := newest(path, data)
		after, err := readStart(path, f, 2*maxPageSize)
		if err != nil {
			return found, nil, err
		}
		again, there := newest(path, after)
		if known != there || number != again {
			damaged = 0
			continue
		}
		w, damage := check(path, data)
		if damage == nil {
			r := &rawReader{walker: w, scanned: map[[2]uint64]values{}, effort: leastEffort + effortFactor*len(data)}
			return journal.Found{Entries: r.entriesOf(r.inReach)}, nil, nil
		}
		if damaged > 0 && number != last {
			damaged = 0
		}
		if damaged, last = damaged+1, number; damaged == damagedAttempts {
			return Salvage(path, data), damage, nil
		}
	}
	return found, nil, errdefs.Unavailablef("read %s: berthd changes it faster than it can be read; let berthd answer instead, or read a copy", path)
}

// readAll reads the whole of a file.
func readAll(path string, f source) ([]byte, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, errdefs.Unavailablef("read %s: %w", path, err)
	}
	if info.Size() > Largest {
		return nil, errdefs.Preconditionf("%s has %d bytes, and no ledger has more than %d", path, info.Size(), Largest)
	}
	return readStart(path, f, info.Size())
}

// readStart reads at most so many bytes of a file.
func readStart(path string, f io.ReaderAt, size int64) ([]byte, error) {
	data := make([]byte, size)
	n, err := f.ReadAt(data, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, errdefs.Unavailablef("read %s: %w", path, err)
	}
	return data[:n], nil
}

// newest returns the number of the last transaction that a sound meta page names.
func newest(path string, data []byte) (txid uint64, ok bool) {
	first, err := readMeta(path, data, 0, 0)
	if err == nil {
		txid, ok = first.txid, true
	}
	for size := uint64(minPageSize); size <= maxPageSize; size *= 2 {
		if err == nil && size != uint64(first.pageSize) {
			continue
		}
		if second, err := readMeta(path, data, 1, size); err == nil && uint64(second.pageSize) == size {
			return max(txid, second.txid), true
		}
	}
	return txid, ok
}

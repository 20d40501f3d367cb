package claimfiles

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"

	"github.com/berthd/berth/managers/errdefs"
)

// Mark is a file with the epoch and revision of the last acknowledged commit, outside of the
// ledger. With it a start can distinguish an older copy of the ledger from a crash before a
// commit. The mark is written after each commit and before the commit is acknowledged, so it is
// never ahead of the current ledger. Like the claim records it belongs to one boot and is not
// synced.
type Mark struct {
	file       *os.File
	path, boot string
	// found is the file's content when it was opened; known is false if there was none.
	epoch, revision uint64
	known           bool
}

// largestMark is more than a mark has.
const largestMark = 256

// OpenMark opens the file, and creates it if it is missing. A mark of another boot, or other
// content, is ignored. A path with another kind of file is an error of class Precondition that
// says how to resolve it.
func OpenMark(path, boot string) (*Mark, error) {
	dir, err := os.OpenRoot(filepath.Dir(path))
	if err != nil {
		return nil, errdefs.Unavailablef("open the mark of the last commit: %w", err)
	}
	defer dir.Close()
	name := filepath.Base(path)
	if info, err := dir.Lstat(name); err == nil && !info.Mode().IsRegular() {
		return nil, errdefs.Preconditionf("open the mark of the last commit: %s is no regular file: remove it", path)
	}
	file, err := dir.OpenFile(name, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, fileMode)
	if err != nil {
		return nil, errdefs.Unavailablef("open the mark of the last commit: %w", err)
	}
	switch why, err := foreign(file); {
	case err != nil:
		return nil, errors.Join(errdefs.Unavailablef("open the mark of the last commit: %w", err), file.Close())
	case why != "":
		return nil, errors.Join(errdefs.Preconditionf("open the mark of the last commit: %s: %s: remove it", path, why), file.Close())
	}
	m := &Mark{file: file, path: path, boot: boot}
	text := make([]byte, largestMark)
	n, err := file.ReadAt(text, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, errors.Join(errdefs.Unavailablef("read the mark of the last commit: %w", err), file.Close())
	}
	var epoch, revision uint64
	if _, err := fmt.Sscanf(string(text[:n]), "%x %d", &epoch, &revision); err == nil && string(text[:n]) == m.text(epoch, revision) {
		m.epoch, m.revision, m.known = epoch, revision, true
	}
	return m, nil
}

// text is the content of the file. All marks of a boot have one length, so that a write
// leaves nothing of the one before.
func (m *Mark) text(epoch, revision uint64) string {
	const digits = "0123456789abcdef"
	var number [37]byte // 16 hexadecimal digits and 20 decimal ones
	for i := range 16 {
		number[15-i] = digits[epoch&0xf]
		epoch >>= 4
	}
	number[16] = ' '
	for i := range 20 {
		number[36-i] = digits[revision%10]
		revision /= 10
	}
	return string(number[:]) + " " + m.boot + "\n"
}

// Found returns the last mark of the process before this one; false if there is none of
// this boot.
func (m *Mark) Found() (epoch, revision uint64, ok bool) { return m.epoch, m.revision, m.known }

// Set marks a commit. A file that was removed or replaced, or its directory, is made again.
func (m *Mark) Set(epoch, revision uint64) error {
	text := []byte(m.text(epoch, revision))
	for range renewals {
		if _, err := m.file.WriteAt(text, 0); err != nil {
			return errdefs.Unavailablef("mark the last commit: %w", err)
		}
		// If the file was removed or replaced, the write is lost and must be repeated.
		if again, err := m.renew(); !again || err != nil {
			return err
		}
	}
	return errdefs.Unavailablef("mark the last commit: %s is removed again and again", m.path)
}

// renew opens the file again if it is not in its place any more, and reports whether it did.
func (m *Mark) renew() (bool, error) {
	open, err := m.file.Stat()
	if err != nil {
		return false, errdefs.Unavailablef("mark the last commit: %w", err)
	}
	if here, err := os.Lstat(m.path); err == nil && os.SameFile(here, open) {
		return false, nil
	}
	if err := os.MkdirAll(filepath.Dir(m.path), dirMode); err != nil {
		return false, errdefs.Unavailablef("make the directory of the mark of the last commit: %w", err)
	}
	next, err := OpenMark(m.path, m.boot)
	if err != nil {
		return false, err
	}
	_ = m.file.Close()
	m.file = next.file
	return true, nil
}

// Close closes the file. The mark stays.
func (m *Mark) Close() error { return m.file.Close() }

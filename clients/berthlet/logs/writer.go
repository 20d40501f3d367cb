// Package logs writes the output of containers in the format of CRI runtimes, so that tools for
// their logs can read berthlet's: one line of text for each line of output,
//
//	2026-01-02T15:04:05.123456789Z stdout F hello
//
// with the time (RFC 3339, nanoseconds), the stream, a tag (F for a full line, P for a part that
// continues in the next entry of its stream) and the text.
package logs

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/berthd/berth/clients/berthlet/beneath"
)

// Stream names where a line came from.
type Stream string

// The streams.
const (
	Stdout Stream = "stdout"
	Stderr Stream = "stderr"
)

// maxEntry is the longest text of an entry; a longer line is cut into parts. CRI
// runtimes cut at 16 KiB.
const maxEntry = 16 << 10

// File is a container's log. Its methods may be called from several goroutines. A log beyond its
// limit is renamed with the suffix ".1", replacing an older one, and a new file is opened.
type File struct {
	now   func() time.Time
	dir   *os.File
	name  string
	limit int64

	mu   sync.Mutex // guards file and size; held over writes, which keeps entries whole
	file *os.File
	size int64
}

// Open opens a log for appending and makes the directories that it is in; limit is
// in bytes, 0 for none. Below the root no link is followed and nothing but a regular
// file is opened: a container may have the directory of logs as a volume.
func Open(root, path string, limit int64, now func() time.Time) (*File, error) {
	dir, err := Directory(root, path)
	if err != nil {
		return nil, err
	}
	f := &File{now: now, dir: dir, name: filepath.Base(path), limit: limit}
	if err := f.open(); err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	return f, nil
}

// Directory opens the directory of a log, and makes it if need be. An empty root is
// that directory itself.
func Directory(root, path string) (*os.File, error) {
	dir := filepath.Dir(path)
	root = cmp.Or(root, dir)
	below, err := filepath.Rel(root, dir)
	if err != nil {
		return nil, fmt.Errorf("log %s: %w", path, err)
	}
	if err := os.MkdirAll(root, 0o755); err != nil {
		return nil, err
	}
	top, err := beneath.Root(root)
	if err != nil {
		return nil, err
	}
	defer top.Close()
	return beneath.OpenOrMake(top, below, 0o750)
}

func (f *File) open() error {
	file, err := beneath.File(f.dir, f.name, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o640)
	if err != nil {
		return err
	}
	info, err := file.Stat()
	if err != nil {
		return errors.Join(err, file.Close())
	}
	f.file, f.size = file, info.Size()
	return nil
}

// Copy writes everything that comes from r as entries of a stream, until r ends.
func (f *File) Copy(s Stream, r io.Reader) error {
	in := bufio.NewReaderSize(r, maxEntry)
	for {
		text, err := in.ReadSlice('\n')
		tag := "P"
		switch n := len(text); {
		case n > 0 && text[n-1] == '\n':
			tag, text = "F", text[:n-1]
		case n == 0 && err != nil:
			return ignoreEOF(err)
		case errors.Is(err, io.EOF):
			tag = "F"
		}
		if werr := f.entry(s, tag, text); werr != nil {
			return werr
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return ignoreEOF(err)
		}
	}
}

func ignoreEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// entry appends one entry.
func (f *File) entry(s Stream, tag string, text []byte) error {
	line := fmt.Appendf(nil, "%s %s %s ", f.now().UTC().Format(time.RFC3339Nano), s, tag)
	line = append(append(line, text...), '\n')
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.limit > 0 && f.size > 0 && f.size+int64(len(line)) > f.limit {
		if err := f.rotate(); err != nil {
			return err
		}
	}
	n, err := f.file.Write(line)
	f.size += int64(n)
	return err
}

// rotate is for callers that hold mu.
func (f *File) rotate() error {
	if err := f.file.Close(); err != nil {
		return err
	}
	if err := beneath.Rename(f.dir, f.name, f.name+".1"); err != nil {
		return err
	}
	return f.open()
}

// Close closes the log.
func (f *File) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return errors.Join(f.file.Close(), f.dir.Close())
}

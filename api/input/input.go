package input

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/berthd/berth/managers/errdefs"
)

// Most bounds what berthctl reads of a file or of standard input. The pods of a large node, with
// everything that an API server adds, have less.
const Most = 64 << 20

// File reads the regular file or the pipe at a path, at most that many bytes. It waits for the
// writer of a pipe until the context ends. Errors are of the file system, of the context, or of
// class Invalid.
func File(ctx context.Context, path string, most int64) ([]byte, error) {
	if info, err := os.Stat(path); err != nil || info.Mode().Type()&fs.ModeNamedPipe == 0 {
		return Regular(path, most) // also for the error
	}
	return until(ctx, path, func() ([]byte, error) {
		// Opening waits for a writer.
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		if info, err := f.Stat(); err != nil || info.Mode().Type()&fs.ModeNamedPipe == 0 {
			return nil, errdefs.Conflictf("%s changed while it was opened", path)
		}
		defer context.AfterFunc(ctx, func() { _ = f.Close() })()
		return bounded(f, path, most)
	})
}

// Stream reads a stream to its end, at most that many bytes; name is for errors. The end of the
// context ends the call, but not a Read of the stream that is in progress.
func Stream(ctx context.Context, r io.Reader, name string, most int64) ([]byte, error) {
	return until(ctx, name, func() ([]byte, error) { return bounded(r, name, most) })
}

// FileOrStream is File, or Stream for the path "-".
func FileOrStream(ctx context.Context, path string, stdin io.Reader, most int64) ([]byte, error) {
	if path == "-" {
		return Stream(ctx, stdin, Name(path), most)
	}
	return File(ctx, path, most)
}

// Name names what FileOrStream reads.
func Name(path string) string {
	if path == "-" {
		return "standard input"
	}
	return path
}

// Regular reads a regular file, at most that many bytes.
func Regular(path string, most int64) ([]byte, error) {
	f, err := Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return Opened(f, path, most)
}

// Open opens a regular file to read. It does not wait for the writer of a pipe.
func Open(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|nonBlocking, 0)
	if err != nil {
		return nil, err
	}
	return regular(f, path)
}

// OpenIn is Open for a file beneath a directory.
func OpenIn(root *os.Root, path string) (*os.File, error) {
	f, err := root.OpenFile(path, os.O_RDONLY|nonBlocking, 0)
	if err != nil {
		return nil, err
	}
	return regular(f, path)
}

// regular closes a file that is no regular one.
func regular(f *os.File, path string) (*os.File, error) {
	info, err := f.Stat() // of what was opened: the path may lead elsewhere by now
	if err == nil && !info.Mode().IsRegular() {
		err = errdefs.Invalidf("%s is %s: expected a regular file", path, kind(info.Mode()))
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// Opened reads an open regular file to its end, at most that many bytes; path is for errors.
func Opened(f fs.File, path string, most int64) ([]byte, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errdefs.Invalidf("%s is %s: expected a regular file", path, kind(info.Mode()))
	}
	if info.Size() > most {
		return nil, tooLarge(path, most)
	}
	// A ledger may have a gigabyte, and a buffer that grows would need more than twice its size.
	buf := bytes.NewBuffer(make([]byte, 0, info.Size()+bytes.MinRead))
	if _, err := buf.ReadFrom(io.LimitReader(f, most+1)); err != nil {
		return nil, err
	}
	if int64(buf.Len()) > most {
		return nil, tooLarge(path, most)
	}
	return buf.Bytes(), nil
}

func tooLarge(name string, most int64) error {
	return errdefs.Invalidf("%s has more than %d bytes, which is the most that is read", name, most)
}

// bounded reads to the end, which must come within so many bytes.
func bounded(r io.Reader, name string, most int64) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(r, most+1))
	if err == nil && int64(len(text)) > most {
		err = tooLarge(name, most)
	}
	if err != nil {
		return nil, err
	}
	return text, nil
}

// until waits for a reading until the context ends.
func until(ctx context.Context, name string, read func() ([]byte, error)) ([]byte, error) {
	type result struct {
		text []byte
		err  error
	}
	done := make(chan result, 1)
	go func() {
		text, err := read()
		done <- result{text, err}
	}()
	select {
	case r := <-done:
		return r.text, r.err
	case <-ctx.Done():
		return nil, fmt.Errorf("read %s: %w", name, context.Cause(ctx))
	}
}

// kind names what is no regular file.
func kind(mode fs.FileMode) string {
	switch {
	case mode.IsDir():
		return "a directory"
	case mode&fs.ModeNamedPipe != 0:
		return "a pipe"
	case mode&fs.ModeSocket != 0:
		return "a socket"
	case mode&fs.ModeDevice != 0:
		return "a device"
	}
	return "no regular file"
}

package logs

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/berthd/berth/clients/berthlet/beneath"
)

// Reader reads the entries of a container's log in their order. It is for one goroutine.
type Reader struct {
	dir  *os.File
	name string
	file *os.File
	in   *bufio.Reader
	// rest is the beginning of an entry that is still written.
	rest []byte
}

// Entry is one entry of a log.
type Entry struct {
	Time   string
	Stream Stream
	// Partial means that the line continues in the next entry of its stream.
	Partial bool
	Text    []byte
}

// maxLine bounds the line of an entry in the file. Other programs may write there, too.
const maxLine = 1 << 20

// Read opens a log. As for a writer, no link below the root is followed and only a regular file is opened.
func Read(root, path string) (*Reader, error) {
	below, err := filepath.Rel(root, filepath.Dir(path))
	if err != nil || !filepath.IsLocal(below) {
		return nil, fmt.Errorf("log %s: expected a file below %s", path, root)
	}
	top, err := beneath.Root(root)
	if err != nil {
		return nil, err
	}
	defer top.Close()
	r := &Reader{name: filepath.Base(path)}
	if r.dir, err = beneath.Open(top, below); err != nil {
		return nil, err
	}
	if err := r.open(); err != nil {
		return nil, errors.Join(err, r.dir.Close())
	}
	return r, nil
}

func (r *Reader) open() (err error) {
	if r.file, err = beneath.File(r.dir, r.name, os.O_RDONLY, 0); err == nil {
		r.in = bufio.NewReader(r.file)
	}
	return err
}

// Next returns the next entry, or io.EOF at the end of the log. It can be called again after
// io.EOF.
func (r *Reader) Next() (Entry, error) {
	for {
		part, err := r.in.ReadSlice('\n')
		r.rest = append(r.rest, part...)
		switch {
		case errors.Is(err, bufio.ErrBufferFull) && len(r.rest) <= maxLine:
			continue
		case errors.Is(err, io.EOF):
			again, err := r.replaced()
			if err != nil {
				return Entry{}, err
			}
			if !again {
				return Entry{}, io.EOF
			}
			continue
		case err != nil && !errors.Is(err, bufio.ErrBufferFull):
			return Entry{}, err
		}
		line := bytes.TrimSuffix(r.rest, []byte("\n"))
		e := parse(bytes.Clone(line))
		r.rest = r.rest[:0]
		return e, nil
	}
}

// replaced opens the new file if the log was replaced.
func (r *Reader) replaced() (bool, error) {
	next, err := beneath.File(r.dir, r.name, os.O_RDONLY, 0)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil // it is just being replaced
	}
	if err != nil {
		return false, err
	}
	have, err := r.file.Stat()
	if err != nil {
		return false, errors.Join(err, next.Close())
	}
	now, err := next.Stat()
	if err != nil || os.SameFile(have, now) {
		return false, errors.Join(err, next.Close())
	}
	_ = r.file.Close()
	r.file, r.in, r.rest = next, bufio.NewReader(next), r.rest[:0]
	return true, nil
}

// parse reads an entry. A line in another form is an entry of its own.
func parse(line []byte) Entry {
	fields := bytes.SplitN(line, []byte(" "), 4)
	if len(fields) < 4 || len(fields[2]) != 1 {
		return Entry{Text: line}
	}
	return Entry{Time: string(fields[0]), Stream: Stream(fields[1]), Partial: fields[2][0] == 'P', Text: fields[3]}
}

// Close closes the log.
func (r *Reader) Close() error { return errors.Join(r.file.Close(), r.dir.Close()) }

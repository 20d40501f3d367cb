package bundle

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"

	inspectv1 "github.com/berthd/berth/api/berth/inspect/v1"
	"github.com/berthd/berth/api/ledgerfile"
	"github.com/berthd/berth/managers/errdefs"
)

// largestFile is more than a compressed bundle has.
const largestFile = 1 << 30

// Write writes the bundle as an archive.
func (b *Bundle) Write(w io.Writer) error {
	compressed := gzip.NewWriter(w)
	archive := tar.NewWriter(compressed)
	for _, p := range parts {
		data, err := b.Encode(p.name)
		if err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		if data == nil {
			continue
		}
		if int64(len(data)) > p.most {
			return errdefs.Preconditionf("%s has %d bytes, and a bundle takes at most %d", p.name, len(data), p.most)
		}
		if p.name == StatePart || p.name == DevicesPart { // the others have limits of their own
			if err := checkValues(data, mostValues); err != nil {
				return errdefs.Preconditionf("%s: %w", p.name, err)
			}
		}
		header := &tar.Header{Name: p.name, Mode: 0o600, Size: int64(len(data)), ModTime: b.About.Time, Format: tar.FormatPAX}
		if err := archive.WriteHeader(header); err != nil {
			return err
		}
		if _, err := archive.Write(data); err != nil {
			return err
		}
	}
	return errors.Join(archive.Close(), compressed.Close())
}

// WriteFile writes the bundle to a file that only its user can read. The file appears under its
// name when it is complete, and replaces one of that name; a symbolic link is replaced and not
// followed. Anything else of that name, such as a directory or a device, is an error.
func (b *Bundle) WriteFile(path string) (err error) {
	switch info, err := os.Lstat(path); {
	case err != nil: // there is none, or what creates the file says why it cannot
	case info.IsDir():
		return errdefs.Preconditionf("%s is a directory: name a file", path)
	case !info.Mode().IsRegular() && info.Mode().Type() != fs.ModeSymlink:
		return errdefs.Preconditionf("%s is no regular file, and would be replaced: name a file", path)
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".berth-bundle-") // with mode 0600, and no other one is opened
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	if err := errors.Join(b.Write(f), f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return os.Rename(f.Name(), path)
}

// ReadFile reads a bundle from a file. Errors of class Invalid name the part that is wrong.
func ReadFile(path string) (*Bundle, error) {
	f, err := ledgerfile.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, errdefs.Invalidf("%s is no regular file, so it is no bundle", path)
	case info.Size() > largestFile:
		return nil, errdefs.Invalidf("%s has %d bytes, and a bundle has at most %d", path, info.Size(), largestFile)
	}
	b, err := Read(f)
	if err != nil {
		return nil, errdefs.Invalidf("read the bundle %s: %w", path, err)
	}
	return b, nil
}

// Read reads an archive. It takes memory for the parts as they arrive and never more than their
// limits, whatever sizes the archive declares.
func Read(r io.Reader) (*Bundle, error) {
	compressed, err := gzip.NewReader(io.LimitReader(r, largestFile))
	if err != nil {
		return nil, fmt.Errorf("this is no archive compressed with gzip: %w", err)
	}
	archive := tar.NewReader(compressed)
	b, seen := &Bundle{}, map[string]bool{}
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("this is no tar archive, or it is cut off: %w", err)
		}
		most, err := mostOf(header, seen)
		if err != nil {
			return nil, err
		}
		data, err := io.ReadAll(io.LimitReader(archive, most))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", header.Name, err)
		}
		if int64(len(data)) != header.Size {
			return nil, fmt.Errorf("%s has %d bytes, and its header says %d", header.Name, len(data), header.Size)
		}
		if err := b.Decode(header.Name, data); err != nil {
			return nil, err
		}
	}
	if !seen[AboutPart] {
		return nil, fmt.Errorf("%s is missing, so this is no bundle", AboutPart)
	}
	return b, nil
}

// mostOf returns how large a part may be, and refuses what is no part, is there twice or too large.
func mostOf(header *tar.Header, seen map[string]bool) (int64, error) {
	at := slices.IndexFunc(parts, func(p part) bool { return p.name == header.Name })
	switch {
	case at < 0:
		return 0, fmt.Errorf("%.80q is no part of a bundle", header.Name)
	case header.Typeflag != tar.TypeReg:
		return 0, fmt.Errorf("%s is no regular file", header.Name)
	case seen[header.Name]:
		return 0, fmt.Errorf("%s is listed twice", header.Name)
	case header.Size > parts[at].most:
		return 0, fmt.Errorf("%s has %d bytes, and may have at most %d", header.Name, header.Size, parts[at].most)
	}
	seen[header.Name] = true
	return parts[at].most, nil
}

// Collect puts a bundle together from the parts that StreamBundle sends, which a client's Bundle returns. Errors are those of the
// sequence and of Decode, and of class Invalid for too large files, files in pieces, and a sequence without about.json or
// state.json, which ended too early.
func Collect(parts iter.Seq2[*inspectv1.StreamBundleResponse, error]) (*Bundle, error) {
	var all collector
	for part, err := range parts {
		if err != nil {
			return nil, err
		}
		if err := all.add(part.GetName(), part.GetData()); err != nil {
			return nil, err
		}
	}
	return all.end()
}

// collector has the parts of a bundle until all are there.
type collector struct {
	bundle Bundle
	seen   map[string]bool
	name   string
	data   []byte
}

// add takes the next part of a file.
func (c *collector) add(name string, data []byte) error {
	if name != c.name {
		if err := c.decode(); err != nil {
			return err
		}
		if c.seen == nil {
			c.seen = map[string]bool{}
		}
		if _, err := mostOf(&tar.Header{Name: name, Typeflag: tar.TypeReg}, c.seen); err != nil {
			return errdefs.Invalidf("%w", err)
		}
		c.name, c.data = name, nil
	}
	c.data = append(c.data, data...)
	_, err := mostOf(&tar.Header{Name: name, Typeflag: tar.TypeReg, Size: int64(len(c.data))}, map[string]bool{})
	if err != nil {
		return errdefs.Invalidf("%w", err)
	}
	return nil
}

// end returns the bundle after the last part.
func (c *collector) end() (*Bundle, error) {
	if err := c.decode(); err != nil {
		return nil, err
	}
	for _, name := range []string{AboutPart, StatePart} {
		if !c.seen[name] {
			return nil, errdefs.Invalidf("the bundle has no %s", name)
		}
	}
	return &c.bundle, nil
}

func (c *collector) decode() error {
	if c.name == "" {
		return nil
	}
	return c.bundle.Decode(c.name, c.data)
}

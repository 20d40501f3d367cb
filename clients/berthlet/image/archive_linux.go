package image

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/berthd/berth/api/input"
	"github.com/berthd/berth/api/trust"
	"github.com/berthd/berth/managers/errdefs"
)

const (
	// dockerManifest is the index of an archive of `docker save`.
	dockerManifest = "manifest.json"
	// maxEntries bounds how many files an archive has.
	maxEntries = 1 << 16
)

// source is where the files of an image are.
type source struct {
	// name is for messages.
	name string
	open func(path string) (io.ReadCloser, error)
}

// directory is a layout on disk.
func directory(dir string) source {
	return source{dir, func(name string) (io.ReadCloser, error) {
		at := path.Join(dir, name)
		if err := trust.CheckFile(at); err != nil {
			return nil, err
		}
		return input.Open(at)
	}}
}

// archive is a tar file that is read in place.
type archive struct {
	file    *os.File
	entries map[string]member
}

type member struct {
	offset, size int64
	// link is the entry that this link points to.
	link string
}

// openArchive reads where the files of an archive are.
func openArchive(name string) (*archive, error) {
	f, err := input.Open(name)
	if err != nil {
		return nil, err
	}
	a := &archive{file: f, entries: map[string]member{}}
	if err := a.scan(); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return a, nil
}

func (a *archive) scan() error {
	in := tar.NewReader(a.file)
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return errdefs.Corruptf("%s: expected a tar archive that is not compressed: %w", a.file.Name(), err)
		}
		if len(a.entries) >= maxEntries {
			return errdefs.Corruptf("%s: more than %d files: expected an image, not a root file system; unpack it to a directory",
				a.file.Name(), maxEntries)
		}
		name := path.Clean("/" + h.Name)
		switch h.Typeflag {
		case tar.TypeReg:
			at, err := a.file.Seek(0, io.SeekCurrent)
			if err != nil {
				return err
			}
			a.entries[name] = member{offset: at, size: h.Size}
		case tar.TypeLink:
			a.entries[name] = member{link: path.Clean("/" + h.Linkname)}
		case tar.TypeSymlink:
			a.entries[name] = member{link: path.Join(path.Dir(name), h.Linkname)}
		}
	}
}

// find returns where a file is. A link leads to one file: a chain of them is refused.
func (a *archive) find(name string) (member, error) {
	e, ok := a.entries[path.Clean("/"+name)]
	if ok && e.link != "" {
		e, ok = a.entries[e.link]
	}
	if !ok || e.link != "" {
		return e, errdefs.Corruptf("there is no %s in %s", name, a.file.Name())
	}
	return e, nil
}

func (a *archive) has(name string) bool {
	_, err := a.find(name)
	return err == nil
}

func (a *archive) source() source {
	return source{a.file.Name(), func(name string) (io.ReadCloser, error) {
		e, err := a.find(name)
		if err != nil {
			return nil, err
		}
		return io.NopCloser(io.NewSectionReader(a.file, e.offset, e.size)), nil
	}}
}

// saved is an image of `docker save`: paths in the archive.
type saved struct {
	Config   string
	RepoTags []string
	Layers   []string
}

// docker finds the image of a tag in an archive of `docker save`.
func docker(from source, tag string) (saved, error) {
	var all []saved
	if err := readJSON(from, dockerManifest, "", &all); err != nil {
		return saved{}, err
	}
	var tags []string
	found := slices.DeleteFunc(slices.Clone(all), func(s saved) bool {
		tags = append(tags, s.RepoTags...)
		return tag != "" && !slices.ContainsFunc(s.RepoTags, func(t string) bool { return strings.HasSuffix(t, ":"+tag) })
	})
	if len(found) != 1 {
		return saved{}, errdefs.NotFoundf("%d images with the tag %q in %s, expected one: it has %s", len(found), tag, from.name,
			strings.Join(tags, ", "))
	}
	return found[0], nil
}

// uncompressed decompresses a layer if it begins with gzip's magic number. Archives of `docker
// save` do not record the compression.
func uncompressed(r io.Reader) (io.Reader, error) {
	head := make([]byte, 2)
	n, err := io.ReadFull(r, head)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, err
	}
	r = io.MultiReader(bytes.NewReader(head[:n]), r)
	if bytes.Equal(head, []byte{0x1f, 0x8b}) {
		return decompress(".gzip", r)
	}
	return r, nil
}

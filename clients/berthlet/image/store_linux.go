package image

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/berthd/berth/api/trust"
	"github.com/berthd/berth/managers/errdefs"
)

// Image is a root file system with the image's program and user.
type Image struct {
	// Layers are directories, the topmost first. They are shared and must not be written.
	Layers []string
	// Entrypoint, Cmd, Env ("NAME=value"), Dir and User are the image's own; empty
	// for a plain directory.
	Entrypoint, Cmd, Env []string
	Dir, User            string
}

// Store finds images and stores unpacked layers.
type Store struct {
	images, layers string
	mu             sync.Mutex // one layer is unpacked at a time
}

// NewStore makes a store of the images below one directory that unpacks layers
// into another; neither needs to be there. Without images only absolute paths are
// found.
func NewStore(images, layers string) *Store { return &Store{images: images, layers: layers} }

// Get finds an image. A missing image is an error of class NotFound, a damaged one of class
// Corrupt.
func (s *Store) Get(ctx context.Context, ref string) (Image, error) {
	path, tag, err := s.resolve(ref)
	if err != nil {
		return Image{}, fmt.Errorf("find image %q: %w", ref, err)
	}
	info, err := os.Stat(path)
	if err != nil {
		return Image{}, fmt.Errorf("find image %q: %w", ref, err)
	}
	// Another user could put other programs into the image. What a root file system has below its top
	// belongs to the users of the container.
	check := trust.Check
	if info.Mode().IsRegular() {
		check = trust.CheckFile
	}
	if err := check(path); err != nil {
		return Image{}, fmt.Errorf("read image %q: %w", ref, err)
	}
	if info.Mode().IsRegular() {
		img, err := s.archive(ctx, path, tag)
		if err != nil {
			return Image{}, fmt.Errorf("read image %q: %w", ref, err)
		}
		return img, nil
	}
	if _, err := os.Stat(filepath.Join(path, layoutFile)); errors.Is(err, fs.ErrNotExist) {
		if tag != "" {
			return Image{}, errdefs.NotFoundf("find image %q: %s is no OCI image layout, so it has no tags", ref, path)
		}
		return Image{Layers: []string{path}}, nil
	}
	img, err := s.layout(ctx, directory(path), tag)
	if err != nil {
		return Image{}, fmt.Errorf("read image %q: %w", ref, err)
	}
	return img, nil
}

// archive reads an image of a tar file: an OCI image layout, or what `docker save` writes.
func (s *Store) archive(ctx context.Context, path, tag string) (Image, error) {
	a, err := openArchive(path)
	if err != nil {
		return Image{}, err
	}
	defer a.file.Close()
	switch {
	case a.has(dockerManifest): // also in newer archives of docker save, which are layouts without tags, too
		return s.saved(ctx, a.source(), tag)
	case a.has(layoutFile):
		return s.layout(ctx, a.source(), tag)
	}
	return Image{}, errdefs.NotFoundf("%s has neither %s nor %s: expected an archive of docker save or skopeo copy; unpack a root file system to a directory", path, dockerManifest, layoutFile)
}

// resolve turns a reference into a directory or a file, and a tag.
func (s *Store) resolve(ref string) (path, tag string, err error) {
	path = ref
	if colon := strings.LastIndex(ref, ":"); colon > strings.LastIndex(ref, "/") {
		path, tag = ref[:colon], ref[colon+1:]
	}
	switch {
	case ref == "":
		return "", "", errdefs.Invalidf("expected a directory, an OCI image layout or an archive of one")
	case filepath.IsAbs(path):
	case s.images == "":
		return "", "", errdefs.NotFoundf("there is no image directory, so expected an absolute path")
	case !filepath.IsLocal(path):
		return "", "", errdefs.Invalidf("expected a path below %s, or an absolute one", s.images)
	default:
		path = filepath.Join(s.images, path)
	}
	// The runtime requires a path without links.
	real, err := filepath.EvalSymlinks(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", "", errdefs.NotFoundf("there is no %s", path)
	}
	if err != nil {
		return "", "", err
	}
	if info, err := os.Stat(real); err != nil || !info.IsDir() && !info.Mode().IsRegular() {
		return "", "", errdefs.NotFoundf("%s is no directory and no archive", path)
	}
	return real, tag, nil
}

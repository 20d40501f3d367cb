package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// searchPath is PATH in a container of the image.
const searchPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// write makes the archive.
func (r request) write(file string) (err error) {
	dir, err := os.MkdirTemp("", "image")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	first, err := r.layout(filepath.Join(dir, "layout"))
	if err != nil {
		return err
	}
	// Engines of before the image layout read this file in place of index.json.
	if err := r.dockerManifest(first, filepath.Join(dir, "layout", "manifest.json")); err != nil {
		return err
	}
	data, err := tarOf(filepath.Join(dir, "layout"), r.created)
	if err != nil {
		return err
	}
	return os.WriteFile(file, data, 0o644)
}

// layout writes an OCI image layout and returns the image of the first architecture.
func (r request) layout(dir string) (first v1.Image, err error) {
	to, err := layout.Write(dir, empty.Index)
	if err != nil {
		return nil, err
	}
	images := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, root := range r.roots {
		img, err := r.image(root)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", root.arch, err)
		}
		if first == nil {
			first = img
		}
		images = mutate.AppendManifests(images, mutate.IndexAddendum{
			Add: img, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: root.arch}},
		})
	}
	_, tag, _ := strings.Cut(r.name[strings.LastIndex(r.name, "/")+1:], ":")
	named := layout.WithAnnotations(map[string]string{
		"org.opencontainers.image.ref.name": tag,
		"io.containerd.image.name":          r.name,
	})
	if len(r.roots) == 1 {
		return first, to.AppendImage(first, named)
	}
	return first, to.AppendIndex(images, named)
}

// image is the image of one architecture: one layer and the configuration.
func (r request) image(from root) (v1.Image, error) {
	data, err := tarOf(from.dir, r.created)
	if err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(
		func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil },
		tarball.WithMediaType(types.OCILayer),
	)
	if err != nil {
		return nil, err
	}
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	img, err = mutate.Append(img, mutate.Addendum{
		Layer: layer, History: v1.History{Created: v1.Time{Time: r.created}, CreatedBy: "hack/image.sh", Comment: r.program},
	})
	if err != nil {
		return nil, err
	}
	config, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Created = "linux", from.arch, v1.Time{Time: r.created}
	config.Config = v1.Config{Entrypoint: []string{"/usr/bin/" + r.program}, Env: []string{searchPath}, WorkingDir: "/", Labels: r.labels}
	return mutate.ConfigFile(img, config)
}

// dockerManifest describes the blobs of one image as 'docker save' does.
func (r request) dockerManifest(img v1.Image, file string) error {
	manifest, err := img.Manifest()
	if err != nil {
		return err
	}
	blob := func(h v1.Hash) string { return "blobs/" + h.Algorithm + "/" + h.Hex }
	entry := struct {
		Config   string
		RepoTags []string
		Layers   []string
	}{Config: blob(manifest.Config.Digest), RepoTags: []string{r.name}}
	for _, l := range manifest.Layers {
		entry.Layers = append(entry.Layers, blob(l.Digest))
	}
	text, err := json.Marshal([]any{entry})
	if err != nil {
		return err
	}
	return os.WriteFile(file, text, 0o644)
}

// tarOf packs a folder. Owners, times and the order do not depend on this machine.
func tarOf(dir string, created time.Time) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	err := filepath.WalkDir(dir, func(file string, d fs.DirEntry, err error) error {
		if err != nil || file == dir {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, file)
		if err != nil {
			return err
		}
		h := &tar.Header{Name: path.Clean(filepath.ToSlash(name)), ModTime: created, Format: tar.FormatPAX}
		switch {
		case d.IsDir():
			h.Typeflag, h.Name, h.Mode = tar.TypeDir, h.Name+"/", 0o755
			return w.WriteHeader(h)
		case !info.Mode().IsRegular():
			return fmt.Errorf("%s: expected only files and folders, found %s", file, info.Mode())
		}
		h.Typeflag, h.Size, h.Mode = tar.TypeReg, info.Size(), 0o644
		if info.Mode()&0o111 != 0 {
			h.Mode = 0o755
		}
		if err := w.WriteHeader(h); err != nil {
			return err
		}
		content, err := os.ReadFile(file)
		if err == nil {
			_, err = w.Write(content)
		}
		return err
	})
	return out.Bytes(), errors.Join(err, w.Close())
}

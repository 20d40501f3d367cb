package image

import (
	"compress/gzip"
	"context"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"encoding/json"
	"errors"
	"hash"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/berthd/berth/managers/errdefs"
)

const (
	layoutFile = "oci-layout"
	// refName is the annotation of an index that holds a tag.
	refName = "org.opencontainers.image.ref.name"
	// maxDocument bounds manifests, indexes and configurations.
	maxDocument = 4 << 20
)

// descriptor points to a blob (OCI image specification, descriptor.md).
type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Annotations map[string]string `json:"annotations"`
	Platform    *struct {
		OS           string `json:"os"`
		Architecture string `json:"architecture"`
	} `json:"platform"`
	// path is where a layer of `docker save` is, which has no digest.
	path string
}

// document is an index (manifests) or a manifest (config, layers).
type document struct {
	Manifests []descriptor `json:"manifests"`
	Config    descriptor   `json:"config"`
	Layers    []descriptor `json:"layers"`
}

// configuration is an image's configuration (OCI image specification, config.md).
type configuration struct {
	Config struct {
		Entrypoint, Cmd, Env []string
		WorkingDir, User     string
	} `json:"config"`
	RootFS struct {
		DiffIDs []string `json:"diff_ids"`
	} `json:"rootfs"`
}

// layout reads an image of a layout and unpacks the layers that are not there yet.
func (s *Store) layout(ctx context.Context, from source, tag string) (Image, error) {
	var top document
	if err := readJSON(from, "index.json", "", &top); err != nil {
		return Image{}, err
	}
	manifest, err := pick(from, top, tag)
	if err != nil {
		return Image{}, err
	}
	var config configuration
	if err := readBlob(from, manifest.Config.Digest, &config); err != nil {
		return Image{}, err
	}
	return s.image(ctx, from, config, manifest.Layers)
}

// saved reads an image of an archive of `docker save`.
func (s *Store) saved(ctx context.Context, from source, tag string) (Image, error) {
	manifest, err := docker(from, tag)
	if err != nil {
		return Image{}, err
	}
	var config configuration
	if err := readJSON(from, manifest.Config, "", &config); err != nil {
		return Image{}, err
	}
	layers := make([]descriptor, len(manifest.Layers))
	for i, name := range manifest.Layers {
		layers[i].path = name
	}
	return s.image(ctx, from, config, layers)
}

// image unpacks the layers that are not there yet.
func (s *Store) image(ctx context.Context, from source, config configuration, layers []descriptor) (Image, error) {
	if len(layers) != len(config.RootFS.DiffIDs) {
		return Image{}, errdefs.Corruptf("the manifest has %d layers, the configuration %d", len(layers), len(config.RootFS.DiffIDs))
	}
	img := Image{
		Entrypoint: config.Config.Entrypoint, Cmd: config.Config.Cmd, Env: config.Config.Env,
		Dir: config.Config.WorkingDir, User: config.Config.User,
	}
	for i, layer := range layers {
		unpacked, err := s.layer(ctx, from, layer, config.RootFS.DiffIDs[i])
		if err != nil {
			return Image{}, err
		}
		img.Layers = append(img.Layers, unpacked)
	}
	slices.Reverse(img.Layers)
	if len(img.Layers) == 0 {
		return Image{}, errdefs.Corruptf("it has no layers")
	}
	return img, nil
}

// pick follows an index to the manifest of a tag, for this machine.
func pick(from source, index document, tag string) (document, error) {
	found := index.Manifests
	if tag != "" {
		found = slices.DeleteFunc(slices.Clone(found), func(d descriptor) bool { return d.Annotations[refName] != tag })
	}
	if len(found) == 0 {
		return document{}, errdefs.NotFoundf("no image with the tag %q in %s", tag, from.name)
	}
	if len(found) > 1 {
		found = slices.DeleteFunc(slices.Clone(found), func(d descriptor) bool {
			return d.Platform != nil && (d.Platform.OS != "linux" || d.Platform.Architecture != runtime.GOARCH)
		})
	}
	if len(found) != 1 {
		return document{}, errdefs.NotFoundf("%d images for linux/%s and the tag %q in %s, expected one: name it by its tag", len(found),
			runtime.GOARCH, tag, from.name)
	}
	var next document
	if err := readBlob(from, found[0].Digest, &next); err != nil {
		return document{}, err
	}
	if len(next.Manifests) > 0 {
		return pick(from, next, "")
	}
	return next, nil
}

// digester gives the hash of a digest ("sha256:...") and its hexadecimal digits.
func digester(digest string) (hash.Hash, string, error) {
	algorithm, digits, _ := strings.Cut(digest, ":")
	var h hash.Hash
	switch algorithm {
	case "sha256":
		h = sha256.New()
	case "sha512":
		h = sha512.New()
	default:
		return nil, "", errdefs.Unsupportedf("digest %q: expected sha256 or sha512", digest)
	}
	if raw, err := hex.DecodeString(digits); err != nil || len(raw) != h.Size() {
		return nil, "", errdefs.Corruptf("digest %q: expected %d hexadecimal digits", digest, 2*h.Size())
	}
	return h, digits, nil
}

func blobPath(digest string) string {
	algorithm, digits, _ := strings.Cut(digest, ":")
	return path.Join("blobs", algorithm, digits)
}

func readBlob(from source, digest string, into any) error {
	if _, _, err := digester(digest); err != nil {
		return err
	}
	return readJSON(from, blobPath(digest), digest, into)
}

// readJSON reads a document and compares its digest, where one is given.
func readJSON(from source, name, digest string, into any) error {
	at := from.name + "/" + name
	f, err := from.open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return errdefs.Corruptf("there is no %s", at)
	}
	if err != nil {
		return err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxDocument))
	if err != nil {
		return err
	}
	if digest != "" {
		h, digits, err := digester(digest)
		if err != nil {
			return err
		}
		h.Write(text)
		if got := hex.EncodeToString(h.Sum(nil)); got != digits {
			return errdefs.Corruptf("%s has the digest %s", at, got)
		}
	}
	if err := json.Unmarshal(text, into); err != nil {
		return errdefs.Corruptf("%s: %w", at, err)
	}
	return nil
}

// layer gives the directory of a layer, unpacking it first where it is missing.
// Layers lie under the digest of their content, so that images share them.
func (s *Store) layer(ctx context.Context, from source, d descriptor, diffID string) (string, error) {
	diff, want, err := digester(diffID)
	if err != nil {
		return "", err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	// Half of the digits name a layer well, and overlayfs takes only so many
	// characters for all of them.
	done := filepath.Join(s.layers, want[:32])
	if _, err := os.Stat(done); err == nil {
		return done, nil
	}
	name := d.path
	blob, digits := sha256.New(), ""
	if name == "" {
		if blob, digits, err = digester(d.Digest); err != nil {
			return "", err
		}
		name = blobPath(d.Digest)
	}
	f, err := from.open(name)
	if err != nil {
		return "", errdefs.Corruptf("layer %s: %w", name, err)
	}
	defer f.Close()
	if err := os.MkdirAll(s.layers, 0o700); err != nil {
		return "", err
	}
	temporary, err := os.MkdirTemp(s.layers, "unpacking-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(temporary) }()
	raw := io.TeeReader(f, blob)
	unzip := uncompressed
	if d.path == "" {
		unzip = func(r io.Reader) (io.Reader, error) { return decompress(d.MediaType, r) }
	}
	plain, err := unzip(raw)
	if err != nil {
		return "", err
	}
	plain = io.TeeReader(plain, diff)
	if err := unpack(ctx, temporary, plain); err != nil {
		return "", errdefs.Corruptf("layer %s: %w", name, err)
	}
	// What comes behind an archive belongs to the digests too.
	for _, rest := range []io.Reader{plain, raw} {
		if _, err := io.Copy(io.Discard, rest); err != nil {
			return "", errdefs.Corruptf("layer %s: %w", name, err)
		}
	}
	if got := hex.EncodeToString(blob.Sum(nil)); d.path == "" && got != digits {
		return "", errdefs.Corruptf("layer %s has the digest %s", name, got)
	}
	if got := hex.EncodeToString(diff.Sum(nil)); got != want {
		return "", errdefs.Corruptf("layer %s holds content of digest %s, expected %s", name, got, diffID)
	}
	if err := os.Chmod(temporary, 0o755); err != nil {
		return "", err
	}
	return done, os.Rename(temporary, done)
}

// decompress decompresses a layer according to its media type.
func decompress(mediaType string, r io.Reader) (io.Reader, error) {
	switch {
	case strings.HasSuffix(mediaType, "+gzip"), strings.HasSuffix(mediaType, ".gzip"):
		return gzip.NewReader(r)
	case strings.HasSuffix(mediaType, ".tar"):
		return r, nil
	}
	return nil, errdefs.Unsupportedf("layer of media type %q: expected a tar archive, plain or with gzip", mediaType)
}

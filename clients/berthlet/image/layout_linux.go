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
func (s *Store) layout(ctx context.Context, dir, tag string) (Image, error) {
	var top document
	if err := readJSON(filepath.Join(dir, "index.json"), "", &top); err != nil {
		return Image{}, err
	}
	manifest, err := pick(dir, top, tag)
	if err != nil {
		return Image{}, err
	}
	var config configuration
	if err := readBlob(dir, manifest.Config.Digest, &config); err != nil {
		return Image{}, err
	}
	if len(manifest.Layers) != len(config.RootFS.DiffIDs) {
		return Image{}, errdefs.Corruptf("the manifest has %d layers, the configuration %d", len(manifest.Layers), len(config.RootFS.DiffIDs))
	}
	img := Image{
		Entrypoint: config.Config.Entrypoint, Cmd: config.Config.Cmd, Env: config.Config.Env,
		Dir: config.Config.WorkingDir, User: config.Config.User,
	}
	for i, layer := range manifest.Layers {
		unpacked, err := s.layer(ctx, dir, layer, config.RootFS.DiffIDs[i])
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
func pick(dir string, index document, tag string) (document, error) {
	found := index.Manifests
	if tag != "" {
		found = slices.DeleteFunc(slices.Clone(found), func(d descriptor) bool { return d.Annotations[refName] != tag })
	}
	if len(found) == 0 {
		return document{}, errdefs.NotFoundf("no image with the tag %q in %s", tag, dir)
	}
	if len(found) > 1 {
		found = slices.DeleteFunc(slices.Clone(found), func(d descriptor) bool {
			return d.Platform != nil && (d.Platform.OS != "linux" || d.Platform.Architecture != runtime.GOARCH)
		})
	}
	if len(found) != 1 {
		return document{}, errdefs.NotFoundf("%d images for linux/%s and the tag %q in %s, expected one: name it by its tag", len(found), runtime.GOARCH, tag, dir)
	}
	var next document
	if err := readBlob(dir, found[0].Digest, &next); err != nil {
		return document{}, err
	}
	if len(next.Manifests) > 0 {
		return pick(dir, next, "")
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

func blobPath(dir, digest string) string {
	algorithm, digits, _ := strings.Cut(digest, ":")
	return filepath.Join(dir, "blobs", algorithm, digits)
}

func readBlob(dir, digest string, into any) error {
	if _, _, err := digester(digest); err != nil {
		return err
	}
	return readJSON(blobPath(dir, digest), digest, into)
}

// readJSON reads a document and compares its digest, where one is given.
func readJSON(path, digest string, into any) error {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return errdefs.Corruptf("there is no %s", path)
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
			return errdefs.Corruptf("%s has the digest %s", path, got)
		}
	}
	if err := json.Unmarshal(text, into); err != nil {
		return errdefs.Corruptf("%s: %w", path, err)
	}
	return nil
}

// layer gives the directory of a layer, unpacking it first where it is missing.
// Layers lie under the digest of their content, so that images share them.
func (s *Store) layer(ctx context.Context, dir string, d descriptor, diffID string) (string, error) {
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
	blob, digits, err := digester(d.Digest)
	if err != nil {
		return "", err
	}
	f, err := os.Open(blobPath(dir, d.Digest))
	if err != nil {
		return "", errdefs.Corruptf("layer %s: %w", d.Digest, err)
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
	plain, err := decompress(d.MediaType, raw)
	if err != nil {
		return "", err
	}
	plain = io.TeeReader(plain, diff)
	if err := unpack(ctx, temporary, plain); err != nil {
		return "", errdefs.Corruptf("layer %s: %w", d.Digest, err)
	}
	// What comes behind an archive belongs to the digests too.
	for _, rest := range []io.Reader{plain, raw} {
		if _, err := io.Copy(io.Discard, rest); err != nil {
			return "", errdefs.Corruptf("layer %s: %w", d.Digest, err)
		}
	}
	if got := hex.EncodeToString(blob.Sum(nil)); got != digits {
		return "", errdefs.Corruptf("layer %s has the digest %s", d.Digest, got)
	}
	if got := hex.EncodeToString(diff.Sum(nil)); got != want {
		return "", errdefs.Corruptf("layer %s holds content of digest %s, expected %s", d.Digest, got, diffID)
	}
	if err := os.Chmod(temporary, 0o755); err != nil {
		return "", err
	}
	return done, os.Rename(temporary, done)
}

// decompress undoes what a layer's media type says.
func decompress(mediaType string, r io.Reader) (io.Reader, error) {
	switch {
	case strings.HasSuffix(mediaType, "+gzip"), strings.HasSuffix(mediaType, ".gzip"):
		return gzip.NewReader(r)
	case strings.HasSuffix(mediaType, ".tar"):
		return r, nil
	}
	return nil, errdefs.Unsupportedf("layer of media type %q: expected a tar archive, plain or with gzip", mediaType)
}

package main

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
)

const archiveSuffix = ".oci.tar"

// pushImages pushes each image archive of a release, and prints NAME@DIGEST.
func pushImages(ctx context.Context, dist, to string, out io.Writer) error {
	if _, err := checkSums(dist); err != nil {
		return err
	}
	archives, err := filepath.Glob(filepath.Join(dist, "*"+archiveSuffix))
	if err != nil {
		return err
	}
	if len(archives) == 0 {
		return fmt.Errorf("%s has no image (*%s)", dist, archiveSuffix)
	}
	for _, archive := range archives {
		digest, err := push(ctx, archive, to)
		if err != nil {
			return fmt.Errorf("push %s: %w", filepath.Base(archive), err)
		}
		if _, err := fmt.Fprintln(out, digest); err != nil {
			return err
		}
	}
	return nil
}

// push pushes an archive PROGRAM-VERSION.oci.tar as TO/PROGRAM:VERSION. It returns the name with the digest.
func push(ctx context.Context, archive, to string) (digest string, err error) {
	program, version, ok := cutVersion(strings.TrimSuffix(filepath.Base(archive), archiveSuffix))
	if !ok {
		return "", errors.New("expected PROGRAM-VERSION in the name of the file")
	}
	tag, err := name.NewTag(strings.TrimSuffix(to, "/") + "/" + program + ":" + version)
	if err != nil {
		return "", fmt.Errorf("-to: %w", err)
	}
	dir, err := os.MkdirTemp("", "publish")
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := unpack(archive, dir); err != nil {
		return "", err
	}
	content, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		return "", err
	}
	outer, err := content.IndexManifest()
	if err != nil {
		return "", err
	}
	if len(outer.Manifests) != 1 {
		return "", fmt.Errorf("expected one image, and there are %d", len(outer.Manifests))
	}
	of := outer.Manifests[0]
	options := []remote.Option{remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain)}
	if err := unpublished(tag, of.Digest, options); err != nil {
		return "", err
	}
	if of.MediaType.IsIndex() {
		images, err := content.ImageIndex(of.Digest)
		if err == nil {
			err = remote.WriteIndex(tag, images, options...)
		}
		return tag.Context().Digest(of.Digest.String()).Name(), err
	}
	image, err := content.Image(of.Digest)
	if err == nil {
		err = remote.Write(tag, image, options...)
	}
	return tag.Context().Digest(of.Digest.String()).Name(), err
}

// unpublished checks that a tag has no other image. Some registries do not say whether they have a name that they refuse to read.
func unpublished(tag name.Tag, digest v1.Hash, options []remote.Option) error {
	there, err := remote.Head(tag, options...)
	var refused *transport.Error
	switch {
	case err == nil && there.Digest != digest:
		return fmt.Errorf("%s is published already, with other content: raise the version", tag)
	case err == nil:
		return nil
	case errors.As(err, &refused) &&
		slices.Contains([]int{http.StatusNotFound, http.StatusForbidden, http.StatusUnauthorized}, refused.StatusCode):
		return nil // the push is refused, too, if the password is wrong
	}
	return err
}

// cutVersion cuts PROGRAM-VERSION before the first number.
func cutVersion(text string) (program, version string, ok bool) {
	for i := range len(text) - 1 {
		if text[i] == '-' && '0' <= text[i+1] && text[i+1] <= '9' {
			return text[:i], text[i+1:], i > 0
		}
	}
	return "", "", false
}

// unpack unpacks the files of an image layout.
func unpack(archive, dir string) (err error) {
	f, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case h.Typeflag != tar.TypeReg:
			continue
		}
		if err := root.MkdirAll(filepath.Dir(h.Name), 0o755); err != nil {
			return err
		}
		if err := unpackFile(root, h.Name, r); err != nil {
			return err
		}
	}
}

func unpackFile(root *os.Root, name string, from io.Reader) error {
	to, err := root.Create(name)
	if err != nil {
		return err
	}
	_, err = io.Copy(to, from)
	return errors.Join(err, to.Close())
}

// serveRegistry serves a registry in memory until ctx ends. It prints its address first.
func serveRegistry(ctx context.Context, out io.Writer) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintln(out, l.Addr()); err != nil {
		return err
	}
	s := &http.Server{Handler: registry.New(registry.Logger(log.New(io.Discard, "", 0))), ReadHeaderTimeout: time.Minute}
	defer context.AfterFunc(ctx, func() { _ = s.Close() })()
	if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// program makes a folder as hack/image.sh does.
func program(t *testing.T, content string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "usr/bin"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "usr/bin/berthd"), []byte(content), 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

// made makes an archive of the folders and unpacks it.
func made(t *testing.T, roots ...string) (file, unpacked string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "image.tar")
	args := append([]string{"-o", file, "-name", "example.com/berthd:1.2.3", "-program", "berthd", "-label", "a=b=c", "-created",
		"1793491200"}, roots...)
	if err := run(args); err != nil {
		t.Fatal(err)
	}
	unpacked = t.TempDir()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	r := tar.NewReader(bytes.NewReader(data))
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return file, unpacked
		}
		if err != nil {
			t.Fatal(err)
		}
		to := filepath.Join(unpacked, h.Name)
		if h.Typeflag == tar.TypeDir {
			err = os.Mkdir(to, 0o755)
		} else {
			var content []byte
			if content, err = io.ReadAll(r); err == nil {
				err = os.WriteFile(to, content, 0o644)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestIndex: an archive of two architectures is a sound image layout, and each image has
// its program, entry point, platform and labels.
func TestIndex(t *testing.T) {
	_, dir := made(t, "amd64="+program(t, "x"), "arm64="+program(t, "y"))
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(index); err != nil {
		t.Error(err)
	}
	manifest, err := index.IndexManifest()
	if err != nil || len(manifest.Manifests) != 1 {
		t.Fatal(manifest, err)
	}
	if got := manifest.Manifests[0].Annotations; got["io.containerd.image.name"] != "example.com/berthd:1.2.3" ||
		got["org.opencontainers.image.ref.name"] != "1.2.3" {
		t.Errorf("annotations %v", got)
	}
	inner, err := index.ImageIndex(manifest.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	list, err := inner.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for _, m := range list.Manifests {
		img, err := inner.Image(m.Digest)
		if err != nil {
			t.Fatal(err)
		}
		found[m.Platform.OS+"/"+m.Platform.Architecture] = contentOf(t, img, m.Platform.Architecture)
	}
	if len(found) != 2 || found["linux/amd64"] != "x" || found["linux/arm64"] != "y" {
		t.Errorf("found %v", found)
	}
}

// contentOf checks the configuration of an image and returns what its program is.
func contentOf(t *testing.T, img v1.Image, arch string) (content string) {
	t.Helper()
	c, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if c.OS != "linux" || c.Architecture != arch || c.Created.Unix() != 1793491200 {
		t.Errorf("%s/%s, made at %s", c.OS, c.Architecture, c.Created)
	}
	if len(c.Config.Entrypoint) != 1 || c.Config.Entrypoint[0] != "/usr/bin/berthd" || c.Config.Labels["a"] != "b=c" {
		t.Errorf("configuration %+v", c.Config)
	}
	layers, err := img.Layers()
	if err != nil || len(layers) != 1 {
		t.Fatal(layers, err)
	}
	data, err := layers[0].Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	r := tar.NewReader(data)
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return content
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Uid != 0 || h.Gid != 0 || h.Mode != 0o755 {
			t.Errorf("%s: owner %d:%d, mode %o", h.Name, h.Uid, h.Gid, h.Mode)
		}
		if h.Name == "usr/bin/berthd" {
			text, err := io.ReadAll(r)
			if err != nil {
				t.Fatal(err)
			}
			content = string(text)
		}
	}
}

// TestDockerLoad: what reads the archives of 'docker save' reads these.
func TestDockerLoad(t *testing.T) {
	file, dir := made(t, "amd64="+program(t, "x"))
	text, err := os.ReadFile(filepath.Join(dir, "manifest.json"))
	if err != nil {
		t.Fatal(err)
	}
	var entries []struct{ RepoTags []string }
	if err := json.Unmarshal(text, &entries); err != nil || len(entries) != 1 ||
		strings.Join(entries[0].RepoTags, " ") != "example.com/berthd:1.2.3" {
		t.Fatalf("%s: %v", text, err)
	}
	img, err := tarball.ImageFromPath(file, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := contentOf(t, img, "amd64"); got != "x" {
		t.Errorf("the program is %q", got)
	}
}

// TestSame: the same files give the same bytes, whatever their times and modes for others.
func TestSame(t *testing.T) {
	one, _ := made(t, "amd64="+program(t, "x"))
	two, _ := made(t, "amd64="+program(t, "x"))
	other, _ := made(t, "amd64="+program(t, "z"))
	read := func(file string) string {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	if read(one) != read(two) {
		t.Error("two archives of the same files differ")
	}
	if read(one) == read(other) {
		t.Error("archives of different files are the same")
	}
}

func TestUsage(t *testing.T) {
	link := program(t, "x")
	if err := os.Symlink("berthd", filepath.Join(link, "usr/bin/other")); err != nil {
		t.Fatal(err)
	}
	full := []string{"-o", filepath.Join(t.TempDir(), "f"), "-name", "a:b", "-program", "p"}
	for want, args := range map[string][]string{
		"expected -o FILE":            {"amd64=/tmp"},
		"expected ARCH=DIR":           append(full[:6:6], "amd64"),
		"expected KEY=VALUE":          append(full[:6:6], "-label", "x", "amd64=/tmp"),
		"no such file":                append(full[:6:6], "amd64=/nowhere"),
		"expected only files and fol": append(full[:6:6], "amd64="+link),
	} {
		if err := run(args); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", args, err, want)
		}
	}
}

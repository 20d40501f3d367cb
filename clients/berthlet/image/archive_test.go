//go:build linux

package image_test

import (
	"archive/tar"
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berthd/berth/clients/berthlet/image"
	"github.com/berthd/berth/managers/errdefs"
)

// packed makes a tar file of a layout, as skopeo copy to oci-archive does.
func (l *layout) packed() []byte {
	l.t.Helper()
	var entries []tar.Header
	err := fs.WalkDir(os.DirFS(l.dir), ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(filepath.Join(l.dir, path))
		entries = append(entries, file(path, string(text)))
		return err
	})
	if err != nil {
		l.t.Fatal(err)
	}
	return archive(l.t, entries...)
}

// dockerSave makes an archive as docker save did before it wrote layouts: layers by path, one of them a link.
func dockerSave(t *testing.T, tag string, diffs []string, layers ...[]byte) []byte {
	t.Helper()
	config, err := json.Marshal(object{"config": object{"Cmd": []string{"run"}}, "rootfs": object{"diff_ids": diffs}})
	if err != nil {
		t.Fatal(err)
	}
	entries := []tar.Header{file("config.json", string(config))}
	var paths []string
	for i, layer := range layers {
		name := string(rune('a'+i)) + "/layer.tar"
		if i == 0 {
			entries = append(entries, file("blobs/first", string(layer)),
				tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: "../blobs/first"})
		} else {
			entries = append(entries, file(name, string(layer)))
		}
		paths = append(paths, name)
	}
	index, err := json.Marshal([]object{{"Config": "config.json", "RepoTags": []string{"example.com/img:" + tag}, "Layers": paths}})
	if err != nil {
		t.Fatal(err)
	}
	return archive(t, append(entries, file("manifest.json", string(index)))...)
}

func TestArchives(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := image.NewStore(dir, filepath.Join(t.TempDir(), "layers"))
	write := func(name string, text []byte) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	l := newLayout(t)
	l.index(tagged("v1", l.manifest(object{"Cmd": []string{"run"}}, archive(t, file("a", "from a layout")))))
	write("oci.tar", l.packed())
	plain, second := archive(t, file("a", "from docker")), archive(t, file("b", "second"))
	write("docker.tar", dockerSave(t, "v1", []string{digest(plain), digest(second)}, plain, zipped(t, second)))
	for ref, want := range map[string]string{"oci.tar:v1": "from a layout", "oci.tar": "from a layout", "docker.tar": "from docker",
		"docker.tar:v1": "from docker"} {
		img, err := s.Get(t.Context(), ref)
		if err != nil {
			t.Errorf("%s: %v", ref, err)
			continue
		}
		text, err := os.ReadFile(filepath.Join(img.Layers[len(img.Layers)-1], "a"))
		if err != nil || string(text) != want || strings.Join(img.Cmd, " ") != "run" {
			t.Errorf("%s: %q, %v, %v", ref, text, err, img.Cmd)
		}
	}
	write("other.tar", archive(t, file("bin/sh", "a root file system")))
	write("text", []byte("no archive"))
	write("zipped.tar", zipped(t, l.packed()))
	write("forged.tar", dockerSave(t, "v1", []string{digest([]byte("something else"))}, archive(t, file("c", "forged"))))
	write("loop.tar", archive(t, tar.Header{Typeflag: tar.TypeSymlink, Name: "manifest.json", Linkname: "manifest.json"}))
	for ref, want := range map[string]errdefs.Class{
		"docker.tar:v2": errdefs.NotFound, "other.tar": errdefs.NotFound, "text": errdefs.Corrupt, "zipped.tar": errdefs.Corrupt,
		"forged.tar": errdefs.Corrupt, "loop.tar": errdefs.NotFound,
	} {
		if img, err := s.Get(t.Context(), ref); errdefs.ClassOf(err) != want {
			t.Errorf("%s: %v, %v", ref, img, err)
		}
	}
}

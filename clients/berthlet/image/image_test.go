//go:build linux

package image_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthd/berth/clients/berthlet/image"
	"github.com/berthd/berth/managers/errdefs"
)

// layout builds an OCI image layout.
type layout struct {
	t   *testing.T
	dir string
}

func newLayout(t *testing.T) *layout {
	t.Helper()
	l := &layout{t, filepath.Join(t.TempDir(), "img")}
	if err := os.MkdirAll(filepath.Join(l.dir, "blobs", "sha256"), 0o755); err != nil {
		t.Fatal(err)
	}
	l.write("oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`))
	return l
}

func (l *layout) write(name string, text []byte) {
	l.t.Helper()
	if err := os.WriteFile(filepath.Join(l.dir, name), text, 0o644); err != nil {
		l.t.Fatal(err)
	}
}

func digest(text []byte) string {
	sum := sha256.Sum256(text)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// blob stores bytes under their digest.
func (l *layout) blob(text []byte) string {
	l.t.Helper()
	d := digest(text)
	l.write("blobs/sha256/"+strings.TrimPrefix(d, "sha256:"), text)
	return d
}

type object = map[string]any

func (l *layout) json(v any) string {
	l.t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		l.t.Fatal(err)
	}
	return l.blob(text)
}

// archive makes a tar file.
func archive(t *testing.T, entries ...tar.Header) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, h := range entries {
		content := h.PAXRecords["content"]
		delete(h.PAXRecords, "content")
		h.Size = int64(len(content))
		if h.Mode == 0 {
			h.Mode = 0o644
		}
		h.ModTime = time.Unix(1e9, 0)
		h.Uid, h.Gid = os.Getuid(), os.Getgid()
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(content)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func file(name, content string) tar.Header {
	return tar.Header{Typeflag: tar.TypeReg, Name: name, PAXRecords: map[string]string{"content": content}}
}

func zipped(t *testing.T, text []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	if _, err := w.Write(text); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// manifest stores an image of layers and gives its digest.
func (l *layout) manifest(config object, layers ...[]byte) string {
	l.t.Helper()
	var list []object
	ids := []string{}
	for _, layer := range layers {
		ids = append(ids, digest(layer))
		list = append(list, object{"mediaType": "application/vnd.oci.image.layer.v1.tar+gzip", "digest": l.blob(zipped(l.t, layer))})
	}
	c := l.json(object{"config": config, "rootfs": object{"type": "layers", "diff_ids": ids}})
	return l.json(object{"config": object{"digest": c}, "layers": list})
}

func (l *layout) index(manifests ...object) {
	l.t.Helper()
	text, err := json.Marshal(object{"manifests": manifests})
	if err != nil {
		l.t.Fatal(err)
	}
	l.write("index.json", text)
}

func tagged(tag, digest string) object {
	return object{"digest": digest, "annotations": object{"org.opencontainers.image.ref.name": tag}}
}

func (l *layout) store() *image.Store {
	return image.NewStore(filepath.Dir(l.dir), filepath.Join(l.t.TempDir(), "layers"))
}

func TestLayout(t *testing.T) {
	t.Parallel()
	l := newLayout(t)
	base := archive(t,
		tar.Header{Typeflag: tar.TypeDir, Name: "etc/", Mode: 0o750},
		file("etc/a", "one"), file("./deep/er/b", "two"),
		tar.Header{Typeflag: tar.TypeSymlink, Name: "link", Linkname: "../../etc/a"},
		tar.Header{Typeflag: tar.TypeLink, Name: "hard", Linkname: "etc/a"},
		tar.Header{Typeflag: tar.TypeFifo, Name: "pipe"},
		file("etc/a2", "first"), file("etc/a2", "second"),
	)
	l.index(tagged("v1", l.manifest(object{
		"Entrypoint": []string{"/p"}, "Cmd": []string{"x"}, "Env": []string{"A=b"}, "WorkingDir": "/w", "User": "7:8",
	}, base, archive(t, file("etc/c", "three")))))
	s := l.store()
	img, err := s.Get(t.Context(), "img:v1")
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprintf("%v %v %v %s %s", img.Entrypoint, img.Cmd, img.Env, img.Dir, img.User); got != "[/p] [x] [A=b] /w 7:8" {
		t.Errorf("configuration: %s", got)
	}
	if len(img.Layers) != 2 {
		t.Fatalf("layers: %v", img.Layers)
	}
	top, bottom := img.Layers[0], img.Layers[1]
	for path, want := range map[string]string{
		top + "/etc/c": "three", bottom + "/etc/a": "one", bottom + "/deep/er/b": "two", bottom + "/hard": "one",
		bottom + "/etc/a2": "second",
	} {
		if text, err := os.ReadFile(path); err != nil || string(text) != want {
			t.Errorf("%s: %q, %v", path, text, err)
		}
	}
	if target, err := os.Readlink(bottom + "/link"); err != nil || target != "../../etc/a" {
		t.Errorf("link to %q, %v", target, err)
	}
	if info, err := os.Stat(bottom + "/etc"); err != nil || info.Mode().Perm() != 0o750 || !info.ModTime().Equal(time.Unix(1e9, 0)) {
		t.Errorf("directory: %v, %v", info, err)
	}
	if info, err := os.Lstat(bottom + "/pipe"); err != nil || info.Mode()&os.ModeNamedPipe == 0 {
		t.Errorf("pipe: %v, %v", info, err)
	}
	// The second time nothing is unpacked: what was done to a layer since is still there.
	if err := os.WriteFile(top+"/mark", nil, 0o644); err != nil {
		t.Fatal(err)
	}
	again, err := s.Get(t.Context(), l.dir+":v1")
	if _, statErr := os.Stat(top + "/mark"); err != nil || statErr != nil || !slices.Equal(again.Layers, img.Layers) {
		t.Errorf("again: %v, %v, %v", again, err, statErr)
	}
}

func TestWhiteouts(t *testing.T) {
	t.Parallel()
	probe := filepath.Join(t.TempDir(), "probe")
	if err := unix.Mknod(probe, unix.S_IFCHR, 0); err != nil {
		t.Skipf("needs the right to make device files: %v", err)
	}
	l := newLayout(t)
	l.index(tagged("v1", l.manifest(nil, archive(t, file("d/.wh.gone", ""), file("o/.wh..wh..opq", ""),
		tar.Header{Typeflag: tar.TypeReg, Name: "d/x", PAXRecords: map[string]string{
			"SCHILY.xattr.user.mine": "yes", "SCHILY.xattr.trusted.overlay.redirect": "/", "content": "",
		}}))))
	img, err := l.store().Get(t.Context(), "img")
	if err != nil {
		t.Fatal(err)
	}
	var stat unix.Stat_t
	if err := unix.Lstat(img.Layers[0]+"/d/gone", &stat); err != nil || stat.Mode&unix.S_IFMT != unix.S_IFCHR || stat.Rdev != 0 {
		t.Errorf("whiteout: %+v, %v", stat, err)
	}
	value := make([]byte, 8)
	if n, err := unix.Getxattr(img.Layers[0]+"/o", "trusted.overlay.opaque", value); err != nil || string(value[:n]) != "y" {
		t.Errorf("opaque: %q, %v", value, err)
	}
	if n, err := unix.Getxattr(img.Layers[0]+"/d/x", "user.mine", value); err != nil || string(value[:n]) != "yes" {
		t.Errorf("attribute: %q, %v", value, err)
	}
	if _, err := unix.Getxattr(img.Layers[0]+"/d/x", "trusted.overlay.redirect", value); err == nil {
		t.Error("an image has told overlayfs what to do")
	}
}

func TestPlatforms(t *testing.T) {
	t.Parallel()
	l := newLayout(t)
	mine, other := l.manifest(object{"User": "mine"}, archive(t)), l.manifest(object{"User": "other"}, archive(t))
	nested := l.json(object{"manifests": []object{
		{"digest": other, "platform": object{"os": "linux", "architecture": "z80"}},
		{"digest": mine, "platform": object{"os": "linux", "architecture": runtime.GOARCH}},
	}})
	l.index(tagged("both", nested), tagged("other", other))
	img, err := l.store().Get(t.Context(), "img:both")
	if err != nil || img.User != "mine" {
		t.Errorf("%+v, %v", img, err)
	}
	if _, err := l.store().Get(t.Context(), "img"); errdefs.ClassOf(err) != errdefs.NotFound ||
		!strings.Contains(err.Error(), "name it by its tag") {
		t.Errorf("two images and no tag: %v", err)
	}
}

func TestDirectory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{"root", "reg.example/a:5000"} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("root", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	s := image.NewStore(dir, filepath.Join(dir, "layers"))
	for _, ref := range []string{"root", "link", dir + "/root"} {
		img, err := s.Get(t.Context(), ref)
		if err != nil || len(img.Layers) != 1 || img.Layers[0] != dir+"/root" {
			t.Errorf("%s: %+v, %v", ref, img, err)
		}
	}
	for ref, want := range map[string]errdefs.Class{
		"": errdefs.Invalid, "none": errdefs.NotFound, "file": errdefs.NotFound, "../x": errdefs.Invalid, "root:v1": errdefs.NotFound,
		dir + "/none": errdefs.NotFound,
	} {
		if _, err := s.Get(t.Context(), ref); errdefs.ClassOf(err) != want {
			t.Errorf("%q: %v, want %v", ref, err, want)
		}
	}
	if _, err := image.NewStore("", dir).Get(t.Context(), "root"); errdefs.ClassOf(err) != errdefs.NotFound {
		t.Errorf("without a folder: %v", err)
	}
}

func TestDamage(t *testing.T) {
	t.Parallel()
	good := archive(t, file("a", "b"))
	for _, row := range []struct {
		name string
		make func(l *layout)
		want errdefs.Class
		text string
	}{
		{"no index", func(*layout) {}, errdefs.Corrupt, "index.json"},
		{"an index that is no JSON", func(l *layout) { l.write("index.json", []byte("{")) }, errdefs.Corrupt, "index.json"},
		{"no image", func(l *layout) { l.index() }, errdefs.NotFound, "no image"},
		{"no manifest", func(l *layout) { l.index(tagged("v", digest([]byte("x")))) }, errdefs.Corrupt, "there is no"},
		{"another manifest", func(l *layout) {
			l.write("blobs/sha256/"+strings.TrimPrefix(digest([]byte("x")), "sha256:"), []byte("y"))
			l.index(tagged("v", digest([]byte("x"))))
		}, errdefs.Corrupt, "has the digest"},
		{"a digest that leads away", func(l *layout) { l.index(tagged("v", "sha256:../../../etc/passwd")) }, errdefs.Corrupt,
			"hexadecimal"},
		{"an unknown digest", func(l *layout) { l.index(tagged("v", "md5:00")) }, errdefs.Unsupported, "md5"},
		{"another content", func(l *layout) {
			c := l.json(object{"rootfs": object{"diff_ids": []string{digest([]byte("x"))}}})
			l.index(tagged("v", l.json(object{"config": object{"digest": c}, "layers": []object{
				{"mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": l.blob(good)},
			}})))
		}, errdefs.Corrupt, "holds content"},
		{"a compression that is not known", func(l *layout) {
			c := l.json(object{"rootfs": object{"diff_ids": []string{digest(good)}}})
			l.index(tagged("v", l.json(object{"config": object{"digest": c}, "layers": []object{
				{"mediaType": "application/vnd.oci.image.layer.v1.tar+zstd", "digest": l.blob(good)},
			}})))
		}, errdefs.Unsupported, "zstd"},
		{"layers without content", func(l *layout) {
			c := l.json(object{"rootfs": object{"diff_ids": []string{}}})
			l.index(tagged("v", l.json(object{"config": object{"digest": c}, "layers": []object{{"digest": l.blob(good)}}})))
		}, errdefs.Corrupt, "1 layers"},
		{"no layers", func(l *layout) { l.index(tagged("v", l.manifest(nil))) }, errdefs.Corrupt, "no layers"},
		{"an archive that is none", func(l *layout) { l.index(tagged("v", l.manifest(nil, []byte(strings.Repeat("x", 600))))) },
			errdefs.Corrupt, "layer"},
		{"a link to what is not there", func(l *layout) {
			l.index(tagged("v", l.manifest(nil, archive(l.t, tar.Header{Typeflag: tar.TypeLink, Name: "a", Linkname: "none"}))))
		}, errdefs.Corrupt, `unpack "a"`},
		{"a way out through a link", func(l *layout) {
			l.index(tagged("v", l.manifest(nil, archive(l.t,
				tar.Header{Typeflag: tar.TypeSymlink, Name: "out", Linkname: "/tmp"}, file("out/escaped", "x")))))
		}, errdefs.Corrupt, "escaped"},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			l := newLayout(t)
			row.make(l)
			s := l.store()
			if _, err := s.Get(t.Context(), "img"); errdefs.ClassOf(err) != row.want || !strings.Contains(err.Error(), row.text) {
				t.Errorf("got %v, want %v with %q", err, row.want, row.text)
			}
		})
	}
	// A name that leads upwards stays below.
	l := newLayout(t)
	l.index(tagged("v", l.manifest(nil, archive(t, file("../../up", "x")))))
	img, err := l.store().Get(t.Context(), "img")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(img.Layers[0] + "/up"); err != nil {
		t.Error(err)
	}
}

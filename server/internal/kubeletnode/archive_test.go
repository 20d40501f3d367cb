package kubeletnode

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"
)

// archived is a tar archive of files.
func archived(t *testing.T, files map[string]string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for name, text := range files {
		h := &tar.Header{Name: name, Mode: 0o644, Size: int64(len(text)), Typeflag: tar.TypeReg}
		if to, ok := strings.CutPrefix(text, "-> "); ok {
			h.Typeflag, h.Linkname, h.Size, text = tar.TypeSymlink, to, 0, ""
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, text); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// compressed is data behind a writer.
func compressed(t *testing.T, data []byte, to func(io.Writer) io.WriteCloser) []byte {
	t.Helper()
	var b bytes.Buffer
	w := to(&b)
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func gzipped(w io.Writer) io.WriteCloser { return gzip.NewWriter(w) }

func zstandard(w io.Writer) io.WriteCloser {
	z, err := zstd.NewWriter(w)
	if err != nil {
		panic(err)
	}
	return z
}

// TestArchives: the files of a node are found in every kind of archive, also below a directory, and nothing else is kept.
func TestArchives(t *testing.T) {
	t.Parallel()
	for _, before := range []string{"", "sosreport-x/", "./must-gather/node/"} {
		plain := archived(t, map[string]string{
			before + machineFile: "0-3\n", before + "var/lib/kubelet/config.yaml": "x", before + "home/secret": "s",
			before + "proc/self": "-> 1", before + "proc/1/cmdline": "kubelet",
		})
		for kind, data := range map[string][]byte{
			"tar": plain, "gzip": compressed(t, plain, gzipped), "zstd": compressed(t, plain, zstandard),
		} {
			root, err := Archive(t.Context(), bytes.NewReader(data))
			if err != nil {
				t.Errorf("%s below %q: %v", kind, before, err)
				continue
			}
			for name, want := range map[string]string{
				machineFile: "0-3\n", "var/lib/kubelet/config.yaml": "x", "proc/self/cmdline": "kubelet",
			} {
				if got, err := fs.ReadFile(root, name); err != nil || string(got) != want {
					t.Errorf("%s below %q: %s is %q, %v", kind, before, name, got, err)
				}
			}
			if _, err := fs.Stat(root, "home/secret"); err == nil {
				t.Errorf("%s below %q: a file is kept that is not needed", kind, before)
			}
		}
	}
	for name, row := range map[string]struct {
		data []byte
		want string
	}{
		"no archive": {[]byte("kind: Pod"), "expected a tar archive"},
		"empty":      {nil, "it has no " + machineFile},
		"no node":    {archived(t, map[string]string{"etc/kubernetes/x": "y"}), "it has no " + machineFile},
		"cut off":    {compressed(t, archived(t, map[string]string{machineFile: "0\n"}), gzipped)[:40], "expected a tar archive"},
		"a long name": {archived(t, map[string]string{"proc/" + strings.Repeat("x", mostName): "x"}),
			"expected names of at most 4096 bytes"},
		"a large file": {archived(t, map[string]string{"proc/kcore": strings.Repeat("x", Most+1)}),
			"proc/kcore: expected at most 16 MiB in a file"},
	} {
		if _, err := Archive(t.Context(), bytes.NewReader(row.data)); err == nil || !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s: %v, want an error with %q", name, err, row.want)
		}
	}
}

// TestLinksOfArchives: links that lead in a circle are errors, and those that lead out stay within.
func TestLinksOfArchives(t *testing.T) {
	t.Parallel()
	root, err := Archive(t.Context(), bytes.NewReader(archived(t, map[string]string{
		machineFile: "0-3\n", "proc/a": "-> a", "proc/b": "-> c", "proc/c": "-> b", "proc/out": "-> ../../../proc/1/cmdline",
		"proc/abs": "-> /proc/1/cmdline", "proc/1/cmdline": "/usr/bin/kubelet\x00--v=2", "proc/2/cmdline": "/bin/sh", "proc/dir": "-> 1",
	})))
	if err != nil {
		t.Fatal(err)
	}
	if err := fstest.TestFS(root, machineFile, "proc/1/cmdline"); err != nil && !strings.Contains(err.Error(), "too many levels") {
		t.Error(err)
	}
	for _, name := range []string{"proc/a", "proc/b", "proc/2/cmdline", "proc/1/cmdline/x"} {
		if data, err := fs.ReadFile(root, name); err == nil {
			t.Errorf("%s is %q", name, data)
		}
	}
	for _, name := range []string{"proc/out", "proc/abs", "proc/dir/cmdline"} {
		if data, err := fs.ReadFile(root, name); err != nil || !strings.HasPrefix(string(data), "/usr/bin/kubelet") {
			t.Errorf("%s is %q, %v", name, data, err)
		}
	}
	if names, err := fs.Glob(root, "proc/[0-9]*/cmdline"); err != nil || len(names) != 1 {
		t.Errorf("command lines %v, %v", names, err)
	}
}

// TestOnlyRegularFilesAreOpened: a pipe, which nobody writes to, is not waited for.
func TestOnlyRegularFilesAreOpened(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := unix.Mkfifo(filepath.Join(dir, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	if data, err := fs.ReadFile(regularIn(os.DirFS(dir)), "pipe"); err == nil || !strings.Contains(err.Error(), "expected a regular file") {
		t.Errorf("%q, %v", data, err)
	}
}

//go:build linux

package image_test

import (
	"archive/tar"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// picture is everything about the files of a directory: names, kinds, modes, owners, times,
// contents and attributes.
func picture(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var stat unix.Stat_t
		if err := unix.Lstat(path, &stat); err != nil {
			return err
		}
		fmt.Fprintf(&b, "%s %o %d:%d %d %d", path, stat.Mode, stat.Uid, stat.Gid, stat.Nlink, stat.Mtim.Nano())
		if e.Type().IsRegular() {
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			fmt.Fprintf(&b, " %q", text)
		}
		names := make([]byte, 4096)
		if n, err := unix.Llistxattr(path, names); err == nil {
			fmt.Fprintf(&b, " %q", names[:n])
		}
		b.WriteByte('\n')
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// TestLayersThatLeadOut unpacks layers, as root, that try to reach files outside: a layer
// may be refused, or stay below its directory; nothing outside is made, changed or linked.
func TestLayersThatLeadOut(t *testing.T) {
	t.Parallel()
	link := func(name, to string) tar.Header {
		return tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: to}
	}
	hard := func(name, to string) tar.Header { return tar.Header{Typeflag: tar.TypeLink, Name: name, Linkname: to} }
	folder := func(name string, mode int64) tar.Header {
		return tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: mode}
	}
	up := strings.Repeat("../", 30)
	for name, layer := range map[string]func(out string) []tar.Header{
		"a name that climbs":         func(out string) []tar.Header { return []tar.Header{file(up+out+"/new", "x")} },
		"a name from the root":       func(out string) []tar.Header { return []tar.Header{file(out+"/new", "x")} },
		"a name that climbs later":   func(out string) []tar.Header { return []tar.Header{file("a/b/../../"+up+out+"/secret", "x")} },
		"through a link":             func(out string) []tar.Header { return []tar.Header{link("l", out), file("l/new", "x")} },
		"through a link that climbs": func(out string) []tar.Header { return []tar.Header{link("l", up+out), file("l/new", "x")} },
		"through links of links": func(out string) []tar.Header {
			return []tar.Header{link("a", "b"), link("b", out),
				file("a/new", "x")}
		},
		"over a link to a file":   func(out string) []tar.Header { return []tar.Header{link("l", out+"/secret"), file("l", "x")} },
		"a hard link":             func(out string) []tar.Header { return []tar.Header{hard("h", out+"/secret"), file("h", "x")} },
		"a hard link that climbs": func(out string) []tar.Header { return []tar.Header{hard("h", up+out+"/secret"), file("h", "x")} },
		"a hard link through a link": func(out string) []tar.Header {
			return []tar.Header{link("l", out), hard("h", "l/secret"), file("h", "x")}
		},
		"a hard link to a link": func(out string) []tar.Header {
			return []tar.Header{link("l", out+"/secret"), hard("h", "l"), file("h", "x")}
		},
		"a directory over a link":      func(out string) []tar.Header { return []tar.Header{link("l", out), folder("l", 0o777)} },
		"a link over a directory":      func(out string) []tar.Header { return []tar.Header{folder("d", 0o777), link("d", out)} },
		"a directory behind a link":    func(out string) []tar.Header { return []tar.Header{link("l", out), folder("l/new", 0o777)} },
		"a whiteout behind a link":     func(out string) []tar.Header { return []tar.Header{link("l", out), file("l/.wh.secret", "")} },
		"an opaque mark behind a link": func(out string) []tar.Header { return []tar.Header{link("l", out), file("l/.wh..wh..opq", "")} },
		"whiteouts of dots": func(string) []tar.Header {
			return []tar.Header{file(".wh..", ""), file(".wh...", ""), file("a/.wh...", ""), file(".wh.", "")}
		},
		"a device behind a link": func(out string) []tar.Header {
			return []tar.Header{link("l", out), {Typeflag: tar.TypeChar, Name: "l/null", Devmajor: 1, Devminor: 3}}
		},
		"a pipe behind a link": func(out string) []tar.Header {
			return []tar.Header{link("l", out), {Typeflag: tar.TypeFifo, Name: "l/pipe"}}
		},
		"attributes behind a link": func(out string) []tar.Header {
			return []tar.Header{link("l", out), {Typeflag: tar.TypeReg, Name: "l",
				PAXRecords: map[string]string{"SCHILY.xattr.user.mine": "x", "content": ""}}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			outside := filepath.Join(t.TempDir(), "outside")
			if err := os.Mkdir(outside, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(outside, "secret"), []byte("secret"), 0o600); err != nil {
				t.Fatal(err)
			}
			before := picture(t, outside)
			l := newLayout(t)
			l.index(tagged("v", l.manifest(nil, archive(t, layer(outside)...))))
			img, err := l.store().Get(t.Context(), "img")
			if after := picture(t, outside); after != before {
				t.Errorf("outside has changed (%v):\n%s\n%s", err, before, after)
			}
			if err != nil {
				return
			}
			for _, dir := range img.Layers {
				if text := picture(t, dir); strings.Contains(text, `"secret"`) {
					t.Errorf("the layer holds what is outside:\n%s", text)
				}
			}
		})
	}
}

//go:build linux

package trust_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/berthd/berth/api/trust"
	"github.com/berthd/berth/managers/errdefs"
)

func write(t *testing.T, path string, mode fs.FileMode) {
	t.Helper()
	must(t, os.WriteFile(path, []byte("text"), 0o600))
	must(t, os.Chmod(path, mode))
}

// TestReadFile: only a regular file of root or of the process's user that nobody else writes is read, and the refusal
// has the command that mends it.
func TestReadFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	write(t, path("good"), 0o644)
	write(t, path("open"), 0o646)
	write(t, path("it's open"), 0o646)
	must(t, os.Symlink("good", path("link")))
	must(t, os.Symlink("open", path("linkopen")))
	must(t, syscall.Mkfifo(path("pipe"), 0o600))
	must(t, os.Mkdir(path("sub"), 0o755))
	for name, want := range map[string]string{
		"good": "", "link": "", "open": path("open") + " (owner", "linkopen": "chmod go-w " + path("open"),
		"it's open": `chmod go-w '` + dir + `/it'\''s open'`,
		"pipe":      "no regular file", "sub": "no regular file", "good/x": "is no directory",
	} {
		text, err := trust.ReadFile(path(name), 100)
		if want == "" && (err != nil || string(text) != "text") || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %q, %v, want %q", name, text, err, want)
		}
	}
	if _, err := trust.ReadFile(path("good"), 3); errdefs.ClassOf(err) != errdefs.Invalid {
		t.Errorf("a file of 4 bytes, of which 3 may be read: %v", err)
	}
	if os.Geteuid() != 0 {
		t.Skip("files of another user need root")
	}
	write(t, path("theirs"), 0o644)
	must(t, os.Chown(path("theirs"), 65534, 65534))
	if _, err := trust.ReadFile(path("theirs"), 100); errdefs.ClassOf(err) != errdefs.Precondition ||
		!strings.Contains(err.Error(), "belongs to user 65534 (mode 0644), who could change it: chown root "+path("theirs")) {
		t.Errorf("a file of another user: %v", err)
	}
}

// TestFolder: a file is read beneath the directory that was opened, and a link does not lead out of it.
func TestFolder(t *testing.T) {
	t.Parallel()
	top := t.TempDir()
	dir := filepath.Join(top, "dir")
	must(t, os.Mkdir(dir, 0o755))
	write(t, filepath.Join(dir, "a"), 0o644)
	write(t, filepath.Join(dir, "open"), 0o666)
	write(t, filepath.Join(top, "outside"), 0o644)
	must(t, os.Symlink("a", filepath.Join(dir, "b")))
	must(t, os.Symlink("../outside", filepath.Join(dir, "out")))
	folder, err := trust.OpenFolder(dir)
	must(t, err)
	defer folder.Close()
	entries, err := folder.List()
	must(t, err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
		_, err := folder.ReadFile(e.Name(), 100)
		if good := slices.Contains([]string{"a", "b"}, e.Name()); good != (err == nil) {
			t.Errorf("%s: %v", e.Name(), err)
		}
	}
	if !slices.Equal(names, []string{"a", "b", "open", "out"}) {
		t.Errorf("the directory has %q", names)
	}
	// Another directory in its place is not read.
	must(t, os.Rename(dir, filepath.Join(top, "moved")))
	must(t, os.Mkdir(dir, 0o755))
	write(t, filepath.Join(dir, "new"), 0o644)
	if _, err := folder.ReadFile("new", 100); err == nil {
		t.Error("a file of another directory is read")
	}
	must(t, os.Chmod(dir, 0o777))
	if _, err := trust.OpenFolder(dir); errdefs.ClassOf(err) != errdefs.Precondition {
		t.Errorf("a directory that all write to: %v", err)
	}
}

// TestFields: fields of text are found in structs, lists, maps and behind pointers, by the names of the file.
func TestFields(t *testing.T) {
	t.Parallel()
	type part struct {
		Dir string `json:"dir" names:"directory"`
	}
	type whole struct {
		Name    string
		Path    *string           `json:"path,omitempty" names:"file"`
		Parts   []part            `json:"parts"`
		Options map[string]string `json:"options"`
		List    []string          `json:"list" names:"socket"`
		Number  int
		private string
	}
	open := filepath.Join(t.TempDir(), "open")
	write(t, open, 0o666)
	c := whole{Path: &open, Parts: []part{{"/"}, {filepath.Dir(open)}}, private: "x"}
	var got []string
	for _, f := range trust.Fields(c) {
		got = append(got, f.Path+" "+string(f.Kind))
	}
	if want := []string{"Name ", "path file", "parts[].dir directory", "parts[].dir directory", "options ",
		"list socket"}; !slices.Equal(got, want) {
		t.Errorf("fields %q, want %q", got, want)
	}
	if err := trust.CheckFields(c); err == nil || !strings.HasPrefix(err.Error(), "path: "+open) {
		t.Errorf("a file that all write to: %v", err)
	}
	c.Path, c.List = nil, []string{"@abstract"}
	if err := trust.CheckFields(c); err == nil || !strings.HasPrefix(err.Error(), "list: ") {
		t.Errorf("a socket without a file: %v", err)
	}
}

func TestSocketPath(t *testing.T) {
	t.Parallel()
	for endpoint, want := range map[string]string{"/a/b": "/a/b", "unix:///a/b": "/a/b", "unix:/a": "/a", "@a": "", "unix:@a": "",
		"tcp://a:1": "tcp://a:1", "": ""} {
		if path, ok := trust.SocketPath(endpoint); ok != (want != "") || ok && path != want {
			t.Errorf("%q: %q, %t", endpoint, path, ok)
		}
	}
}

// TestSocketBehindALink: the directories of a socket, and of every link that leads to it, are those of root or of the
// process's user.
func TestSocketBehindALink(t *testing.T) {
	t.Parallel()
	top := t.TempDir()
	for name, mode := range map[string]fs.FileMode{"good": 0o755, "open": 0o777, "sticky": 0o777 | fs.ModeSticky} {
		must(t, os.Mkdir(filepath.Join(top, name), 0o700))
		write(t, filepath.Join(top, name, "s"), 0o666)
		for _, target := range []string{"good", "open", "sticky"} {
			must(t, os.Symlink(filepath.Join("..", target, "s"), filepath.Join(top, name, "to-"+target)))
			must(t, os.Symlink(filepath.Join(top, target, "to-good"), filepath.Join(top, name, "over-"+target)))
		}
		must(t, os.Symlink("endless", filepath.Join(top, name, "endless")))
		must(t, os.Symlink("none", filepath.Join(top, name, "to-none")))
		must(t, os.Chmod(filepath.Join(top, name), mode))
	}
	for path, want := range map[string]string{
		"good/s": "", "good/none": "", "good/to-good": "", "good/over-good": "", "good/to-none": "", "none/none": "",
		"good/to-open": "open (owner", "good/to-sticky": "sticky (owner", "good/over-open": "open (owner",
		"good/over-sticky": "sticky (owner",
		"open/to-good":     "open (owner", "sticky/to-good": "sticky (owner", "sticky/s": "sticky (owner",
		"good/endless": "links on the path",
	} {
		err := trust.CheckSocket("unix://" + filepath.Join(top, path))
		if want == "" && err != nil || want != "" && (errdefs.ClassOf(err) != errdefs.Precondition ||
			!strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
	}
	if os.Geteuid() != 0 {
		t.Skip("links of another user need root")
	}
	must(t, os.Symlink("s", filepath.Join(top, "good/theirs")))
	must(t, os.Lchown(filepath.Join(top, "good/theirs"), 65534, 65534))
	if err := trust.CheckSocket(filepath.Join(top, "good/theirs")); errdefs.ClassOf(err) != errdefs.Precondition ||
		!strings.Contains(err.Error(), "belongs to user 65534") {
		t.Errorf("a link of another user: %v", err)
	}
}

// TestFiles: a directory that files are read from may have the sticky bit, and a file that another user makes there is refused.
func TestFiles(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "volume")
	must(t, os.Mkdir(dir, 0o700))
	must(t, os.Chmod(dir, 0o777|os.ModeSticky))
	for path, want := range map[string]string{dir: "", filepath.Join(dir, "none"): "", filepath.Join(dir, "file"): "is no directory"} {
		write(t, filepath.Join(dir, "file"), 0o644)
		err := trust.CheckNamed(trust.Files, path)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
	}
	if os.Geteuid() == 0 {
		must(t, os.Chown(filepath.Join(dir, "file"), 65534, 65534))
		if _, err := trust.ReadFile(filepath.Join(dir, "file"), 100); errdefs.ClassOf(err) != errdefs.Precondition {
			t.Errorf("a file of another user: %v", err)
		}
	}
	must(t, os.Chmod(dir, 0o777))
	if err := trust.CheckNamed(trust.Files, dir); errdefs.ClassOf(err) != errdefs.Precondition {
		t.Errorf("a directory that all can write to: %v", err)
	}
}

package cdi

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/berthd/berth/managers/numa"
)

// machine is a made-up machine: two CDI directories, and sysfs.
type machine struct {
	t *testing.T
	*Reader
	dir string
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	dir := t.TempDir()
	m := &machine{t: t, dir: dir, Reader: &Reader{Directories: []string{dir + "/etc", dir + "/run"}, Dev: dir + "/dev", Sys: dir + "/sys"}}
	for _, d := range []string{"etc", "run", "dev", "sys"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

func (m *machine) write(name, text string) {
	m.t.Helper()
	path := filepath.Join(m.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		m.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		m.t.Fatal(err)
	}
}

// device adds a device to sysfs as the kernel does: by links.
func (m *machine) device(kind, number, node string) {
	m.t.Helper()
	m.write("sys/devices/pci/"+number+"/numa_node", node+"\n")
	if err := os.MkdirAll(filepath.Join(m.dir, "sys/devices/pci", number, "class"), 0o755); err != nil {
		m.t.Fatal(err)
	}
	if err := os.Symlink("..", filepath.Join(m.dir, "sys/devices/pci", number, "class/device")); err != nil {
		m.t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(m.dir, "sys/dev", kind), 0o755); err != nil {
		m.t.Fatal(err)
	}
	if err := os.Symlink("../../devices/pci/"+number+"/class", filepath.Join(m.dir, "sys/dev", kind, number)); err != nil {
		m.t.Fatal(err)
	}
}

func spec(kind, name, node string) string {
	return fmt.Sprintf(`{"cdiVersion": "0.8.0", "kind": %q, "devices": [{"name": %q, "containerEdits": {"deviceNodes": [%s], "env": ["A=b"]}}]}`, kind, name, node)
}

// TestNodes reads files as drivers write them.
func TestNodes(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.device("char", "226:128", "1")
	m.device("char", "226:129", "0")
	m.device("block", "259:0", "1")
	m.device("char", "5:1", "-1")
	m.write("etc/gpu.json",
		"\t"+spec("example.com/gpu", "gpu0", `{"path": "/dev/dri/renderD128", "type": "c", "major": 226, "minor": 128}`))
	m.write("etc/two.yaml", `cdiVersion: 0.8.0
kind: example.com/nic
devices:
- name: a
  containerEdits:
    deviceNodes:
    - {path: /dev/a, type: c, major: 226, minor: 128}
    - {path: /dev/b, type: u, major: 226, minor: 129}
    - {path: /dev/pipe, type: p}
- name: disk
  containerEdits: {deviceNodes: [{path: /dev/nvme0, type: b, major: 259}]}
- {name: nowhere, containerEdits: {deviceNodes: [{path: /dev/console, type: c, major: 5, minor: 1}]}}
- {name: silent, containerEdits: {deviceNodes: [{path: /dev/x, type: c, major: 9, minor: 9}]}}
- {name: none, containerEdits: {env: [A=b]}}
containerEdits:
  deviceNodes: [{path: /dev/ctl, type: c, major: 226, minor: 129}]
`)
	m.write("etc/old.json", spec("example.com/moved", "d", `{"path": "/dev/x", "type": "c", "major": 226, "minor": 128}`))
	m.write("run/new.json", spec("example.com/moved", "d", `{"path": "/dev/x", "type": "c", "major": 226, "minor": 129}`))
	m.write("etc/notes.txt", "not CDI")
	names := []string{"example.com/nic=a", "example.com/nic=disk", "example.com/nic=nowhere", "example.com/nic=silent",
		"example.com/nic=none", "example.com/gpu=gpu0", "example.com/moved=d", "example.com/gpu=gpu0"}
	got, err := m.Nodes(t.Context(), names)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"example.com/gpu=gpu0": "1", "example.com/nic=a": "0-1", "example.com/nic=disk": "1",
		"example.com/moved=d": "0"}
	if len(got) != len(want) {
		t.Errorf("got %v", got)
	}
	for name, nodes := range want {
		if got[name].String() != nodes {
			t.Errorf("%s is near to %q, want %s", name, got[name], nodes)
		}
	}
}

// TestByPath looks for a device node without numbers.
func TestByPath(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.write("etc/a.json", spec("example.com/a", "a", `{"path": "/dev/inside", "hostPath": "/dev/sub/null"}`))
	m.Dev = "/dev"
	m.write("etc/null.json", spec("example.com/null", "n", `{"path": "/dev/null"}`))
	m.device("char", "1:3", "2")
	got, err := m.Nodes(t.Context(), []string{"example.com/null=n", "example.com/a=a"})
	if got["example.com/null=n"] != numa.Mask(0).With(2) {
		t.Errorf("/dev/null is near to %s", got["example.com/null=n"])
	}
	if err == nil || len(got) != 1 || !strings.Contains(err.Error(), `"example.com/a=a"`) {
		t.Errorf("a node that is not there: %v, %v", got, err)
	}
}

// TestHostileFiles: a file that is wrong is reported, costs little, and hides no other.
func TestHostileFiles(t *testing.T) {
	t.Parallel()
	const device = `{"path": "/dev/x", "type": "c", "major": 226, "minor": 128}`
	aliases := "a: &a [x,x,x,x,x,x,x,x,x,x]\n"
	for c := 'b'; c < 'k'; c++ {
		aliases += fmt.Sprintf("%c: &%c [%s]\n", c, c, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*%c,", c-1), 10), ","))
	}
	secret := filepath.Join(t.TempDir(), "secret.json")
	if err := os.WriteFile(secret, []byte(spec("example.com/bad", "d", device)), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, put := range map[string]func(m *machine, path string) error{
		"a link that leads out": func(_ *machine, path string) error { return os.Symlink(secret, path) },
		"a pipe":                func(_ *machine, path string) error { return syscall.Mkfifo(path, 0o644) },
		"a directory":           func(_ *machine, path string) error { return os.Mkdir(path, 0o755) },
		"an endless file":       func(_ *machine, path string) error { return os.Symlink("/dev/zero", path) },
		"a large file":          text(spec("example.com/bad", "d", device) + strings.Repeat(" ", maxFile)),
		"aliases":               text(aliases),
		"aliases of a long text": text("kind: example.com/bad\ndevices: []\na: &a " + strings.Repeat("x", 20_000) + "\nb: [" +
			strings.Repeat("*a,", 20_000) + "]\n"),
		"large YAML": text("kind: example.com/bad\ndevices: [{name: d, containerEdits: {deviceNodes: [" + device +
			"]}}]\n#" + strings.Repeat(" ", maxYAML)),
		"depth":               text(`{"kind":"example.com/bad","devices":` + strings.Repeat("[", 100_000)),
		"depth in YAML":       text("kind: example.com/bad\ndevices: " + strings.Repeat("[", 100_000)),
		"a key twice":         text(`{"kind": "example.com/bad", "kind": "example.com/good", "devices": []}`),
		"a key twice in YAML": text("kind: example.com/bad\nkind: example.com/good\n"),
		"another type":        text(`{"kind": "example.com/bad", "devices": {"name": "d"}}`),
		"no kind":             text(`{"devices": []}`),
		"another spelling":    text(`{"KIND": "example.com/bad", "Devices": []}`),
		"a number that overflows": text(spec("example.com/bad", "d",
			`{"path": "/dev/x", "type": "c", "major": 99999999999999999999, "minor": 0}`)),
		"a large number":        text(spec("example.com/bad", "d", `{"path": "/dev/x", "type": "c", "major": 4294967296, "minor": 0}`)),
		"a negative number":     text(spec("example.com/bad", "d", `{"path": "/dev/x", "type": "c", "major": -1, "minor": 0}`)),
		"a type that is a path": text(spec("example.com/bad", "d", `{"path": "/dev/x", "type": "../..", "major": 1, "minor": 0}`)),
		"a path out of /dev":    text(spec("example.com/bad", "d", `{"path": "/dev/../etc/passwd"}`)),
		"another path":          text(spec("example.com/bad", "d", `{"path": "/etc/passwd"}`)),
		"no device node":        text(spec("example.com/bad", "d", `{"path": "/dev/file"}`)),
		"two in one directory": func(m *machine, path string) error {
			m.write("run/bad1.json", spec("example.com/bad", "d", device))
			return text(spec("example.com/bad", "d", device))(m, path)
		},
		"a node that the machine cannot have": func(m *machine, path string) error {
			m.device("char", "7:7", "64")
			return text(spec("example.com/bad", "d", `{"path": "/dev/x", "type": "c", "major": 7, "minor": 7}`))(m, path)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t)
			m.device("char", "226:128", "1")
			m.write("dev/file", "")
			m.write("run/good.json", spec("example.com/good", "d", device))
			if err := put(m, filepath.Join(m.dir, "run", "bad.yaml")); err != nil {
				t.Fatal(err)
			}
			got, err := m.Nodes(t.Context(), []string{"example.com/good=d", "example.com/bad=d"})
			if got["example.com/good=d"].String() != "1" || len(got) != 1 {
				t.Errorf("got %v", got)
			}
			if err == nil || !strings.Contains(err.Error(), "bad") || len(err.Error()) > 4096 {
				t.Errorf("the error is: %.5000v", err)
			}
		})
	}
}

func text(s string) func(*machine, string) error {
	return func(_ *machine, path string) error { return os.WriteFile(path, []byte(s), 0o644) }
}

// TestBounds: directories that others may write to, and too many files or bytes, are refused.
func TestBounds(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	if err := os.Chmod(m.dir+"/etc", 0o777); err != nil {
		t.Fatal(err)
	}
	for i := range maxFiles + 1 {
		m.write(fmt.Sprintf("run/%d.json", i), "{}")
	}
	_, err := m.Nodes(t.Context(), nil)
	for _, text := range []string{"can be written to by everybody", fmt.Sprintf("more than %d files", maxFiles)} {
		if err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%v, without %q", err, text)
		}
	}
	m = newMachine(t)
	for i := range 2 * maxBytes / maxFile {
		m.write(fmt.Sprintf("etc/%d.json", i), spec("example.com/a", fmt.Sprint(i), "")+strings.Repeat(" ", maxFile-200))
	}
	if _, err = m.Nodes(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "all CDI files together") {
		t.Errorf("many bytes: %v", err)
	}
	if _, err := (&Reader{Directories: []string{"/nowhere/cdi"}}).Nodes(t.Context(), nil); err != nil {
		t.Errorf("a directory that is not there: %v", err)
	}
}

// TestManyClaims: drivers write a file for each claim. The files of berth-dra are not read.
func TestManyClaims(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.device("char", "226:128", "1")
	for i := range 300 {
		m.write(fmt.Sprintf("run/dra.berthd.github.io-%d.json", i), "{")
		m.write(fmt.Sprintf("run/gpu.example.com-%d.json", i), spec("gpu.example.com/claim", fmt.Sprint(i),
			`{"path": "/dev/x", "type": "c", "major": 226, "minor": 128}`))
	}
	got, err := m.Nodes(t.Context(), []string{"gpu.example.com/claim=299"})
	if got["gpu.example.com/claim=299"] != numa.Of(1) || err != nil {
		t.Errorf("%v, %v", got, err)
	}
}

// TestFilesAreReadOnce: a call reads the files that have changed. One that runs out of time has read
// some, and the next one continues.
func TestFilesAreReadOnce(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.device("char", "226:128", "1")
	m.device("char", "226:129", "0")
	names := []string{"example.com/a=d", "example.com/b=d"}
	const node = `{"path": "/dev/x", "type": "c", "major": 226, "minor": %d}`
	write := func(name, text string, at int64) {
		m.write(name, text)
		if err := os.Chtimes(filepath.Join(m.dir, name), time.Unix(at, 0), time.Unix(at, 0)); err != nil {
			t.Fatal(err)
		}
	}
	write("etc/a.json", spec("example.com/a", "d", fmt.Sprintf(node, 128)), 1000)
	write("etc/b.json", spec("example.com/b", "d", fmt.Sprintf(node, 128)), 1000)
	write("etc/bad.json", "{", 1000)
	nodes := func() string {
		got, err := m.Nodes(t.Context(), names)
		if err == nil || !strings.Contains(err.Error(), "bad.json") {
			t.Errorf("the damaged file: %v", err)
		}
		return got[names[0]].String() + " " + got[names[1]].String()
	}
	if got := nodes(); got != "1 1" {
		t.Errorf("the devices are near to %s", got)
	}
	before := maps.Clone(m.read)
	if got := nodes(); got != "1 1" || !maps.Equal(m.read, before) || len(before) != 3 {
		t.Errorf("read again: the devices are near to %s; %d files, then %d", got, len(before), len(m.read))
	}
	stopped, stop := context.WithCancel(t.Context())
	stop()
	if _, err := m.Nodes(stopped, names); err == nil || !maps.Equal(m.read, before) {
		t.Errorf("a call that has no time: %v, %d files", err, len(m.read))
	}
	write("etc/b.json", spec("example.com/b", "d", fmt.Sprintf(node, 129)), 1001) // of the same size
	if err := os.Remove(m.dir + "/etc/a.json"); err != nil {
		t.Fatal(err)
	}
	if got := nodes(); got != " 0" || len(m.read) != 2 {
		t.Errorf("changed: the devices are near to %s, %d files", got, len(m.read))
	}
	m.write("etc/b.json", spec("example.com/b", "d", fmt.Sprintf(node, 128))) // just now: it may change unnoticed
	if got := nodes(); got != " 1" || len(m.read) != 1 {
		t.Errorf("just written: the devices are near to %s, %d files", got, len(m.read))
	}
}

// FuzzParse: no text harms the reader.
func FuzzParse(f *testing.F) {
	f.Add([]byte(spec("example.com/a", "a", `{"path": "/dev/x", "type": "c", "major": 1, "minor": 2}`)))
	f.Add([]byte("kind: a/b\ndevices: [{name: x}]\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		s, err := parse(text)
		if err == nil && !strings.Contains(s.Kind, "/") {
			t.Errorf("kind %q", s.Kind)
		}
	})
}

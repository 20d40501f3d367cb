package sysfs

import (
	"archive/tar"
	"bufio"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/berthd/berth/managers/machine"
)

// files is a tree to discover, by path from the root: sys/..., proc/....
type files map[string]string

// trees splits f into /sys and /proc.
func (f files) trees() (sys, proc fstest.MapFS) {
	sys, proc = fstest.MapFS{}, fstest.MapFS{}
	for name, content := range f {
		if rest, ok := strings.CutPrefix(name, "sys/"); ok {
			sys[rest] = &fstest.MapFile{Data: []byte(content)}
		} else if rest, ok := strings.CutPrefix(name, "proc/"); ok {
			proc[rest] = &fstest.MapFile{Data: []byte(content)}
		}
	}
	return sys, proc
}

// set writes files of one directory: name, content, name, content.
func (f files) set(dir string, pairs ...string) files {
	for i := 0; i < len(pairs); i += 2 {
		f[path.Join(dir, pairs[i])] = pairs[i+1] + "\n"
	}
	return f
}

func cpuPath(cpu int) string { return fmt.Sprintf("sys/devices/system/cpu/cpu%d", cpu) }

func nodePath(node int) string { return fmt.Sprintf("sys/devices/system/node/node%d", node) }

// cpu adds a CPU with its ids, and links it into a node unless that is -1.
func (f files) cpu(id, node, core, socket int) files {
	f.set(cpuPath(id)+"/topology", "core_id", strconv.Itoa(core), "physical_package_id", strconv.Itoa(socket))
	if node >= 0 {
		f.set(nodePath(node), fmt.Sprintf("cpu%d", id), "")
	}
	return f
}

// cache adds one cache of a CPU; shared is the map of the CPUs that have it.
func (f files) cache(cpu, index, level, id int, shared string) files {
	return f.set(fmt.Sprintf("%s/cache/index%d", cpuPath(cpu), index),
		"id", strconv.Itoa(id), "level", strconv.Itoa(level), "size", "512K", "type", "Unified", "shared_cpu_map", shared)
}

// online writes the list of CPUs online, and that of the present ones.
func (f files) online(online, present string) files {
	return f.set("sys/devices/system/cpu", "online", online, "present", present)
}

// memory gives a node its meminfo.
func (f files) memory(node, kib int) files {
	return f.set(nodePath(node), "meminfo", fmt.Sprintf("Node %d MemTotal:     %d kB\nNode %d MemFree:    1 kB", node, kib, node))
}

// discover runs the discovery and builds the machine.
func (f files) discover(t testing.TB) *machine.Topology {
	t.Helper()
	sys, proc := f.trees()
	s, err := Discover(sys, proc)
	if err != nil {
		t.Fatal(err)
	}
	m, err := machine.New(s)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// readTree reads a tree from testdata: in each line a path and its content in
// quotes.
func readTree(t testing.TB, name string) files {
	t.Helper()
	file, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	f := files{}
	for lines := bufio.NewScanner(file); lines.Scan(); {
		name, quoted, _ := strings.Cut(lines.Text(), " ")
		content, err := strconv.Unquote(quoted)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		f[name] = content
	}
	return f
}

// readArchive reads the regular files and links of a tar.gz; links to CPUs and
// nodes become empty files, since their names are all that counts.
func readArchive(t testing.TB, name string) files {
	t.Helper()
	file, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	unzipped, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	f := files{}
	for archive := tar.NewReader(unzipped); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return f
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		if mode := header.FileInfo().Mode(); mode.IsRegular() || mode&fs.ModeSymlink != 0 {
			f[path.Clean(header.Name)] = string(content)
		}
	}
}

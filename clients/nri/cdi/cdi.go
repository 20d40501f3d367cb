package cdi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"sigs.k8s.io/json"

	"github.com/berthd/berth/api/trust"
	"github.com/berthd/berth/api/yamltext"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/numa"
)

// DefaultDirectories are those of the specification of CDI. A later directory has precedence.
var DefaultDirectories = []string{"/etc/cdi", "/var/run/cdi"}

const (
	// maxFiles bounds the files of a directory, maxFile the bytes of a file, and maxBytes those of
	// all files. The runtime waits while they are read. Drivers write a file for each claim.
	// YAML costs many times what JSON costs.
	maxFiles = 10_000
	maxFile  = 1 << 20
	maxYAML  = 256 << 10
	maxBytes = 4 << 20
	// unchangedFor is the age from which a change of a file changes its version: its times have the
	// resolution of the kernel's clock tick.
	unchangedFor = time.Second
)

// Reader reads CDI directories.
type Reader struct {
	// Directories in the order of their precedence, the strongest last.
	Directories []string
	// Dev and Sys are the directories of device nodes and of sysfs, usually /dev and /sys.
	Dev, Sys string

	mu sync.Mutex // guards read
	// read has the files of the last call, also of one that ran out of time, so that the next call
	// continues.
	read map[version]result
}

// version identifies the content of a file: a file that is changed or replaced has another one.
type version struct {
	device, inode    uint64
	size             int64
	modified, change syscall.Timespec
}

// result is the result of reading a file.
type result struct {
	spec *specification
	err  error
}

// specification has the device nodes of a file of a CDI directory. Device nodes of the file itself,
// which containers get with each device, are left out: they control the driver, and are not specific to
// one device.
type specification struct {
	Kind    string   `json:"kind"`
	Devices []device `json:"devices"`
}

type device struct {
	Name  string `json:"name"`
	Edits struct {
		DeviceNodes []deviceNode `json:"deviceNodes"`
	} `json:"containerEdits"`
}

type deviceNode struct {
	Path     string `json:"path"`
	HostPath string `json:"hostPath"`
	Type     string `json:"type"`
	Major    int64  `json:"major"`
	Minor    int64  `json:"minor"`
}

// Nodes returns the NUMA nodes of the named devices. A device that is near to no node, or whose
// nodes cannot be found, is absent. The error lists what could not be read; the other devices are
// valid.
func (r *Reader) Nodes(ctx context.Context, names []string) (map[string]numa.Mask, error) {
	found, err := r.find(ctx, names)
	errs := []error{err}
	out := map[string]numa.Mask{}
	for _, name := range slices.Compact(slices.Sorted(slices.Values(names))) {
		d, ok := found[name]
		if !ok {
			errs = append(errs, errdefs.NotFoundf("CDI device %.256q: no file in %s has it", name, strings.Join(r.Directories, ", ")))
			continue
		}
		var mask numa.Mask
		for _, n := range d.Edits.DeviceNodes {
			near, err := r.nodeOf(n)
			if err != nil {
				errs = append(errs, fmt.Errorf("CDI device %.256q: %w", name, err))
			}
			mask |= near
		}
		if !mask.IsEmpty() {
			out[name] = mask
		}
	}
	return out, errors.Join(errs...)
}

// find looks for names in all directories. A later directory overrides an earlier one. A
// name in two files of one directory is ambiguous, and the runtime refuses it, too.
func (r *Reader) find(ctx context.Context, names []string) (map[string]device, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	pass := &pass{rest: maxBytes, before: r.read, read: map[version]result{}}
	defer func() {
		if ctx.Err() != nil { // not all files were read
			maps.Copy(pass.read, r.read)
		}
		r.read = pass.read
	}()
	found := map[string]device{}
	var errs []error
	for _, dir := range r.Directories {
		here, err := pass.directory(ctx, dir, names)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("CDI directory %s: %w", dir, err))
		}
		for name, list := range here {
			if delete(found, name); len(list) == 1 {
				found[name] = list[0]
				continue
			}
			errs = append(errs, errdefs.Preconditionf("CDI directory %s defines device %.256q %d times", dir, name, len(list)))
		}
	}
	return found, errors.Join(errs...)
}

// pass is a reading of all directories.
type pass struct {
	rest         int64 // how many bytes may still be read
	before, read map[version]result
}

// directory returns the device nodes that the files of a directory have for the names. The files of berth-dra have no device nodes.
func (p *pass) directory(ctx context.Context, dir string, names []string) (map[string][]device, error) {
	if err := trust.Check(dir); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	list, err := root.Open(".")
	if err != nil {
		return nil, err
	}
	defer list.Close()
	files, err := list.Readdirnames(maxFiles + 1)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if len(files) > maxFiles {
		return nil, errdefs.Preconditionf("there are more than %d files", maxFiles)
	}
	slices.Sort(files)
	found := map[string][]device{}
	var errs []error
	for _, name := range files {
		_, claim := uidOf(name)
		if ext := filepath.Ext(name); claim || ext != ".json" && ext != ".yaml" {
			continue
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		spec, err := p.file(root, name)
		if err != nil {
			errs = append(errs, fmt.Errorf("file %.128q: %w", name, err))
			continue
		}
		for _, d := range spec.Devices {
			if name := spec.Kind + "=" + d.Name; slices.Contains(names, name) {
				found[name] = append(found[name], d)
			}
		}
	}
	return found, errors.Join(errs...)
}

// file reads one file, unless that version was read before. The opened file is examined, because its
// name may mean another file later, and opening a pipe would wait for its writer.
func (p *pass) file(root *os.Root, name string) (*specification, error) {
	f, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errdefs.Preconditionf("it is no regular file")
	}
	limit := min(maxFile, p.rest)
	if info.Size() > limit {
		return nil, errTooLarge
	}
	p.rest -= info.Size()
	v := versionOf(info)
	if known, ok := p.before[v]; ok {
		p.read[v] = known
		return known.spec, known.err
	}
	text, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(text)) != info.Size() {
		return nil, errdefs.Conflictf("the file changed while it was read")
	}
	spec, err := parse(text)
	if time.Since(info.ModTime()) > unchangedFor {
		p.read[v] = result{spec, err}
	}
	return spec, err
}

var errTooLarge = errdefs.Preconditionf("it is larger than %d bytes, or all CDI files together are larger than %d", maxFile, maxBytes)

func versionOf(info fs.FileInfo) (v version) {
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		v = version{s.Dev, s.Ino, s.Size, s.Mtim, s.Ctim}
	}
	return v
}

// parse reads a specification as JSON or YAML. A key that occurs twice is refused, because readers
// differ in which one they take.
func parse(text []byte) (*specification, error) {
	if !strings.HasPrefix(strings.TrimLeft(string(text), " \t\r\n"), "{") {
		if len(text) > maxYAML {
			return nil, errdefs.Preconditionf("it is YAML of more than %d bytes: the driver may write JSON instead, of up to %d", maxYAML,
				maxFile)
		}
		var err error
		if text, err = yamltext.ToJSON(text); err != nil {
			return nil, errdefs.Invalidf("not YAML: %w", err)
		}
	}
	var s specification
	twice, err := json.UnmarshalStrict(text, &s, json.DisallowDuplicateFields)
	if err = errors.Join(append(twice, err)...); err != nil {
		return nil, errdefs.Invalidf("not a CDI specification: %w", err)
	}
	if vendor, class, ok := strings.Cut(s.Kind, "/"); !ok || vendor == "" || class == "" {
		return nil, errdefs.Invalidf("kind is %.128q, expected VENDOR/CLASS", s.Kind)
	}
	return &s, nil
}

// nodeOf returns the NUMA node of a device node; empty if it is near to none, or its driver does not
// say.
func (r *Reader) nodeOf(n deviceNode) (numa.Mask, error) {
	kind, number, err := r.numberOf(n)
	if err != nil || kind == "" {
		return 0, err
	}
	sys, err := os.OpenRoot(r.Sys)
	if err != nil {
		return 0, err
	}
	defer sys.Close()
	text, err := readSmall(sys, filepath.Join("dev", kind, number, "device", "numa_node"))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	node, err := strconv.Atoi(strings.TrimSpace(text))
	switch {
	case err != nil || node >= numa.MaxNodes:
		return 0, errdefs.Preconditionf("device %s %s has the NUMA node %.20q, expected -1 to %d", kind, number, text, numa.MaxNodes-1)
	case node < 0: // the kernel's sign for none
		return 0, nil
	}
	return numa.Mask(0).With(node), nil
}

// numberOf returns char or block, and MAJOR:MINOR. The numbers of a node without numbers are read below
// /dev. A pipe has no device.
func (r *Reader) numberOf(n deviceNode) (kind, number string, err error) {
	kinds := map[string]string{"c": "char", "u": "char", "b": "block"}
	if n.Type == "p" {
		return "", "", nil
	}
	if n.Type != "" && kinds[n.Type] == "" {
		return "", "", errdefs.Invalidf("device node %.256q has type %.20q, expected b, c, u or p", n.Path, n.Type)
	}
	if n.Type != "" && n.Major != 0 {
		if n.Major < 0 || n.Major >= 1<<32 || n.Minor < 0 || n.Minor >= 1<<32 {
			return "", "", errdefs.Invalidf("device node %.256q has the numbers %d:%d, expected 0 to %d", n.Path, n.Major, n.Minor,
				uint32(1<<32-1))
		}
		return kinds[n.Type], fmt.Sprintf("%d:%d", n.Major, n.Minor), nil
	}
	path := n.Path
	if n.HostPath != "" {
		path = n.HostPath
	}
	rel, ok := strings.CutPrefix(path, "/dev/")
	if !ok || !filepath.IsLocal(rel) {
		return "", "", errdefs.Invalidf("device node %.256q is not below /dev", path)
	}
	dev, err := os.OpenRoot(r.Dev)
	if err != nil {
		return "", "", err
	}
	defer dev.Close()
	info, err := dev.Lstat(rel)
	if err != nil {
		return "", "", err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || info.Mode()&fs.ModeDevice == 0 {
		return "", "", errdefs.Preconditionf("%.256q is no device node", path)
	}
	kind = "block"
	if info.Mode()&fs.ModeCharDevice != 0 {
		kind = "char"
	}
	return kind, fmt.Sprintf("%d:%d", unix.Major(stat.Rdev), unix.Minor(stat.Rdev)), nil
}

// readSmall reads a file of sysfs.
func readSmall(root *os.Root, name string) (string, error) {
	f, err := root.Open(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, 64))
	return string(text), err
}

package driver

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"syscall"

	"github.com/berthd/berth/api/trust"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/workload"
)

// Kind is the kind of the CDI devices of claims: their names are Kind=UID:PART.
const Kind = Name + "/claim"

const (
	filePrefix = Name + "-"
	fileSuffix = ".json"
	// unfinished files have a suffix that no runtime reads.
	unfinished = ".new"
	// maxFile bounds a CDI file in bytes, and maxFiles the claims of a node.
	maxFile  = 256 << 10
	maxFiles = 10_000
	// allocationKey is the annotation of a CDI file with the claim.
	allocationKey = Name + "/allocation"
)

// files are the CDI files of prepared claims.
type files struct {
	path string
	dir  *os.Root
}

// openFiles opens the directory, which only this user may write to.
func openFiles(path string) (*files, error) {
	if err := trust.MkdirAll(path, 0o755); err != nil {
		return nil, fmt.Errorf("--cdi-directory: %w", err)
	}
	if err := trust.Check(path); err != nil {
		return nil, fmt.Errorf("--cdi-directory: %w", err)
	}
	dir, err := os.OpenRoot(path)
	if err != nil {
		return nil, fmt.Errorf("--cdi-directory: %w", err)
	}
	return &files{path: path, dir: dir}, nil
}

// errRemoved means that the directory was removed, and the program's mount still has it: a directory that is made in its place is not seen.
var errRemoved = errors.New("--cdi-directory was removed while it is mounted for this program, which has to be started again to see another one")

// reopen opens the directory again if it was removed or replaced: the runtime reads the one that has the path now.
func (f *files) reopen() error {
	was, err := f.dir.Stat(".")
	if err != nil {
		return fmt.Errorf("--cdi-directory: %w", err)
	}
	if is, err := os.Stat(f.path); err == nil && os.SameFile(is, was) {
		if trust.Removed(is) {
			return errRemoved
		}
		return nil
	}
	again, err := openFiles(f.path)
	if err != nil {
		return err
	}
	err = f.dir.Close()
	f.dir = again.dir
	return err
}

// specification is a CDI file (cdiVersion 0.6.0).
type specification struct {
	Version     string            `json:"cdiVersion"`
	Kind        string            `json:"kind"`
	Annotations map[string]string `json:"annotations"`
	Devices     []device          `json:"devices"`
}

type device struct {
	Name  string `json:"name"`
	Edits edits  `json:"containerEdits"`
}

type edits struct {
	Env    []string `json:"env"`
	Mounts []mount  `json:"mounts,omitempty"`
}

// mount is a mount that the runtime makes for the container. It ends with the container's mount namespace.
type mount struct {
	Source  string   `json:"hostPath"`
	Path    string   `json:"containerPath"`
	Type    string   `json:"type"`
	Options []string `json:"options"`
}

// name is the name of a claim's CDI file.
func fileName(uid string) string { return filePrefix + uid + fileSuffix }

// write writes the CDI file of a claim. The runtime may read the directory at any time.
func (f *files) write(c *claim) error {
	allocation, err := json.Marshal(c)
	if err != nil {
		return err
	}
	s := specification{Version: "0.6.0", Kind: Kind, Annotations: map[string]string{allocationKey: string(allocation)}}
	for _, p := range c.Parts {
		size, _ := p.bytes()
		s.Devices = append(s.Devices, device{Name: c.cdiName(p), Edits: edits{Env: []string{
			p.variable("CPUS") + p.CPUs,
			p.variable("NUMA_NODE") + strconv.FormatUint(uint64(p.Node), 10),
			p.variable("MEMORY_BYTES") + strconv.FormatUint(size, 10),
		}, Mounts: p.hugePageMounts()}})
	}
	text, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	if len(text) > maxFile {
		return errdefs.Unsupportedf("the CDI file of the claim would have %d bytes, more than %d: make several claims of it", len(text),
			maxFile)
	}
	c.file = text
	if err := f.reopen(); err != nil {
		return errdefs.Unavailablef("write the CDI file of the claim: %w", err)
	}
	if _, err := f.keep(fileName(c.UID), text); err != nil {
		return errdefs.Unavailablef("write the CDI file of the claim: %w", err)
	}
	return nil
}

// keep writes a file if its content differs, or if other users can read it.
func (f *files) keep(name string, text []byte) (changed bool, err error) {
	info, err := f.dir.Stat(name)
	if have, unread := f.content(name); err == nil && unread == nil && info.Mode().Perm()&0o077 == 0 && bytes.Equal(have, text) {
		return false, nil
	}
	return true, f.replace(name, text)
}

// hugePageMounts returns mounts of the size of the part's huge pages, which every user of the container may write to.
func (p *part) hugePageMounts() (out []mount) {
	for _, m := range p.mounts {
		bytes := p.mountBytes[string(m.resource())+m.Path]
		size, _ := workload.HugePageSize(m.resource()) // checked when the parameters were read
		out = append(out, mount{Source: "hugetlbfs", Path: m.Path, Type: "hugetlbfs", Options: []string{
			"nosuid", "nodev", "mode=1777", fmt.Sprintf("pagesize=%d", size), fmt.Sprintf("size=%d", bytes),
		}})
	}
	return out
}

// variable begins the assignment of a variable of a part: PREFIX_PART_NAME=.
func (p *part) variable(name string) string {
	return p.environment + "_" + strings.ToUpper(strings.ReplaceAll(p.Name, "-", "_")) + "_" + name + "="
}

// replace writes a file under another name and renames it. It is not synced: after a power failure the
// kubelet requests the preparation of every claim again.
func (f *files) replace(name string, text []byte) (err error) {
	if err := f.dir.Remove(name + unfinished); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	// the names of namespaces and claims are not for every user
	file, err := f.dir.OpenFile(name+unfinished, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(text)
	if err = errors.Join(err, file.Close()); err == nil {
		err = f.dir.Rename(name+unfinished, name)
	}
	if err != nil {
		return errors.Join(err, f.dir.Remove(name+unfinished))
	}
	return nil
}

// remove removes the CDI file of a claim; it is no error if there is none.
func (f *files) remove(uid string) error {
	_ = f.reopen() // without another directory, there is the file of this one
	if err := f.dir.Remove(fileName(uid)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return errdefs.Unavailablef("remove the CDI file of the claim: %w", err)
	}
	return nil
}

func (f *files) content(name string) ([]byte, error) {
	file, err := f.dir.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // opening a pipe would wait for its writer
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errdefs.Preconditionf("it is no regular file")
	}
	text, err := io.ReadAll(io.LimitReader(file, maxFile+1))
	if len(text) > maxFile {
		return nil, errdefs.Corruptf("has more than %d bytes", maxFile)
	}
	return text, err
}

// list returns the claims of all CDI files, by uid. The error names the files that cannot be read;
// unfinished files of a killed driver are removed.
func (f *files) list() (map[string]*claim, error) {
	dir, err := f.dir.Open(".")
	if err != nil {
		return nil, err
	}
	defer func() { _ = dir.Close() }()
	var names []string // other drivers have files there, too
	for {
		some, err := dir.Readdirnames(1000)
		for _, name := range some {
			if strings.HasPrefix(name, filePrefix) {
				names = append(names, name)
			}
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		if len(names) > maxFiles {
			return nil, errdefs.Preconditionf("there are more than %d files called %s…: remove those of claims that do not exist any more", maxFiles, filePrefix)
		}
	}
	out, errs := map[string]*claim{}, []error(nil)
	for _, name := range names {
		if strings.HasSuffix(name, unfinished) {
			errs = append(errs, f.dir.Remove(name))
			continue
		}
		uid, named := strings.CutSuffix(strings.TrimPrefix(name, filePrefix), fileSuffix)
		if !named {
			continue // no runtime reads it as a file of ours
		}
		c, err := f.read(uid)
		if err != nil {
			errs = append(errs, errdefs.Corruptf("CDI file %.300q: %w", name, err))
			continue
		}
		out[uid] = c
	}
	return out, errors.Join(errs...)
}

// read reads the claim of a CDI file.
func (f *files) read(uid string) (*claim, error) {
	text, err := f.content(fileName(uid))
	if err != nil {
		return nil, err
	}
	var s specification
	if err := json.Unmarshal(text, &s); err != nil {
		return nil, err
	}
	c := new(claim)
	if err := json.Unmarshal([]byte(s.Annotations[allocationKey]), c); err != nil {
		return nil, fmt.Errorf("annotation %s: %w", allocationKey, err)
	}
	c.file = text
	return c, c.check(uid, s.Devices)
}

// check compares the claim of a CDI file with the file's name and devices.
func (c *claim) check(uid string, devices []device) error {
	switch {
	case c.UID != uid:
		return fmt.Errorf("it is of claim %.80q", c.UID)
	case c.Namespace == "" || c.Name == "":
		return errors.New("it has no claim's name")
	case len(c.Parts) == 0 || len(c.Parts) != len(devices):
		return fmt.Errorf("it has %d parts and %d devices", len(c.Parts), len(devices))
	}
	var all cpuset.Set
	names := map[string]bool{}
	for i, p := range c.Parts {
		if p == nil {
			return fmt.Errorf("part %d is null", i)
		}
		set, err := cpuset.Parse(p.CPUs)
		_, hasMemory := p.bytes()
		switch {
		case err != nil || set.IsEmpty():
			return fmt.Errorf("CPUs %.80q of part %.80q: expected a list of CPUs", p.CPUs, p.Name)
		case set.Overlaps(all):
			return fmt.Errorf("part %.80q has CPUs %s of another part", p.Name, set.Intersect(all))
		case p.Node >= numa.MaxNodes:
			return fmt.Errorf("NUMA node %d of part %.80q: expected less than %d", p.Node, p.Name, numa.MaxNodes)
		case !hasMemory:
			return fmt.Errorf("memory %.80q of part %.80q: expected a positive amount", p.Resources[capacityMemory], p.Name)
		case p.Name == "" || names[p.Name] || devices[i].Name != c.cdiName(p):
			return fmt.Errorf("part %.80q has the device %.80q", p.Name, devices[i].Name)
		}
		names[p.Name], all = true, all.Union(set)
	}
	return nil
}

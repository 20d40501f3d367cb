package sysfs

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"math/bits"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
)

// tree is a file system with its mount point, which messages contain.
type tree struct {
	fsys  fs.FS
	mount string
}

// text returns a file's content without the white space around it.
func (t tree) text(name string) (string, error) {
	data, err := fs.ReadFile(t.fsys, name)
	if err != nil {
		return "", fmt.Errorf("read %s/%s: %w", t.mount, name, reason(err))
	}
	return strings.TrimSpace(string(data)), nil
}

// reason strips the path from a file error, which the caller gives in full.
func reason(err error) error {
	var pathError *fs.PathError
	if errors.As(err, &pathError) {
		return pathError.Err
	}
	return err
}

// number returns a file's content as an integer.
func (t tree) number(name string) (int, error) {
	text, err := t.text(name)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(text, 10, 32)
	if err != nil {
		return 0, errdefs.Corruptf("read %s/%s: %q is not a number of 32 bits", t.mount, name, text)
	}
	return int(n), nil
}

// unknown is an id that the kernel does not report.
const unknown = -1

// optional is number for an id that may be absent: some kernels have no file,
// others write -1 or 65535.
func (t tree) optional(name string) int {
	if n, err := t.number(name); err == nil && n >= 0 && n < math.MaxUint16 {
		return n
	}
	return unknown
}

// cpus returns a file's content as a list of CPUs; absent means that there is
// no such file.
func (t tree) cpus(name string) (set cpuset.Set, absent bool, err error) {
	text, err := t.text(name)
	if errors.Is(err, fs.ErrNotExist) {
		return cpuset.Set{}, true, nil
	}
	if err != nil {
		return cpuset.Set{}, false, err
	}
	set, err = cpuset.Parse(text)
	if err != nil {
		return cpuset.Set{}, false, errdefs.Corruptf("read %s/%s: %w", t.mount, name, err)
	}
	return set, false, nil
}

// entry is a directory entry with a number in its name.
type entry struct {
	name string
	id   int
}

// numbered returns the entries of a directory whose whole name matches pattern, in the order of
// their names as text. Each has the number in the pattern's first group. A missing directory has
// no entries.
func (t tree) numbered(dir string, pattern *regexp.Regexp) ([]entry, error) {
	entries, err := fs.ReadDir(t.fsys, dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list %s/%s: %w", t.mount, dir, reason(err))
	}
	var found []entry
	for _, e := range entries {
		match := pattern.FindStringSubmatch(e.Name())
		if match == nil {
			continue
		}
		id, err := strconv.ParseInt(match[1], 10, 32)
		if err != nil {
			return nil, errdefs.Corruptf("list %s/%s: the number of %q does not fit into 32 bits", t.mount, dir, e.Name())
		}
		found = append(found, entry{name: e.Name(), id: int(id)})
	}
	slices.SortFunc(found, func(a, b entry) int { return strings.Compare(a.name, b.name) })
	return found, nil
}

func memTotal(text string) (uint64, error) { return memAmount(text, "MemTotal") }

// memAmount finds MemTotal or MemFree in a meminfo file, the machine's ("MemTotal: 16 kB") or a
// node's ("Node 0 MemTotal: 16 kB"), and returns it in bytes.
func memAmount(text, name string) (uint64, error) {
	for _, match := range memLine.FindAllStringSubmatch(text, -1) {
		if match[1] != name {
			continue
		}
		kib, err := strconv.ParseUint(match[2], 10, 64)
		if err != nil || kib > 1<<53 {
			return 0, fmt.Errorf("%s of %s kB is not a possible size", name, match[2])
		}
		return kib * 1024, nil
	}
	return 0, fmt.Errorf("there is no line %s with a number of kB", name)
}

var memLine = regexp.MustCompile(`(?m)^(?:Node +[0-9]+ +)?(MemTotal|MemFree):\s*([0-9]+) kB`)

// countSockets returns the number of distinct "physical id" lines of
// /proc/cpuinfo; 0 on an architecture that has none.
func countSockets(cpuinfo string) int {
	seen := make(map[string]bool)
	for _, match := range physicalIDLine.FindAllStringSubmatch(cpuinfo, -1) {
		seen[match[1]] = true
	}
	return len(seen)
}

var physicalIDLine = regexp.MustCompile(`(?m)^physical id\s*:\s*([0-9]+)$`)

// countBits returns the number of CPUs in a map like "ff,ffffffff".
func countBits(hex string) (int, error) {
	n := 0
	for _, word := range strings.Split(hex, ",") {
		value, err := strconv.ParseUint(word, 16, 32)
		if err != nil {
			return 0, fmt.Errorf("%q is not a list of 32-bit hexadecimal numbers", hex)
		}
		n += bits.OnesCount64(value)
	}
	return n, nil
}

// parseDistances reads a line like "10 21".
func parseDistances(text string) ([]int, error) {
	var list []int
	for _, field := range strings.Fields(text) {
		d, err := strconv.ParseUint(field, 10, 31)
		if err != nil {
			return nil, fmt.Errorf("%q is not a distance", field)
		}
		list = append(list, int(d))
	}
	return list, nil
}

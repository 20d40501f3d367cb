// Package sysctl compares the kernel's settings with the settings that Kubernetes expects
// on a node, and writes them on request.
//
// Words:
//
//   - setting: a file below /proc/sys that contains a number.
//
// Invariant: only Set writes, and only settings that differ.
package sysctl

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"

	"github.com/berthd/berth/managers/errdefs"
)

// Setting is the path of a kernel setting below /proc/sys, and its expected number.
type Setting struct {
	Name string
	Want int
}

// Wanted lists the settings that the kubelet requires. Memory is overcommitted, and a process is
// killed if memory runs out. A crashed kernel reboots. Every container can have a keyring.
func Wanted() []Setting {
	return []Setting{
		{"vm/overcommit_memory", 1},
		{"vm/panic_on_oom", 0},
		{"kernel/panic", 10},
		{"kernel/panic_on_oops", 1},
		{"kernel/keys/root_maxkeys", 1000000},
		{"kernel/keys/root_maxbytes", 25000000},
	}
}

// Difference is a setting with another value than expected.
type Difference struct {
	Setting
	Have int
}

// String is the kubelet's message.
func (d Difference) String() string {
	return fmt.Sprintf("invalid kernel flag: %s, expected value: %d, actual value: %d", d.Name, d.Want, d.Have)
}

// Compare lists the settings that differ; proc is /proc. A setting that cannot be
// read is an error of class Unavailable; the others are compared nevertheless.
func Compare(proc fs.FS, wanted []Setting) ([]Difference, error) {
	var out []Difference
	var errs []error
	for _, s := range wanted {
		text, err := fs.ReadFile(proc, path.Join("sys", s.Name))
		if err != nil {
			errs = append(errs, errdefs.Unavailablef("read the kernel setting %s: %w", s.Name, err))
			continue
		}
		have, err := strconv.Atoi(strings.TrimSpace(string(text)))
		if err != nil {
			errs = append(errs, errdefs.Unavailablef("read the kernel setting %s: %q is no number", s.Name, text))
			continue
		}
		if have != s.Want {
			out = append(out, Difference{s, have})
		}
	}
	return out, errors.Join(errs...)
}

// Set writes the settings that differ; proc is /proc. Errors are of class
// Unavailable and name the setting; the others are written nevertheless.
func Set(proc *os.Root, differences []Difference) error {
	var errs []error
	for _, d := range differences {
		f, err := proc.OpenFile(path.Join("sys", d.Name), os.O_WRONLY|os.O_TRUNC, 0)
		if err == nil {
			_, err = f.WriteString(strconv.Itoa(d.Want))
			err = errors.Join(err, f.Close())
		}
		if err != nil {
			errs = append(errs, errdefs.Unavailablef("set the kernel setting %s to %d: %w", d.Name, d.Want, err))
		}
	}
	return errors.Join(errs...)
}

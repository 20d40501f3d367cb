package trust

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/berthd/berth/managers/errdefs"
)

// MkdirAll makes a directory with those above it, as os.MkdirAll, and returns an error
// of class Precondition if it is not trusted, or the way to it is not.
func MkdirAll(path string, perm fs.FileMode) error {
	if err := os.MkdirAll(path, perm); err != nil {
		return err
	}
	return Check(path)
}

// maxLinks bounds the links on a way, as the kernel does (path_resolution(7)).
const maxLinks = 40

// Check returns an error of class Precondition if a directory is not trusted, or the way
// to it is not.
func Check(path string) error { return check(path, false) }

// CheckExisting is Check for a directory that may not be there yet: then it is about the
// part of the way that is.
func CheckExisting(path string) error { return check(path, true) }

func check(path string, partly bool) error {
	path, err := filepath.Abs(path)
	if err != nil {
		return err
	}
	at, rest, links := "/", elements(path), 0
	for {
		if err := checkElement(at, len(rest) == 0); err != nil {
			return err
		}
		if len(rest) == 0 {
			return nil
		}
		next := filepath.Join(at, rest[0])
		rest = rest[1:]
		info, err := os.Lstat(next)
		if partly && errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		if info.Mode().Type() != fs.ModeSymlink {
			at = next
			continue
		}
		if links++; links > maxLinks {
			return errdefs.Preconditionf("%s: there are more than %d links on the path", path, maxLinks)
		}
		if uid, known := owner(info); known && !ours(uid) {
			return errdefs.Preconditionf("%s is a link that belongs to user %d, who could redirect it; its files would be trusted: use a directory of root", next, uid)
		}
		target, err := os.Readlink(next)
		if err != nil {
			return err
		}
		if filepath.IsAbs(target) {
			at = "/"
		}
		rest = append(elements(target), rest...)
	}
}

// elements splits a path, whose ".." elements stay: what is before them may be a link.
func elements(path string) (out []string) {
	for _, e := range strings.Split(path, "/") {
		if e != "" && e != "." {
			out = append(out, e)
		}
	}
	return out
}

func ours(uid int) bool { return uid == 0 || uid == os.Geteuid() }

// checkElement checks a directory on the path; last is the one that it leads to.
func checkElement(path string, last bool) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	mode := info.Mode()
	uid, known := owner(info)
	if !known {
		return nil // a system without owners
	}
	gid := group(info)
	bits := mode.Perm()
	if mode&fs.ModeSticky != 0 {
		bits |= 0o1000
	}
	const todo = "its files would be trusted: use a directory that only root can write to, as below /var/lib or /run, or change its owner and mode"
	switch {
	case !mode.IsDir():
		return errdefs.Preconditionf("%s is no directory", path)
	case !ours(uid):
		return errdefs.Preconditionf("%s belongs to user %d (mode %#o), who could change what is in it; %s", path, uid, bits, todo)
	case last && Removed(info):
		return errdefs.Preconditionf("%s was removed while it is mounted for this program, which has to be started again to see another directory in its place", path)
	case mode&fs.ModeSticky != 0 && !last:
		return nil
	case mode.Perm()&0o002 != 0:
		return errdefs.Preconditionf("%s (owner %d, mode %#o) can be written to by everybody; %s", path, uid, bits, todo)
	case mode.Perm()&0o020 != 0 && gid != 0 && gid != os.Getegid():
		return errdefs.Preconditionf("%s (owner %d, group %d, mode %#o) can be written to by a group; %s", path, uid, gid, bits, todo)
	}
	return nil
}

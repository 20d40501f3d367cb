package trust

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
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
func Check(path string) error { return check(path, want{}) }

// CheckExisting is Check for a directory that may not be there yet: then it is about the
// part of the way that is.
func CheckExisting(path string) error { return check(path, want{partly: true}) }

// want is what is expected at the end of a way.
type want struct {
	// file: anything but a directory. partly: the end of the way need not be there yet. socket: whoever can make or
	// rename files in the directory of the end decides, and not the end itself.
	// above: the end is a directory above files that are checked when they are read.
	file, partly, socket, above bool
}

func check(path string, w want) error {
	if !filepath.IsAbs(path) {
		dir, err := os.Getwd()
		if err != nil {
			return err
		}
		// filepath.Abs takes "link/.." for the directory of the link, and the kernel takes it for that of the link's target.
		path = dir + "/" + path
	}
	at, rest, links := "/", elements(path), 0
	for {
		info, err := os.Lstat(at)
		if err != nil {
			return err
		}
		last := len(rest) == 0 && !w.above || w.socket && len(rest) == 1
		if err := checkInfo(at, info, last, w.file && len(rest) == 0); err != nil {
			return err
		}
		if len(rest) == 0 {
			return nil
		}
		next := filepath.Join(at, rest[0])
		rest = rest[1:]
		info, err = os.Lstat(next)
		switch {
		case err == nil:
		case !errors.Is(err, fs.ErrNotExist):
			return err
		case w.partly:
			return nil
		default:
			return &fs.PathError{Op: "open", Path: path, Err: fs.ErrNotExist}
		}
		if info.Mode().Type() != fs.ModeSymlink {
			if w.socket && len(rest) == 0 {
				return nil
			}
			at = next
			continue
		}
		if links++; links > maxLinks {
			return errdefs.Preconditionf("%s: there are more than %d links on the path", path, maxLinks)
		}
		if uid, known := owner(info); known && !ours(uid) {
			return errdefs.Preconditionf("%s is a link that belongs to user %d, who could let it lead elsewhere: chown -h %s %s", next,
				uid, self(), quote(next))
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

// there reports whether a path leads to something, as far as that can be known.
func there(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// self is the owner that can undo a refusal: root, or the user of this process, who is not root.
func self() string {
	if uid := os.Geteuid(); uid > 0 {
		return strconv.Itoa(uid)
	}
	return "root"
}

// quote is a path as a word of a shell.
func quote(path string) string {
	if strings.Trim(path, "/.-_,:=+@abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789") == "" {
		return path
	}
	return "'" + strings.ReplaceAll(path, "'", `'\''`) + "'"
}

// checkInfo checks what is on a way; last is its end, which is a file or a directory.
func checkInfo(path string, info fs.FileInfo, last, file bool) error {
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
	what := "what is in it"
	if file {
		what = "it"
	}
	switch {
	case !file && !mode.IsDir():
		return errdefs.Preconditionf("%s is no directory", path)
	case file && !mode.IsRegular():
		return errdefs.Preconditionf("%s is no regular file", path)
	case !ours(uid):
		return errdefs.Preconditionf("%s belongs to user %d (mode %#o), who could change %s: chown %s %s", path, uid, bits, what, self(),
			quote(path))
	case last && !file && Removed(info):
		return errdefs.Preconditionf("%s was removed while it is mounted for this program, which has to be started again to see another directory in its place", path)
	case mode&fs.ModeSticky != 0 && !last:
		return nil
	case mode.Perm()&0o002 != 0 && (file || !ofConfigMap(path)):
		return errdefs.Preconditionf("%s (owner %d, mode %#o) can be written to by everybody: chmod %s %s", path, uid, bits, mend(mode),
			quote(path))
	case mode.Perm()&0o020 != 0 && gid != 0 && gid != os.Getegid() && (file || !ofConfigMap(path)):
		return errdefs.Preconditionf("%s (owner %d, group %d, mode %#o) can be written to by a group: chmod %s %s", path, uid, gid, bits,
			mend(mode), quote(path))
	}
	return nil
}

// mend are the changes of a mode after which only the owner writes.
func mend(mode fs.FileMode) string {
	if mode&fs.ModeSticky != 0 {
		return "go-w,-t"
	}
	return "go-w"
}

package cgroupfs

import (
	"bytes"
	"errors"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/server/internal/host/descriptors"
	"github.com/berthd/berth/server/internal/host/errno"
)

// openDirs are the directories of cgroups that a walk has opened. They stay open, so a later walk
// resolves no path from the mount point, and reads a file in three system calls. Through an os.Root
// each file takes five or more, and a walk of 500 pods reads 13,000 files. The files do not stay
// open: they would be the most of all descriptors.
type openDirs struct {
	mounts []int // the mount points, by hierarchy

	mu   sync.Mutex // guards all directories
	top  *openDir
	room int  // the number of further descriptors that may stay open
	few  bool // the cgroup that is read now has one of the last descriptors
}

// openDir are the directories of one cgroup, by hierarchy.
type openDir struct {
	fds []int // unopened, or an open descriptor
	// inos are the directories' inodes, 0 for an absent one. A cgroup that was removed and
	// created again has other ones.
	inos []uint64
	// links are the directories' numbers of links: two, and one for each directory in it.
	links []uint64
	below map[string]*openDir
	names []string // the keys of below, sorted
	// passing directories do not stay open.
	passing bool
}

const unopened = -1

// mostDescriptors limits what stays open. The kernel keeps 600 bytes for each descriptor: 20 MB.
const mostDescriptors = 1 << 15

// openMounts opens the mount points of the hierarchies.
func (d *Driver) openMounts() error {
	room := mostDescriptors
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) == nil {
		room = int(min(limit.Cur*2/5, mostDescriptors)) // directory.go keeps a quarter open
	}
	d.dirs = &openDirs{top: newOpenDir(len(d.hierarchies)), room: room}
	for _, h := range d.hierarchies {
		d.values = append(d.values, d.valueFiles(h))
		fd, err := unix.Open(d.absolute(h, nil), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return errno.Classify(err)
		}
		d.dirs.mounts = append(d.dirs.mounts, fd)
	}
	return nil
}

func newOpenDir(hierarchies int) *openDir {
	d := &openDir{fds: make([]int, hierarchies), inos: make([]uint64, hierarchies), links: make([]uint64, hierarchies)}
	for i := range d.fds {
		d.fds[i] = unopened
	}
	return d
}

// find returns the directories of a cgroup. If there are none, they are added with grow, and
// otherwise do not stay open.
func (o *openDirs) find(name cgroup.Name, grow bool) *openDir {
	o.mu.Lock()
	defer o.mu.Unlock()
	at := o.top
	for _, c := range name {
		next := at.below[c]
		if next == nil {
			next = newOpenDir(len(at.fds))
			if next.passing = !grow; grow {
				at.add(c, next)
				i, _ := slices.BinarySearch(at.names, c)
				at.names = slices.Insert(slices.Clip(at.names), i, c) // a walk may use the old array
			}
		}
		at = next
	}
	return at
}

func (d *openDir) add(name string, child *openDir) {
	if d.below == nil {
		d.below = make(map[string]*openDir)
	}
	d.below[name] = child
}

// forget closes the directories of a cgroup that was removed, and of its descendants.
func (o *openDirs) forget(name cgroup.Name) {
	o.mu.Lock()
	defer o.mu.Unlock()
	at, last := o.top, len(name)-1
	for _, c := range name[:last] {
		if at = at.below[c]; at == nil {
			return
		}
	}
	child := at.below[name[last]]
	if child == nil {
		return
	}
	o.close(child)
	delete(at.below, name[last])
	at.names = slices.DeleteFunc(slices.Clone(at.names), func(c string) bool { return c == name[last] }) // a walk may use the old array
}

// Close closes everything.
func (o *openDirs) Close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.close(o.top)
	for i, fd := range o.mounts {
		_ = unix.Close(fd)
		o.mounts[i] = unopened
	}
}

// close closes the directories of a cgroup and its descendants. The caller holds mu.
func (o *openDirs) close(d *openDir) {
	for i := range d.fds {
		o.closeOne(d, i)
	}
	for _, child := range d.below {
		o.close(child)
	}
	d.passing = true
}

// closeOne closes a directory in one hierarchy. The caller holds mu.
func (o *openDirs) closeOne(d *openDir, i int) {
	if d.fds[i] == unopened {
		return
	}
	_ = unix.Close(d.fds[i])
	if d.fds[i] = unopened; !d.passing {
		o.room++
	}
}

// again repeats a system call that a signal broke off.
func again(do func() (int, error)) (n int, err error) {
	for {
		if n, err = do(); !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

// leave closes the directories that must not stay open. The caller holds mu.
func (o *openDirs) leave(d *openDir) {
	if d.passing || o.room < 0 || o.few {
		for i := range d.fds {
			o.closeOne(d, i)
		}
	}
	o.few = false
}

// place is where a cgroup's directory in a hierarchy is found: below its parent's, if that is
// open, otherwise below the mount point. The caller holds openDirs.mu.
func (d *Driver) place(name cgroup.Name, parent *openDir, i int) (at int, path string) {
	if parent != nil && parent.fds[i] != unopened {
		return parent.fds[i], name.Base()
	}
	return d.dirs.mounts[i], filepath.Join(append([]string{"."}, name...)...)
}

// openDir returns the directory of a cgroup in hierarchy i. The caller holds openDirs.mu.
func (d *Driver) openDir(name cgroup.Name, parent, dir *openDir, i int) (fd int, err error) {
	if dir.fds[i] != unopened {
		return dir.fds[i], nil
	}
	at, path := d.place(name, parent, i)
	fd, err = again(func() (int, error) {
		return unix.Openat(at, path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	})
	if err != nil {
		return 0, err
	}
	if dir.fds[i] = fd; !dir.passing {
		d.dirs.room--
		d.dirs.few = d.dirs.few || descriptors.Few()
	}
	return fd, nil
}

// look compares the open directories of a cgroup with the file system. present has a bit for each
// hierarchy with the cgroup. nested means that the cgroup may have children. With trust, open
// directories from which files are read count as present: these reads fail if the cgroup was
// removed. The caller holds openDirs.mu.
func (d *Driver) look(name cgroup.Name, parent, dir *openDir, trust bool) (present uint64, nested bool, err error) {
	for i := range d.hierarchies {
		stat := unix.Stat_t{}
		_, err := again(func() (int, error) {
			if trust && dir.fds[i] != unopened && len(d.values[i]) > 0 {
				return 0, unix.Fstat(dir.fds[i], &stat)
			}
			at, path := d.place(name, parent, i)
			return 0, unix.Fstatat(at, path, &stat, unix.AT_SYMLINK_NOFOLLOW)
		})
		switch {
		case err == nil:
			present |= 1 << i
		case gone(err):
			stat = unix.Stat_t{Nlink: 2}
		default:
			return 0, false, errno.Classify(err)
		}
		if dir.inos[i] != stat.Ino {
			d.dirs.closeOne(dir, i)
		}
		dir.inos[i], dir.links[i] = stat.Ino, uint64(stat.Nlink) //nolint:unconvert // 32 bits on arm64
		nested = nested || stat.Nlink != 2
	}
	return present, nested, nil
}

// complete reports whether the cgroups listed below one are all that there are: as many were
// there in each hierarchy as its directory counts.
func (o *openDirs) complete(d *openDir) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	for i, links := range d.links {
		known := uint64(2)
		for _, child := range d.below {
			if child.inos[i] != 0 {
				known++
			}
		}
		if known != links {
			return false // also where a file system does not count
		}
	}
	return true
}

// openInside opens a control file of a cgroup that was there in every hierarchy when a walk
// observed it last. The error wraps fs.ErrNotExist if it was not, or has been removed since.
func (d *Driver) openInside(name cgroup.Name, controller, file string, flags int) (fd int, err error) {
	i := max(0, slices.IndexFunc(d.hierarchies, func(h hierarchy) bool { return h.has(controller) }))
	dir := d.dirs.find(name, false)
	d.dirs.mu.Lock()
	defer d.dirs.mu.Unlock()
	if dir.passing || slices.Contains(dir.inos, 0) {
		return 0, fs.ErrNotExist
	}
	at := dir.fds[i]
	if at == unopened {
		at, file = d.dirs.mounts[i], filepath.Join(append(name[:len(name):len(name)], file)...)
	}
	return again(func() (int, error) { return unix.Openat(at, file, flags|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0) })
}

// list lists the cgroups right below one again, in all hierarchies: what a partial removal
// left is found, too. It returns the added ones.
func (d *Driver) list(name cgroup.Name, dir *openDir) (added []string, err error) {
	var names []string
	for _, h := range d.hierarchies {
		found, err := d.children(h, name)
		if err != nil {
			return nil, err
		}
		names = append(names, found...)
	}
	slices.Sort(names)
	names = slices.DeleteFunc(slices.Compact(names), func(c string) bool {
		return cgroup.Name{c}.Check() != nil // nothing that berth could have made or could reach
	})
	d.dirs.mu.Lock()
	defer d.dirs.mu.Unlock()
	for _, c := range names {
		if dir.below[c] == nil {
			child := newOpenDir(len(dir.fds))
			child.passing = dir.passing
			dir.add(c, child)
			added = append(added, c)
		}
	}
	maps.DeleteFunc(dir.below, func(c string, child *openDir) bool {
		if _, there := slices.BinarySearch(names, c); there {
			return false
		}
		d.dirs.close(child)
		return true
	})
	dir.names = names
	return added, nil
}

// listed returns the known names below a cgroup, and the directories of each.
func (o *openDirs) listed(d *openDir) (names []string, below []*openDir) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, c := range d.names {
		below = append(below, d.below[c])
	}
	return d.names, below
}

// reader reads one cgroup. The caller holds openDirs.mu.
type reader struct {
	*Driver
	name        cgroup.Name
	parent, dir *openDir
	// trust means that open directories count as present until reading a file fails.
	trust, missed bool
	buf           [4096]byte
}

// observe reads the state and the values of the cgroup. nested means that the cgroup may have
// children.
func (r *reader) observe() (o cgroup.Observed, nested bool, err error) {
	o.Name = r.name
	if o.State, o.Reason, nested, err = r.state(); err != nil || o.State == cgroup.Absent {
		return o, false, err
	}
	texts := make(map[string]string)
	for i, files := range r.values {
		for _, file := range files {
			text, err := r.text(i, file)
			if err == nil {
				texts[file] = text
			} else if r.missed = true; !gone(err) {
				return o, false, errdefs.Unavailablef("read %s: %w", file, errno.Classify(err))
			}
		}
	}
	return o, nested, r.decode(&o, texts)
}

// text reads a control file, without the white space around it.
func (r *reader) text(hierarchy int, file string) (string, error) {
	dir, err := r.openDir(r.name, r.parent, r.dir, hierarchy)
	if err != nil {
		return "", err
	}
	fd, err := again(func() (int, error) { return unix.Openat(dir, file, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0) })
	if err != nil {
		return "", err
	}
	defer func() { _ = unix.Close(fd) }()
	return r.all(fd)
}

// all reads an open file. A read that does not fill the buffer has reached the end.
func (r *reader) all(fd int) (string, error) {
	var long []byte
	for {
		n, err := again(func() (int, error) { return unix.Pread(fd, r.buf[:], int64(len(long))) })
		switch {
		case err != nil:
			return "", err
		case n < len(r.buf) && long == nil:
			return string(bytes.TrimSpace(r.buf[:n])), nil
		case n < len(r.buf):
			return string(bytes.TrimSpace(append(long, r.buf[:n]...))), nil
		}
		long = append(long, r.buf[:n]...)
	}
}

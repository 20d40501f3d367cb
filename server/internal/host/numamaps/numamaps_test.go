package numamaps

import (
	"context"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"strings"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/errdefs"
)

const sample = `00400000 default file=/bin/app mapped=84 active=80 N0=84 kernelpagesize_kB=4
7f0000000000 default anon=3 dirty=3 N0=1 N1=2 kernelpagesize_kB=4
7f1000000000 default file=/anon_hugepage\040(deleted) huge anon=5 dirty=5 N0=5 kernelpagesize_kB=2048
7f2000000000 prefer (many):0-1 file=/dev/hugepages/N7\075huge huge dirty=3 mapmax=2 N0=1 N1=2 kernelpagesize_kB=2048
7f3000000000 bind:1 file=/anon_hugepage\040(deleted) huge dirty=1 N1=1 kernelpagesize_kB=1048576
7f4000000000 default file=/anon_hugepage\040(deleted) huge
7f5000000000 default file=/huge mapped=1 N0=1 kernelpagesize_kB=4
7f6000000000 default stack anon=3 dirty=3 N1=3 kernelpagesize_kB=4
`

func TestParse(t *testing.T) {
	t.Parallel()
	const mi = 1 << 20
	for name, row := range map[string]struct {
		text  string
		want  cgroup.HugeBytes
		fails bool
	}{
		"mappings":     {sample, cgroup.HugeBytes{2 * mi: {0: 12 * mi, 1: 4 * mi}, 1 << 30: {1: 1 << 30}}, false},
		"none":         {"", cgroup.HugeBytes{}, false},
		"no size":      {"7f default huge N0=1\n", nil, true},
		"no number":    {"7f default huge N0=x kernelpagesize_kB=2048\n", nil, true},
		"no such node": {"7f default huge N1024=1 kernelpagesize_kB=2048\n", nil, true},
		"too many":     {"7f default huge N0=9223372036854775807 kernelpagesize_kB=2048\n", nil, true},
		// A container chooses the paths of its files. The kernel escapes blanks, tabs, line ends and "=" only.
		"other blanks in a path": {"7f default file=/a\vhuge\fhuge\u00a0huge\u2003huge\rhuge mapped=1 N0=1 kernelpagesize_kB=4\n",
			cgroup.HugeBytes{}, false},
		"a long path": {"7f default file=/" + strings.Repeat("x", 1<<20) + " huge N1=1 kernelpagesize_kB=2048\n",
			cgroup.HugeBytes{2 * mi: {1: 2 * mi}}, false},
		"a node in a path": {"7f default file=N0 huge N1=1 kernelpagesize_kB=2048\n", cgroup.HugeBytes{2 * mi: {1: 2 * mi}}, false},
		"a long number":    {"7f default huge N0=" + strings.Repeat("1", 1<<10) + " kernelpagesize_kB=2048\n", nil, true},
		"no end of line":   {"7f default huge N0=1 kernelpagesize_kB=2048", cgroup.HugeBytes{2 * mi: {0: 2 * mi}}, false},
	} {
		got, _, err := parse(strings.NewReader(row.text), maxText)
		if (err != nil) != row.fails || err == nil && !maps.EqualFunc(got, row.want, maps.Equal) {
			t.Errorf("%s: %v, %v; want %v", name, got, err, row.want)
		}
	}
}

// endless is a text without an end.
type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	return len(p), nil
}

// A process with very many mappings of files with long paths does not occupy the reader for ever.
func TestTextIsBounded(t *testing.T) {
	t.Parallel()
	const most = 1 << 20
	if _, n, err := parse(endless{}, most); err == nil || n > most+1 {
		t.Errorf("%d bytes were read, %v", n, err)
	}
}

// The first thread of a process may have ended, and the others have its memory. The kernel shows none of the first one:
// nothing, or since some version an error.
func TestFirstThreadHasEnded(t *testing.T) {
	t.Parallel()
	for name, first := range map[string]*fstest.MapFile{"empty": {}, "no file": nil} {
		proc := fstest.MapFS{
			"7/task/7/numa_maps": {}, "7/task/8/numa_maps": {}, "7/task/9/numa_maps": {Data: []byte(sample)},
			"8/task/8/numa_maps": {}, // it is not waited for
		}
		if first != nil {
			proc["7/numa_maps"], proc["8/numa_maps"] = first, first
		}
		if a := read(proc, 7, false); a.Error != "" || a.Gone || a.Pages[2<<20][0] != 6*(2<<20) {
			t.Errorf("%s: %+v", name, a)
		}
		if a := read(proc, 7, true); a.Error != "" || a.Gone {
			t.Errorf("%s: checked: %+v", name, a)
		}
		if a := read(proc, 8, false); a.Error != "" || len(a.Pages) != 0 || a.Gone != (first == nil) {
			t.Errorf("%s: nothing is left: %+v", name, a)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(sample)
	f.Add("7f default huge N0=1 kernelpagesize_kB=18446744073709551615\n")
	f.Fuzz(func(t *testing.T, text string) {
		pages, _, err := parse(strings.NewReader(text), maxText)
		for size, nodes := range pages {
			for id, bytes := range nodes {
				if err == nil && (size <= 0 || id < 0 || id >= maxNodes || bytes%uint64(size) != 0) {
					t.Errorf("%d bytes of size %d on node %d", bytes, size, id)
				}
			}
		}
	})
}

// processes is a /proc. A file in hangs can be opened once the channel is closed.
type processes struct {
	fstest.MapFS
	hangs map[string]chan struct{}
}

func (p processes) Open(name string) (fs.File, error) {
	if c := p.hangs[name]; c != nil {
		<-c
	}
	if name == "5/numa_maps" {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrPermission}
	}
	return p.MapFS.Open(name)
}

// start runs a reader. It ends when the test calls end.
func start(t *testing.T, proc fs.FS) (c *Client, end func()) {
	t.Helper()
	mine, theirs := net.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- Serve(theirs, proc) }()
	return NewClient(mine), func() {
		_ = mine.Close()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		_ = theirs.Close()
	}
}

// A process that hangs, or that cannot be read, holds up no other one, and few of them never end the reader.
func TestReader(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		proc := processes{fstest.MapFS{
			"1/numa_maps": {Data: []byte(sample)},
			"2/numa_maps": {Data: []byte("7f default huge N0=1\n")},
		}, map[string]chan struct{}{}}
		for pid := 100; pid < 100+maxPending; pid++ {
			name := fmt.Sprintf("%d/numa_maps", pid)
			proc.hangs[name] = make(chan struct{})
			proc.MapFS[name] = &fstest.MapFile{Data: []byte(sample)}
		}
		c, end := start(t, proc)
		read := func(pid int) (cgroup.HugeBytes, error) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			return c.Read(ctx, pid)
		}
		want := func(pid int, class errdefs.Class, text string) {
			t.Helper()
			if _, err := read(pid); errdefs.ClassOf(err) != class || !strings.Contains(err.Error(), text) {
				t.Errorf("process %d: %v", pid, err)
			}
		}
		if pages, err := read(1); err != nil || pages[2<<20][0] != 6*(2<<20) {
			t.Errorf("%v, %v", pages, err)
		}
		want(2, errdefs.Unavailable, "without a size")
		want(3, errdefs.NotFound, "no process 3")
		want(5, errdefs.Unsupported, "needs CAP_SYS_PTRACE")
		if err := c.Check(t.Context(), 2); err != nil { // its content is not read
			t.Error(err)
		}
		if err := c.Check(t.Context(), 5); errdefs.ClassOf(err) != errdefs.Unsupported {
			t.Error(err)
		}
		want(100, errdefs.Unavailable, "deadline exceeded")
		for range maxWaiting {
			want(100, errdefs.Unavailable, "deadline exceeded")
		}
		want(100, errdefs.Unavailable, "earlier attempts")
		if _, err := read(1); err != nil {
			t.Error(err)
		}
		for pid := 101; pid < 100+maxPending; pid++ {
			want(pid, errdefs.Unavailable, "deadline exceeded")
		}
		want(1, errdefs.Unavailable, "32 other processes")
		close(proc.hangs["100/numa_maps"])
		synctest.Wait()
		if _, err := read(1); err != nil {
			t.Error(err)
		}
		for name, hangs := range proc.hangs {
			if name != "100/numa_maps" {
				close(hangs)
			}
		}
		synctest.Wait()
		end()
		synctest.Wait()
		want(1, errdefs.Unavailable, "restart berthd")
	})
}

// counted counts how often files are opened, and lets one be opened at a time.
type counted struct {
	fs.FS
	opened chan struct{}
}

func (c counted) Open(name string) (fs.File, error) {
	c.opened <- struct{}{}
	return c.FS.Open(name)
}

// Requests for the same process at the same time are all answered, by reads that began after them.
func TestSameProcess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		proc := counted{fstest.MapFS{"1/numa_maps": {Data: []byte(sample)}}, make(chan struct{})}
		c, end := start(t, proc)
		defer end()
		const callers = 4
		errs := make(chan error, callers)
		for i := range callers {
			go func() {
				if i == 3 {
					errs <- c.Check(t.Context(), 1)
					return
				}
				pages, err := c.Read(t.Context(), 1)
				if err == nil && pages[2<<20][0] == 0 {
					err = fmt.Errorf("read %v", pages)
				}
				errs <- err
			}()
			synctest.Wait()
		}
		<-proc.opened // for the first one
		<-proc.opened // for all others
		for range callers {
			if err := <-errs; err != nil {
				t.Error(err)
			}
		}
	})
}

// A reader that ends in the middle of a request does not hold up the caller.
func TestReaderEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mine, theirs := net.Pipe()
		c := NewClient(mine)
		go func() {
			buffer := make([]byte, 100)
			_, _ = theirs.Read(buffer)
			_ = theirs.Close()
		}()
		if _, err := c.Read(t.Context(), 1); errdefs.ClassOf(err) != errdefs.Unavailable ||
			!strings.Contains(err.Error(), "restart berthd") {
			t.Error(err)
		}
	})
}

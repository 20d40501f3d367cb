package reconcile_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/qos"
	"github.com/berthd/berth/server/internal/host/cgroupfs"
	"github.com/berthd/berth/server/internal/host/cgroupfs/ocicgroups"
	"github.com/berthd/berth/server/internal/reconcile"
)

// A pass at rest reads no control file of a pod's cgroup twice, and lists no directory.
func TestPassReadsEachFileOnce(t *testing.T) {
	t.Parallel()
	tree, err := cgroupfs.Open(cgroupfs.Options{Setter: ocicgroups.Setter{}})
	if err != nil {
		t.Skipf("no usable tree: %v", err)
	}
	t.Cleanup(func() { _ = tree.Close() })
	root := fmt.Sprintf("berthtest-once-%d", os.Getpid())
	layout, err := cgroup.NewLayout("/"+root, tree.Facts().Driver)
	if err != nil {
		t.Fatal(err)
	}
	d := ledger.NewDraft(ledgertest.New(t, ledger.Rules{Machine: machinetest.Build("1c")}).View())
	for _, uid := range []string{"a", "b"} {
		d.PutPod(ledgertest.Pod(uid, "c"))
		name, err := layout.Pod(ledgertest.Pod(uid, "c").QoS, uid)
		if err != nil {
			t.Fatal(err)
		}
		path, _ := layout.Literal(append(name, "c"))
		d.Bind(ledger.Binding{ID: "id-" + uid, Owner: ledger.Owner{Pod: uid, Container: "c"}, CgroupPath: path, Own: true})
	}
	view := d.View()
	loop := reconcile.New(reconcile.Config{
		Tree: tree, Layout: layout, Limits: reconcile.Limits{QoS: qos.Config{Cgroup: cgroup.DefaultConfig(tree.Facts())}},
		View: func() *ledger.View { return view }, Log: slog.New(slog.DiscardHandler),
	})
	t.Cleanup(func() {
		if err := tree.Remove(context.WithoutCancel(t.Context()), cgroup.Name{root}); err != nil {
			t.Errorf("left behind: %v", err)
		}
	})
	err = loop.Pass(t.Context())
	if errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.EROFS) {
		t.Skipf("the tree cannot be written to (uid %d): %v", os.Getuid(), err)
	}
	for range 2 { // the second one opens what the first one has created
		if err != nil {
			t.Fatal(err)
		}
		err = loop.Pass(t.Context())
	}
	reads := countReads(t, root, func() {
		if err := loop.Pass(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
	container := 0
	for file, n := range reads {
		if strings.Contains(file, "/poda/") && n == 1 {
			container++
		}
		if n > 1 && strings.Contains(file, "/pod") {
			t.Errorf("%s was read or listed %d times", file, n)
		}
	}
	if container < 8 && !t.Failed() {
		t.Errorf("%d files of a container were read, so the count is not believed: %v", container, reads)
	}
}

// countReads returns how often each file below a cgroup is read during a call, and each
// directory listed. Reads of one file that follow each other directly count once.
func countReads(t *testing.T, root string, during func()) map[string]int {
	t.Helper()
	in, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(in) }()
	var tops []string
	for _, pattern := range []string{"/sys/fs/cgroup/", "/sys/fs/cgroup/*/"} {
		found, err := filepath.Glob(pattern + root)
		if err != nil {
			t.Fatal(err)
		}
		tops = append(tops, found...)
	}
	watches := map[int]string{}
	for _, top := range tops {
		err := filepath.WalkDir(top, func(path string, e os.DirEntry, err error) error {
			if err != nil || !e.IsDir() {
				return err
			}
			w, err := unix.InotifyAddWatch(in, path, unix.IN_ACCESS)
			watches[w] = path
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	eventsOf(t, in, watches) // of this walk
	during()
	return eventsOf(t, in, watches)
}

// eventsOf takes the events that have happened.
func eventsOf(t *testing.T, in int, watches map[int]string) map[string]int {
	t.Helper()
	events := map[string]int{}
	buf := make([]byte, 1<<16)
	for {
		n, err := unix.Read(in, buf)
		if errors.Is(err, unix.EAGAIN) {
			return events
		}
		if err != nil {
			t.Fatal(err)
		}
		for rest := buf[:n]; len(rest) >= unix.SizeofInotifyEvent; {
			e := (*unix.InotifyEvent)(unsafe.Pointer(&rest[0]))
			name := rest[unix.SizeofInotifyEvent : unix.SizeofInotifyEvent+int(e.Len)]
			if e.Mask&unix.IN_Q_OVERFLOW != 0 {
				t.Fatal("too many reads to count")
			}
			events[filepath.Join(watches[int(e.Wd)], string(bytes.TrimRight(name, "\x00")))]++
			rest = rest[unix.SizeofInotifyEvent+int(e.Len):]
		}
	}
}

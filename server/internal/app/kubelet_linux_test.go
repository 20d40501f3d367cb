package app_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/server/internal/host/cgroupfs"
	"github.com/berthd/berth/server/internal/host/cgroupfs/ocicgroups"
	"github.com/berthd/berth/server/internal/host/systemd"
)

// TestDaemonIsLikeTheKubeletOnTheMachine replays the recordings in the kernel's
// cgroups: those with the version and the driver that are here, of machines whose
// CPUs and NUMA nodes are here too.
func TestDaemonIsLikeTheKubeletOnTheMachine(t *testing.T) {
	t.Parallel()
	for i, r := range recordings(t) {
		t.Run(r.Name, func(t *testing.T) {
			t.Parallel()
			tree, err := openKernel(r.Driver)
			if err != nil {
				t.Skipf("no such tree: %v", err)
			}
			t.Cleanup(func() { _ = tree.Close() })
			if v := tree.Facts().Version; v != r.Version {
				t.Skipf("this is cgroup v%d, the recording is of v%d", v, r.Version)
			}
			fits(t, tree, r)
			root := cgroup.Name{fmt.Sprintf("berthtest%d-%d", os.Getpid(), i)}
			_, err = tree.Ensure(t.Context(), cgroup.Node{Name: root})
			if errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.EROFS) {
				t.Skipf("the tree cannot be written to (uid %d): %v", os.Getuid(), err)
			}
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := tree.Remove(context.WithoutCancel(t.Context()), root); err != nil {
					t.Errorf("left behind: %v", err)
				}
			})
			newReplay(t, r, "/"+root[0], tree).run()
		})
	}
}

// kernelTree reads files as they are.
type kernelTree struct {
	cgroup.Tree
	facts cgroup.Facts
	close func() error
}

func openKernel(driver cgroup.Driver) (*kernelTree, error) {
	if driver == cgroup.Systemd {
		d, err := systemd.Open(cgroupfs.Options{})
		if err != nil {
			return nil, err
		}
		return &kernelTree{d, d.Facts(), d.Close}, nil
	}
	d, err := cgroupfs.Open(cgroupfs.Options{Setter: ocicgroups.Setter{}})
	if err != nil {
		return nil, err
	}
	return &kernelTree{d, d.Facts(), d.Close}, nil
}

func (k *kernelTree) Facts() cgroup.Facts { return k.facts }

func (k *kernelTree) Close() error { return k.close() }

func (k *kernelTree) File(t *testing.T, name cgroup.Name, file string) (string, bool) {
	t.Helper()
	literal, err := k.facts.Driver.Literal(name)
	if err != nil {
		t.Fatal(err)
	}
	folder := "/sys/fs/cgroup"
	if k.facts.Version == cgroup.V1 {
		controller, _, _ := strings.Cut(file, ".")
		folder = filepath.Join(folder, controller)
	}
	text, err := os.ReadFile(filepath.Join(folder, literal, file))
	if err != nil {
		return err.Error(), true
	}
	return strings.TrimSpace(string(text)), true
}

// fits skips a recording of a machine that this one has no room for.
func fits(t *testing.T, tree *kernelTree, r recording) {
	t.Helper()
	m, err := machine.Load(r.Machine)
	if err != nil {
		t.Fatal(err)
	}
	seen, err := tree.Observe(t.Context(), cgroup.Name{}, 0)
	if err != nil {
		t.Fatal(err)
	}
	have := seen.Nodes[0].Effective
	if !m.CPUs().IsSubsetOf(have.CPUs) || !m.NodeMask().IsSubsetOf(have.Mems) {
		t.Skipf("the recording is of CPUs %s and NUMA nodes %s, here are %s and %s", m.CPUs(), m.NodeMask(), have.CPUs, have.Mems)
	}
}

//go:build linux && cgo

package builtin

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/opencontainers/cgroups"
	"golang.org/x/sys/unix"

	"github.com/berthd/berth/clients/berthlet/beneath"
	"github.com/berthd/berth/clients/berthlet/container"
	"github.com/berthd/berth/clients/berthlet/image"
	"github.com/berthd/berth/managers/errdefs"
)

// Runtime is the built-in runtime. The state of containers is in its directory; this type only
// watches them.
type Runtime struct {
	Options
	images *image.Store

	mu      sync.Mutex // guards watched
	watched map[string]*os.File
	watches sync.WaitGroup
}

var _ container.Runtime = (*Runtime)(nil)

// New opens the runtime of a directory, with the containers that are in it.
func New(o Options) (*Runtime, error) {
	if !filepath.IsAbs(o.Dir) {
		return nil, errdefs.Invalidf("directory %q of the runtime: expected an absolute path", o.Dir)
	}
	if os.Geteuid() != 0 {
		return nil, errdefs.PermissionDeniedf("the built-in runtime makes namespaces and mounts, which takes root; the effective user is %d", os.Geteuid())
	}
	r := &Runtime{Options: o, images: image.NewStore(o.Images, filepath.Join(o.Dir, "layers")), watched: map[string]*os.File{}}
	// What others can reach they can run: a setuid program that a container makes is
	// root's.
	for _, dir := range []string{o.Dir, r.containers(), r.run(), r.sandboxes()} {
		if err := beneath.Private(dir); err != nil {
			return nil, err
		}
	}
	// mount(2) and libcontainer require a path without links.
	var err error
	if r.Dir, err = filepath.EvalSymlinks(o.Dir); err != nil {
		return nil, err
	}
	ids, err := r.ids()
	if err != nil {
		return nil, err
	}
	for _, id := range ids {
		if err := r.adopt(id); err != nil {
			return nil, fmt.Errorf("take container %s over: %w", id, err)
		}
	}
	return r, nil
}

// adopt watches a container, or removes the remains of an interrupted creation or removal.
func (r *Runtime) adopt(id string) error {
	dir := r.container(id)
	alive, err := kept(dir)
	if err != nil {
		return err
	}
	if !exists(filepath.Join(dir, bundleFile)) || !alive && !exists(filepath.Join(dir, createdFile)) {
		return r.wipe(id)
	}
	r.watch(id)
	return nil
}

// Stop ends the watching; the containers continue.
func (r *Runtime) Stop() {
	r.mu.Lock()
	for _, f := range r.watched {
		_ = f.Close()
	}
	r.mu.Unlock()
	r.watches.Wait()
}

func (r *Runtime) containers() string         { return filepath.Join(r.Dir, "containers") }
func (r *Runtime) container(id string) string { return filepath.Join(r.containers(), id) }
func (r *Runtime) run() string                { return filepath.Join(r.Dir, "run") }
func (r *Runtime) sandboxes() string          { return filepath.Join(r.Dir, "sandboxes") }

// ids lists the directories of containers.
func (r *Runtime) ids() ([]string, error) {
	entries, err := os.ReadDir(r.containers())
	if err != nil {
		return nil, err
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out, nil
}

// watch waits for the end of a container's keeper and calls Changed.
func (r *Runtime) watch(id string) {
	dir := r.container(id)
	var b bundle
	if found, err := read(dir, bundleFile, &b); err != nil || !found {
		return
	}
	life, err := os.OpenFile(filepath.Join(dir, lifePipe), os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.watched[id] != nil {
		_ = life.Close()
		return
	}
	r.watched[id] = life
	r.watches.Go(func() {
		_, _ = life.Read(make([]byte, 1)) // until the keeper, or Stop, closes it
		r.Changed(b.Spec.PodUID)
	})
}

func (r *Runtime) unwatch(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if f := r.watched[id]; f != nil {
		_ = f.Close()
		delete(r.watched, id)
	}
}

// Open implements container.Runtime.
func (r *Runtime) Open(_ context.Context, p container.Pod) error {
	dir := filepath.Join(r.sandboxes(), p.UID)
	err := os.MkdirAll(dir, 0o700)
	if err == nil {
		err = write(dir, podFile, p)
	}
	if err == nil {
		err = openSandbox(dir, p)
	}
	if err != nil {
		return fmt.Errorf("open pod %s: %w", p.UID, err)
	}
	return nil
}

// Close implements container.Runtime.
func (r *Runtime) Close(_ context.Context, uid string) error {
	dir := filepath.Join(r.sandboxes(), uid)
	var p container.Pod
	_, err := read(dir, podFile, &p)
	if err == nil {
		removeDevicesCgroup(p.CgroupParent)
		err = closeSandbox(dir)
	}
	if err != nil {
		return fmt.Errorf("close pod %s: %w", uid, err)
	}
	return nil
}

// Opened implements container.Runtime.
func (r *Runtime) Opened(context.Context) (uids []string, err error) {
	entries, err := os.ReadDir(r.sandboxes())
	for _, e := range entries {
		uids = append(uids, e.Name())
	}
	return uids, err
}

// removeDevicesCgroup removes a pod's cgroup in the v1 devices hierarchy, and its empty
// ancestors. libcontainer has created them, and berthd leaves that hierarchy to runtimes. A
// failure is ignored, because another pod may be starting there.
func removeDevicesCgroup(parent string) {
	if parent == "" || cgroups.IsCgroup2UnifiedMode() {
		return
	}
	top, err := cgroups.FindCgroupMountpoint("", "devices")
	if err != nil {
		return
	}
	for path := filepath.Join(top, parent); path != top && os.Remove(path) == nil; path = filepath.Dir(path) {
	}
}

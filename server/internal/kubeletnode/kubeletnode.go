// Package kubeletnode reads a node whose kubelet decides: the machine, the kubelet's configuration and its state files.
//
// Words:
//
//   - root: the directory with the node's files below it. It is / for the running node, or a copy of a node's files.
//   - source: what is read, and where it was found, or why it is missing.
//   - reading: the content of all state files. Two that are the same, one after the other, are one state of the kubelet.
//
// Invariants: nothing is opened for writing. Files are read up to a bound. A source that is missing does not keep the others from being
// read; only without a machine or a configuration is there no node.
package kubeletnode

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"reflect"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/managers/device"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger/kubelet"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/node"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/server/internal/host/procfs"
	"github.com/berthd/berth/server/internal/host/sysfs"
)

// Most is the most of a file that is read.
const Most = 16 << 20

// Source is something that was read, or is missing.
type Source struct {
	What string
	// Path below the root; empty if there is none.
	Path string
	// Missing is why it could not be read; nil if it was.
	Missing error
}

// Node holds what was read.
type Node struct {
	Machine *machine.Topology
	Facts   node.Facts
	// Given is the kubelet's configuration; nil if it cannot be read. Config is one with which berthd decides as the kubelet does. Refused
	// is why it is not valid.
	Given   *config.Config
	Config  config.Config
	Refused error
	// Running means that there is a process kubelet.
	Running bool
	// Dir is the kubelet's directory, below the root.
	Dir string
	// States are the state files that there are.
	States map[kubelet.Kind][]byte
	// Unread are the state files that there are and that cannot be read, and why.
	Unread map[kubelet.Kind]error
	// Damaged are the files of pods' amounts that a kubelet would not start with, and why.
	Damaged map[kubelet.Kind]error
	// Devices are those that the kubelet's checkpoint names, by resource.
	Devices map[string][]device.Device
	// Sources in the order in which they were read.
	Sources []Source
	// allocated are the amounts of pods, by uid. allocatedText is their file.
	allocated     map[string]allocatedPod
	allocatedText []byte
	unallocated   error // why they are not known
	// manifests are those of static pods. unmanifest says which of them cannot be read.
	manifests  []manifest
	unmanifest []string
	// settled are the sources of the machine and the configuration.
	settled int
	// Changing means that no two readings of the state files were the same.
	Changing bool
}

// manifest is a static pod.
type manifest struct {
	// pod has the name that the kubelet gives to it.
	pod *typesv1.Pod
	// given means that the manifest has a uid. Otherwise the kubelet makes one of its own form of the pod, which differs from version to
	// version.
	given bool
}

// The readings: how many at most, and the pause between two.
const (
	readings = 5
	between  = 200 * time.Millisecond
)

// kinds are the state files, in the order in which they are read.
var kinds = []struct {
	kind kubelet.Kind
	what string
	file string
}{
	{kubelet.CPU, "CPUs of containers", "cpu_manager_state"},
	{kubelet.Memory, "memory of containers", "memory_manager_state"},
	{kubelet.Device, "devices of containers", "device-plugins/kubelet_internal_checkpoint"},
	{kubelet.Claims, "claims on dynamic resources", "dra_manager_state"},
}

// Kinds returns the kinds of state files in the order in which they are imported. Claims are not: they are shown with the containers.
func Kinds() (out []kubelet.Kind) {
	for _, k := range kinds {
		if k.kind != kubelet.Claims {
			out = append(out, k.kind)
		}
	}
	return out
}

// optional are the state files that a kubelet has since the first device plugin, or with the feature gate DynamicResourceAllocation.
var optional = []kubelet.Kind{kubelet.Device, kubelet.Claims}

// reader reads one node.
type reader struct {
	root fs.FS
	told []byte // by the kubelet; nil if its files are read
	Node
}

// Read reads the node below a root. told is the configuration that the running kubelet has told (/configz), in place of its files; nil for
// these. Errors are of class NotFound if there is no configuration of a kubelet, Invalid for one that cannot be read, and those of a
// machine that cannot be read.
func Read(ctx context.Context, root fs.FS, told []byte) (*Node, error) {
	n, err := Inspect(ctx, root, told)
	if err != nil {
		return nil, err
	}
	return n, n.Refused
}

// Inspect is Read for a node with a configuration that is not valid: Refused says why.
func Inspect(ctx context.Context, root fs.FS, told []byte) (*Node, error) {
	files := regularIn(root)
	defer files.close()
	r := &reader{root: files, told: told, Node: Node{States: map[kubelet.Kind][]byte{}}}
	if err := r.readMachine(); err != nil {
		return nil, err
	}
	if r.Refused = r.readConfig(); errdefs.ClassOf(r.Refused) == errdefs.NotFound {
		return nil, r.Refused
	}
	r.settled = len(r.Sources)
	return r.rest(ctx)
}

// Same reports whether two readings are of the same state of the node.
func (n *Node) Same(o *Node) bool {
	text := func(err error) string { return fmt.Sprint(err) }
	return maps.EqualFunc(n.States, o.States, bytes.Equal) && reflect.DeepEqual(n.Devices, o.Devices) &&
		bytes.Equal(n.allocatedText, o.allocatedText) && text(n.unallocated) == text(o.unallocated) &&
		n.Changing == o.Changing && n.Running == o.Running && slices.Equal(n.unmanifest, o.unmanifest) &&
		slices.EqualFunc(n.manifests, o.manifests, func(a, b manifest) bool { return a.given == b.given && proto.Equal(a.pod, b.pod) }) &&
		maps.EqualFunc(n.Unread, o.Unread, func(a, b error) bool { return text(a) == text(b) }) &&
		slices.EqualFunc(n.Sources, o.Sources, func(a, b Source) bool { return a.What == b.What && text(a.Missing) == text(b.Missing) })
}

// SameHost reports whether two readings are of the same machine, and of a kubelet with the same configuration and directory.
func (n *Node) SameHost(o *Node) bool {
	return reflect.DeepEqual(n.Machine.Snapshot(), o.Machine.Snapshot()) && n.Facts == o.Facts && reflect.DeepEqual(n.Config, o.Config) &&
		n.Dir == o.Dir
}

// Lacks adds a source of the configuration that is missing; Again keeps it.
func (n *Node) Lacks(what string, why error) {
	n.Sources = slices.DeleteFunc(n.Sources, func(s Source) bool {
		if s.What == what {
			n.settled--
		}
		return s.What == what
	})
	n.Sources = slices.Insert(n.Sources, n.settled, Source{What: what, Missing: why})
	n.settled++
}

// Again reads everything of a node again but the machine and the configuration.
func (n *Node) Again(ctx context.Context, root fs.FS) (*Node, error) {
	files := regularIn(root)
	defer files.close()
	r := &reader{root: files, Node: Node{
		Machine: n.Machine, Facts: n.Facts, Given: n.Given, Config: n.Config, Refused: n.Refused, Running: n.Running, Dir: n.Dir,
		Sources: slices.Clone(n.Sources[:n.settled]), settled: n.settled,
		manifests: n.manifests, unmanifest: n.unmanifest,
	}}
	return r.rest(ctx)
}

// rest reads what is in the kubelet's directory.
func (r *reader) rest(ctx context.Context) (*Node, error) {
	if err := r.readStates(ctx, r.Dir); err != nil {
		return nil, err
	}
	r.readAllocated(r.Dir)
	r.readDevices()
	return &r.Node, nil
}

func (r *reader) found(what, file string, missing error) {
	if missing != nil && file != "" {
		missing = fmt.Errorf("/%s: %w", file, reason(missing))
	}
	r.Sources = append(r.Sources, Source{what, file, missing})
}

// reason is an error without the path that it may begin with.
func reason(err error) error {
	if p := (*fs.PathError)(nil); errors.As(err, &p) {
		return p.Err
	}
	return err
}

// readMachine reads the machine, and the number of its processes.
func (r *reader) readMachine() error {
	sys, err := fs.Sub(r.root, "sys")
	if err != nil {
		return err
	}
	proc, err := fs.Sub(r.root, "proc")
	if err != nil {
		return err
	}
	snapshot, err := sysfs.Discover(sys, proc)
	if err != nil {
		return err
	}
	if r.Machine, err = machine.New(snapshot); err != nil {
		return err
	}
	r.found("machine", "sys", nil)
	if r.Facts.MaxPIDs, err = procfs.MaxPIDs(proc); err != nil {
		r.found("number of processes", "proc/sys/kernel", err)
	}
	return nil
}

// readStates reads the state files below the kubelet's directory until two readings are the same.
func (r *reader) readStates(ctx context.Context, dir string) error {
	var before map[kubelet.Kind][]byte
	var missing map[kubelet.Kind]error
	for n := range readings {
		if n > 1 {
			select {
			case <-time.After(between):
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		r.States, missing = r.reading(dir)
		if n > 0 && maps.EqualFunc(before, r.States, bytes.Equal) {
			break
		}
		before, r.Changing = r.States, n == readings-1
	}
	r.Unread = map[kubelet.Kind]error{}
	for _, k := range kinds {
		if err := missing[k.kind]; err != nil && !errors.Is(err, fs.ErrNotExist) {
			r.Unread[k.kind] = reason(err)
		}
		if err := missing[k.kind]; !slices.Contains(optional, k.kind) || !errors.Is(err, fs.ErrNotExist) {
			r.found(k.what, path.Join(dir, k.file), err)
		}
	}
	return nil
}

// reading reads the state files once.
func (r *reader) reading(dir string) (states map[kubelet.Kind][]byte, missing map[kubelet.Kind]error) {
	states, missing = map[kubelet.Kind][]byte{}, map[kubelet.Kind]error{}
	for _, k := range kinds {
		data, err := r.file(path.Join(dir, k.file))
		if err == nil {
			states[k.kind] = data
		} else {
			missing[k.kind] = err
		}
	}
	return states, missing
}

// file reads a file below the root, up to Most.
func (r *reader) file(name string) ([]byte, error) { return readFile(r.root, name) }

func readFile(root fs.FS, name string) ([]byte, error) {
	f, err := root.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	data, err := io.ReadAll(io.LimitReader(f, Most+1))
	if err == nil && len(data) > Most {
		err = errdefs.Invalidf("expected at most %d bytes", Most)
	}
	return data, err
}

// regular opens only regular files and directories: a pipe would wait for its writer, and a device may do something.
type regular struct {
	fs.FS
	path *openPath // nil if this is no Dir
}

func regularIn(root fs.FS) regular {
	if d, ok := root.(*Dir); ok {
		return regular{root, &openPath{root: d.root}}
	}
	return regular{root, nil}
}

func (r regular) close() {
	if r.path != nil {
		r.path.cut(0)
	}
}

// Open implements fs.FS.
func (r regular) Open(name string) (fs.File, error) {
	if r.path != nil && fs.ValidPath(name) {
		if f, known, err := r.path.open(name); known {
			return f, err
		}
	}
	info, err := fs.Stat(r.FS, name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() && !info.IsDir() {
		return nil, &fs.PathError{Op: "open", Path: name, Err: errdefs.Invalidf("expected a regular file")}
	}
	return r.FS.Open(name)
}

// ReadFile implements fs.ReadFileFS.
func (r regular) ReadFile(name string) ([]byte, error) { return readFile(r, name) }

// Stat implements fs.StatFS.
func (r regular) Stat(name string) (fs.FileInfo, error) { return fs.Stat(r.FS, name) }

// ReadDir implements fs.ReadDirFS.
func (r regular) ReadDir(name string) ([]fs.DirEntry, error) { return fs.ReadDir(r.FS, name) }

// freeDevices is a source that only a running kubelet has.
const freeDevices = "NUMA nodes of free devices"

// readDevices reads the devices of the checkpoint. It has the NUMA nodes only of those that a container holds.
func (r *reader) readDevices() {
	data, ok := r.States[kubelet.Device]
	if !ok {
		return
	}
	state, err := kubelet.ParseDevice(data)
	if err != nil {
		return // the import says so
	}
	places := map[[2]string]device.Device{}
	for _, e := range state.Entries {
		for id, ids := range e.IDs {
			for _, name := range ids {
				d := places[[2]string{e.Resource, name}]
				if id >= 0 && id < numa.MaxNodes {
					d.Nodes, d.Topology = d.Nodes.With(int(id)), true
				}
				places[[2]string{e.Resource, name}] = d
			}
		}
	}
	r.Devices = map[string][]device.Device{}
	var unplaced []string
	for resource, ids := range state.Registered {
		free := 0
		for _, id := range ids {
			d, held := places[[2]string{resource, id}]
			if d.ID, d.Healthy = id, true; !held {
				free++
			}
			r.Devices[resource] = append(r.Devices[resource], d)
		}
		if free > 0 {
			unplaced = append(unplaced, resource)
		}
	}
	if len(unplaced) > 0 {
		r.found(freeDevices, "", errdefs.NotFoundf(
			"the kubelet's checkpoint has them only for devices that a container holds; decisions about %s ignore where they are",
			strings.Join(sorted(unplaced), ", ")))
	}
}

// Package observe answers about a node whose kubelet decides, in the process that calls it, with berthd's services. It starts nothing, and
// opens nothing for writing.
//
// Words:
//
//   - root: the directory with the node's files below it, or an archive of it. It is / for the running node.
//   - missing: what could not be read, and why. Answers do without it.
//
// Invariants: the managers decide with the kubelet's configuration, in its order of containers. A call that would change something is
// refused, unless it is a dry run.
package observe

import (
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/api/input"
	"github.com/berthd/berth/api/podspec"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger/kubelet"
	"github.com/berthd/berth/managers/workload"
	"github.com/berthd/berth/server/internal/app"
	"github.com/berthd/berth/server/internal/kubeletnode"
	"github.com/berthd/berth/server/internal/rpc/inprocess"
)

// Options of a node.
type Options struct {
	// Root is a directory, or a tar archive of one, also compressed with gzip or zstd; empty or / is the running node.
	Root string
	// Pods are the node's, as the API server has them; nil if they are not known. What the state files have of other pods is left out
	// then, and named in Missing.
	Pods []Pod
	// List lists them, where Pods is nil; nil if there is no such list. dir is the kubelet's directory. Errors of class Unsupported mean
	// that they cannot be known.
	List func(ctx context.Context, dir string) ([]Pod, error)
	// Told is the configuration that the running kubelet has told, in JSON; nil reads the kubelet's files.
	Told []byte
	// Now is the clock; nil is the system's.
	Now func() time.Time
	// Unlisted says why the pods are not known; empty for berthctl's flag.
	Unlisted string
	// settling is how long a kubelet may take to show pods that it has admitted. What explains a rejection may be in a later reading.
	settling time.Duration
}

// later reports whether a later reading may explain why a pod was rejected.
func (o Options) later(p Pod) bool { return o.Now().Sub(p.Started) < o.settling }

// Pod is a pod of the node.
type Pod struct {
	*typesv1.Pod
	// Started is when the kubelet has admitted or rejected it, in seconds, and Created when the API server has made it; zero if that is
	// not known.
	Started, Created time.Time
	// Controller is the uid of what replaces it when it has ended; empty if nothing does.
	Controller string
	// Ended means that nothing of it runs any more. Reason is why, as the kubelet has told.
	Ended  bool
	Reason string
	// Containers are the names of its containers by the runtime's, as far as the kubelet has told them.
	Containers map[string]string
	// Claims are the claims on dynamic resources that its containers use, by container.
	Claims map[string][]podspec.ClaimUse
	// devices are those of its claims.
	devices []*admissionv1.ExternalDevices
}

// PodsOf are the pods of a node that its kubelet has seen; nil if they are not known. Others hold nothing.
func PodsOf(pods []podspec.NodePod) (out []Pod) {
	if pods != nil {
		out = []Pod{}
	}
	for _, p := range pods {
		if !p.Seen() {
			continue
		}
		seen := Pod{
			Pod: p.Pod, Created: p.Created, Controller: p.Controller, Ended: !p.Living(), Reason: p.Status.Reason, Containers: p.IDs(),
			Claims: p.Claims(),
		}
		if p.OfDaemonSet {
			seen.Pod = returning(p.Pod)
		}
		if p.Status.StartTime != nil {
			seen.Started = p.Status.StartTime.Time
		}
		out = append(out, seen)
	}
	return out
}

// returning is a pod with the mark that its deletion makes no room.
func returning(p *typesv1.Pod) *typesv1.Pod {
	p = proto.CloneOf(p)
	if p.Metadata.Annotations == nil {
		p.Metadata.Annotations = map[string]string{}
	}
	p.Metadata.Annotations[workload.ReturnsAnnotation] = "true"
	return p
}

// rejections are the reasons of pods that a kubelet has not admitted, as far as the managers decide about them. Those of node resources
// begin with OutOf.
var rejections = []string{"TopologyAffinityError", "SMTAlignmentError", "UnexpectedAdmissionError"}

// Rejected reports whether the kubelet has rejected the pod for its CPUs, memory or devices.
func (p Pod) Rejected() bool {
	return p.Ended && (slices.Contains(rejections, p.Reason) || strings.HasPrefix(p.Reason, "OutOf"))
}

// Node is a node that was read.
type Node struct {
	*inprocess.Connection
	app    *app.App
	loaded bool // its services are there
	// threads of a core.
	threads int
	// unsure are the rejected pods without an explanation that has the kubelet's reason, by uid.
	unsure map[string]bool
	// read and options are what it was made of.
	read    *kubeletnode.Node
	options Options
	// Missing are the parts that could not be read.
	Missing []string
	// Decided are the pods that the kubelet has admitted or rejected, in its order, and that the managers can decide about. Pods that
	// have ended for other reasons are left out. Claims on dynamic resources are, too.
	Decided []Pod
}

var _ grpc.ClientConnInterface = (*Node)(nil)

// Open reads a node. Errors are of class NotFound if there is no kubelet's configuration, and Invalid for a configuration or a machine
// with which no kubelet decides.
func Open(ctx context.Context, o Options) (*Node, error) {
	root, closeRoot, err := open(ctx, o.Root)
	if err != nil {
		return nil, err
	}
	defer closeRoot()
	if o.Now == nil {
		o.Now = time.Now
	}
	read, err := kubeletnode.Read(ctx, root, o.Told)
	if err != nil {
		return nil, err
	}
	read.Ask(ctx, root, cmp.Or(o.Root, "/"))
	var unlisted error
	if o.Pods == nil {
		if o.Pods, unlisted = listed(ctx, o.List, o.Root, read.Dir); ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
	n, err := load(ctx, read, o)
	if err != nil {
		return nil, err
	}
	if unlisted != nil {
		n.Missing = append(n.Missing, unlisted.Error())
	}
	n.Connection = inprocess.New(func(method string, req proto.Message) error {
		if !n.loaded {
			return nil
		}
		return onlyRead(method, req)
	})
	if err := n.app.RegisterServices(n); err != nil {
		return nil, err
	}
	healthpb.RegisterHealthServer(n, health.NewServer())
	n.loaded = true
	return n, nil
}

// listed returns the pods that a list has. Without any, they are not known.
func listed(ctx context.Context, list func(context.Context, string) ([]Pod, error), root, dir string) ([]Pod, error) {
	if list == nil {
		return nil, nil
	}
	pods, err := list(ctx, filepath.Join(cmp.Or(root, "/"), dir))
	switch {
	case err == nil:
		return pods, nil
	case errdefs.ClassOf(err) == errdefs.Unsupported:
		return nil, nil
	}
	return nil, err
}

// load makes the managers of a node that was read, with its pods.
func load(ctx context.Context, read *kubeletnode.Node, o Options) (*Node, error) {
	a, err := build(ctx, read.Config, read, o)
	if err != nil {
		return nil, err
	}
	n := &Node{app: a, threads: read.Machine.CPUsPerCore(), read: read, options: o, unsure: map[string]bool{}}
	for _, s := range read.Sources {
		if s.Missing != nil {
			n.Missing = append(n.Missing, fmt.Sprintf("%s: %v", s.What, s.Missing))
		}
	}
	if read.Changing {
		n.Missing = append(n.Missing, "the state files are changing: their parts may be of different moments")
	}
	if o.Pods == nil {
		pods, problems, named := read.Reconstruct()
		o.Pods = PodsOf(pods)
		what := "names of pods"
		if named {
			what = "which pods have ended or were rejected, and when they started"
		}
		n.Missing = append(append(n.Missing, problems...), what+": "+cmp.Or(o.Unlisted,
			"give the pods with --pods FILE, from: kubectl get pods -A -o json --field-selector spec.nodeName=NODE"))
	}
	var unclaimed []string
	o.Pods, unclaimed = addClaims(read.Config, read.States[kubelet.Claims], o.Pods)
	n.Missing = append(n.Missing, unclaimed...)
	pods := inOrder(o.Pods)
	l := newLoader(ctx, n, a, read, o)
	if err := l.load(ctx, pods); err != nil {
		return nil, err
	}
	n.Decided = decided(read.Config, pods)
	return n, nil
}

// build makes the managers of a configuration on what was read of a node, without its pods.
func build(ctx context.Context, c config.Config, read *kubeletnode.Node, o Options) (*app.App, error) {
	meter, _ := meterOf(o.Root) // it is open until the program ends
	return app.Build(ctx, c, app.Environment{
		Log: slog.New(slog.DiscardHandler), Now: o.Now,
		Observed: &app.Observed{Machine: read.Machine, Facts: read.Facts, Devices: read.Devices, Meter: meter},
	})
}

// meterOf returns a function that opens the cgroups of the node with a root once, and one that closes them.
func meterOf(root string) (open func() (app.Meter, error), closeAll func()) {
	var opened *kubeletnode.Meter
	open = sync.OnceValues(func() (_ app.Meter, err error) {
		opened, err = kubeletnode.OpenMeter(cmp.Or(root, "/"))
		return opened, err
	})
	return open, func() {
		if opened != nil {
			_ = opened.Close()
		}
	}
}

// open returns the files below a root, a directory or an archive. Links do not lead out of a directory.
func open(ctx context.Context, dir string) (root fs.FS, closeRoot func(), err error) {
	if dir == "" || dir == "/" {
		return os.DirFS("/"), func() {}, nil
	}
	info, err := os.Stat(dir)
	if err != nil {
		return nil, nil, errdefs.Invalidf("open the node's files: %w", err)
	}
	if !info.IsDir() {
		text, err := input.Open(dir)
		if err != nil {
			return nil, nil, errdefs.Invalidf("open the node's archive: %w", err)
		}
		defer text.Close()
		root, err = kubeletnode.Archive(ctx, text)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", dir, err)
		}
		return root, func() {}, nil
	}
	d, err := kubeletnode.OpenDir(dir)
	if err != nil {
		return nil, nil, errdefs.Invalidf("open the node's directory: %w", err)
	}
	return d, func() { _ = d.Close() }, nil
}

// reads are the beginnings of the names of methods that change nothing.
var reads = []string{
	"Get", "List", "Watch", "Stream", "Dump", "Export", "Check", "Fit", "Merge", "Name", "Exists", "Is", "Validate", "Plan",
	"ServerReflectionInfo",
}

// onlyRead refuses what would change something.
func onlyRead(method string, req proto.Message) error {
	name := path.Base(method)
	if slices.ContainsFunc(reads, func(begin string) bool { return strings.HasPrefix(name, begin) }) || isDryRun(req) {
		return nil
	}
	return errdefs.Preconditionf("this is a kubelet's node; berth only reads it")
}

// isDryRun reports whether a request has dry_run.
func isDryRun(req proto.Message) bool {
	m := req.ProtoReflect()
	field := m.Descriptor().Fields().ByName("dry_run")
	return field != nil && field.Kind() == protoreflect.BoolKind && m.Get(field).Bool()
}

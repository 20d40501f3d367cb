package observe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/api/podspec"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/server/internal/app"
	"github.com/berthd/berth/server/internal/host/service"
	"github.com/berthd/berth/server/internal/kubeletnode"
	"github.com/berthd/berth/server/internal/system"
)

// The times of a berthd that observes: from the first change that is noticed to a reading, at least and at most from the end of a reading
// to the next change that is read, and between two readings of a node that does not seem to change.
const (
	settle = 200 * time.Millisecond
	apart  = time.Second
	late   = 10 * time.Second
	anyway = 2 * time.Minute
)

// settling is how long a kubelet may take to list a pod that it has admitted with the time at which it did so. It does that for each pod
// after the other, when many come at once.
const settling = time.Minute

const unlisted = "the kubelet has no Pods API (Kubernetes 1.37), and its web server is not given (observe.kubelet, --kubelet)"

// logged is how many parts that could not be read are logged after a reading.
const logged = 20

// share is how much of a processor's time readings may take: one part of so many.
const share = 20

// Sources name where a node that is followed has its state from, besides its files.
type Sources struct {
	// Pods returns the pods of the kubelet with a directory; errors of class Unsupported mean that they cannot be known.
	Pods func(ctx context.Context, dir string) ([]podspec.NodePod, error)
	// Told returns the configuration that the running kubelet has; nil reads the kubelet's files.
	Told func(context.Context) ([]byte, error)
	// Watch calls changed when they may have changed, until ctx ends.
	Watch func(ctx context.Context, dir string, changed func())
}

// ServeOptions configure a berthd that observes.
type ServeOptions struct {
	Sources
	// Config is berthd's own. Its field Observe.Root is Options.Root.
	Config  config.Config
	Log     *slog.Logger
	Service *service.Manager
	Tracer  system.Tracer
	Metrics system.Metrics
	Now     func() time.Time
	// Reloads has an element when the configuration should be read again. A berthd that observes does not.
	Reloads <-chan os.Signal
	// Ready is called when the socket answers; it may be nil.
	Ready func()
}

// errOther means that the machine or the kubelet's configuration is another one.
var errOther = errors.New("the machine or the kubelet's configuration has changed")

// Serve answers calls about a node until ctx ends, and follows the node meanwhile.
func Serve(ctx context.Context, o ServeOptions) error {
	root, closeRoot, err := open(ctx, o.Config.Observe.Root)
	if err != nil {
		return err
	}
	defer closeRoot()
	told := false
	for {
		err := serve(ctx, root, o, &told)
		switch {
		case ctx.Err() != nil && errors.Is(err, ctx.Err()): // it ends before it served
			return nil
		case !errors.Is(err, errOther) || ctx.Err() != nil:
			return err
		case o.Service.Present(): // it would take the end of this one for berthd's
			return fmt.Errorf("%w: berthd has to be started again", err)
		}
		o.Log.WarnContext(ctx, "the node is read from the beginning, and the history of calls begins again", "reason", errOther)
		o.Ready = nil
	}
}

// reading is a node at one moment.
type reading struct {
	*kubeletnode.Node
	pods  []Pod
	known bool // the pods are
	at    time.Time
}

// follower keeps an App as a node is.
type follower struct {
	ServeOptions
	root fs.FS
	app  *app.App
	last reading
	told *bool // the kubelet has told its configuration, also before a change of it
	// untold means that it did not at the last reading of everything.
	untold bool
	// explained are the rejected pods that need no other explanation, by uid.
	explained map[string]bool
	// unsure are the rejected pods whose explanation does not have the kubelet's reason, and that a later reading may explain.
	unsure map[string]bool
	// missing is what could not be read, as it was logged.
	missing []string
	problem atomic.Pointer[error]
	// changed is told of a problem that is another one than before, or nil when there is none any more; it may be nil.
	changed func(error)
}

// Follow keeps the answers about a node as the node is, until ctx ends. changed is told why they are not up to date, and nil when they are
// again. Nothing changes in an archive. Errors are of class Precondition if the node has become another one.
func (n *Node) Follow(ctx context.Context, from Sources, changed func(error)) error {
	o := n.options
	o.Root = cmp.Or(o.Root, "/")
	if info, err := os.Stat(o.Root); err == nil && !info.IsDir() {
		<-ctx.Done()
		return ctx.Err()
	}
	root, closeRoot, err := open(ctx, o.Root)
	if err != nil {
		return err
	}
	defer closeRoot()
	f := &follower{
		ServeOptions: ServeOptions{
			Sources: from, Config: config.Config{Observe: config.Observe{Root: o.Root}}, Log: slog.New(slog.DiscardHandler), Now: o.Now,
		},
		root: root, app: n.app, last: reading{Node: n.read, pods: o.Pods, known: o.Pods != nil, at: o.Now()},
		told: new(bool), explained: map[string]bool{}, unsure: map[string]bool{}, missing: n.Missing, changed: changed,
	}
	f.noteRejected(o.Pods, n)
	if err := f.follow(ctx); !errors.Is(err, errOther) {
		return err
	}
	return errdefs.Preconditionf("%w: start again", errOther)
}

// serve answers calls about a node with the machine and the configuration that it has now.
func serve(ctx context.Context, root fs.FS, o ServeOptions, told *bool) error {
	f := &follower{ServeOptions: o, root: root, told: told, explained: map[string]bool{}, unsure: map[string]bool{}}
	first, err := f.read(ctx, true)
	for ; errors.Is(err, errSilent); first, err = f.read(ctx, true) {
		o.Log.WarnContext(ctx, "berthd waits for the kubelet", "error", err)
		if err := wait(ctx, retry); err != nil {
			return err
		}
	}
	if err != nil {
		return err
	}
	c := first.Config
	c.Serving(o.Config)
	meter, closeMeter := meterOf(o.Config.Observe.Root)
	defer closeMeter()
	f.app, err = app.Build(ctx, c, app.Environment{
		Log: o.Log, Now: o.Now, Service: o.Service, Tracer: o.Tracer, Metrics: o.Metrics,
		Observed: &app.Observed{
			Machine: first.Machine, Facts: first.Facts, Meter: meter,
			Gate: func(method string, req any) error { return onlyRead(method, req.(proto.Message)) },
			Problem: func() error {
				if err := f.problem.Load(); err != nil {
					return *err
				}
				return nil
			},
		},
	})
	if err != nil {
		return err
	}
	if err := f.take(ctx, first); err != nil {
		return err
	}
	return f.app.Serve(ctx, f.follow, o.Ready)
}

// errSilent means that the kubelet did not answer. retry is the time between two tries at the start.
var errSilent = errors.New("the kubelet does not answer")

const retry = 2 * time.Second

// read reads the node, or without whole what changes often.
func (f *follower) read(ctx context.Context, whole bool) (r reading, err error) {
	if whole {
		r.Node, err = f.readWhole(ctx)
	} else {
		r.Node, err = f.last.Again(ctx, f.root)
	}
	if err != nil {
		return r, err
	}
	r.Ask(ctx, f.root, f.Config.Observe.Root)
	pods, err := f.Pods(ctx, filepath.Join(f.Config.Observe.Root, r.Dir))
	switch {
	case errdefs.ClassOf(err) == errdefs.Unsupported && !f.last.known: // else the kubelet is being restarted
	case err != nil:
		return r, fmt.Errorf("%w: %w", errSilent, err)
	default:
		r.pods, r.known = PodsOf(pods), true
	}
	r.at = f.Now()
	return r, nil
}

// readWhole reads the node with the configuration that the kubelet tells, else with the one of its files.
func (f *follower) readWhole(ctx context.Context) (*kubeletnode.Node, error) {
	if f.Told == nil {
		return kubeletnode.Read(ctx, f.root, nil)
	}
	text, err := f.Told(ctx)
	f.untold = err != nil && *f.told
	switch {
	case err == nil:
		*f.told = true
		return kubeletnode.Read(ctx, f.root, text)
	case *f.told && f.last.Node == nil: // the files may say something else
		return nil, fmt.Errorf("%w: %w", errSilent, err)
	case *f.told:
		n, otherErr := f.last.Again(ctx, f.root)
		return silent(n, otherErr, "configuration that the kubelet runs with: the last answer counts", err)
	}
	n, otherErr := kubeletnode.Read(ctx, f.root, nil)
	return silent(n, otherErr, "configuration that the kubelet runs with: its files count", err)
}

// silent adds to a node that was read otherwise why the kubelet has not told something.
func silent(n *kubeletnode.Node, otherErr error, what string, why error) (*kubeletnode.Node, error) {
	if otherErr != nil {
		return nil, errors.Join(otherErr, why)
	}
	n.Lacks(what, why)
	return n, nil
}

// follow reads the node again when it has changed.
func (f *follower) follow(ctx context.Context) error {
	changed := make(chan struct{}, 1)
	note := func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	var watches sync.WaitGroup
	defer watches.Wait()
	ctx, end := context.WithCancel(ctx)
	defer end()
	dir := filepath.Join(f.Config.Observe.Root, f.last.Dir)
	watches.Go(func() { f.watch(ctx, dir, note) })
	watches.Go(func() { f.Watch(ctx, dir, note) })
	whole := time.NewTicker(anyway)
	defer whole.Stop()
	all := false
	for {
		select {
		case <-changed:
		case <-whole.C:
			all = true
		case <-f.Reloads:
			f.Log.WarnContext(ctx, "berthd does not read its own configuration again while it observes (observe.root): restart it")
			all = true
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := wait(ctx, settle); err != nil {
			return err
		}
		select {
		case <-changed: // it is read now
		default:
		}
		began := time.Now()
		err := f.refresh(ctx, all)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, errOther):
			return err
		case err != nil:
			all = all || errors.Is(err, errSilent) // a kubelet that comes back may have another configuration
			if before := f.problem.Swap(&err); before == nil || (*before).Error() != err.Error() {
				f.Log.ErrorContext(ctx, "the kubelet's node cannot be read, so the last reading counts", "error", err)
				f.tell(err)
			}
			note() // it is tried again
		default:
			if f.problem.Swap(nil) != nil {
				f.tell(nil)
			}
			all = f.untold // it may have another one since
		}
		if err := wait(ctx, min(max(apart, (share-1)*time.Since(began)), late)); err != nil {
			return err
		}
	}
}

func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// refresh reads the node, and takes what has changed.
func (f *follower) refresh(ctx context.Context, whole bool) error {
	next, err := f.read(ctx, whole)
	switch {
	case err != nil:
		return fmt.Errorf("read the node: %w", err)
	case f.last.Running && !next.Running: // what its command line says is not known
		return fmt.Errorf("%w: there is no process kubelet", errSilent)
	case next.lost(f.last) != nil:
		return fmt.Errorf("read the node: %w", next.lost(f.last))
	case !next.SameHost(f.last.Node):
		return errOther
	case next.same(f.last):
		return nil
	}
	return f.take(ctx, next)
}

// same reports whether two readings are of the same state.
func (r reading) same(o reading) bool {
	return r.Same(o.Node) && r.known == o.known &&
		slices.EqualFunc(r.pods, o.pods, func(a, b Pod) bool {
			m, n := a.Pod, b.Pod
			a.Pod, b.Pod = nil, nil
			return proto.Equal(m, n) && reflect.DeepEqual(a, b)
		})
}

// lost says which state files of an earlier reading are there and cannot be read any more.
func (r reading) lost(before reading) error {
	var errs []error
	for _, kind := range slices.Sorted(maps.Keys(r.Unread)) {
		if _, had := before.States[kind]; had {
			errs = append(errs, fmt.Errorf("state file of kind %s: %w", kind, r.Unread[kind]))
		}
	}
	return errors.Join(errs...)
}

// take makes the App what was read.
func (f *follower) take(ctx context.Context, next reading) error {
	pods := next.pods
	var err error
	if f.last.Node != nil {
		if pods, err = f.explain(ctx, next); err != nil {
			return err
		}
	}
	n, err := load(ctx, next.Node, Options{
		Root: f.Config.Observe.Root, Pods: pods, Now: f.Now, Unlisted: unlisted, settling: settling,
	})
	if err != nil {
		return err
	}
	if err := f.app.Take(ctx, n.app, func(uid string) bool { return f.unsure[uid] && !n.unsure[uid] }); err != nil {
		return errdefs.Internalf("the node as it was read is not consistent: %w", err)
	}
	news := slices.DeleteFunc(slices.Clone(n.Missing), func(text string) bool { return slices.Contains(f.missing, text) })
	for i, text := range news {
		if i == logged {
			f.Log.WarnContext(ctx, "not read", "more", len(news)-logged)
			break
		}
		f.Log.WarnContext(ctx, "not read", "what", text)
	}
	f.last, f.missing = next, n.Missing
	f.noteRejected(next.pods, n)
	return nil
}

func (f *follower) tell(problem error) {
	if f.changed != nil {
		f.changed(problem)
	}
}

// noteRejected notes which rejected pods of a reading are explained.
func (f *follower) noteRejected(pods []Pod, n *Node) {
	for _, p := range pods {
		uid := p.GetMetadata().GetUid()
		if p.Rejected() {
			f.unsure[uid] = n.unsure[uid] && n.options.later(p)
			f.explained[uid] = !f.unsure[uid]
		}
	}
}

// explain explains pods that the kubelet has rejected since the last reading, on the state of that reading. It returns the pods without
// those that are explained: the others are explained with the pods of the next reading.
func (f *follower) explain(ctx context.Context, next reading) (left []Pod, err error) {
	switch {
	case !next.known:
		return nil, nil
	case !f.last.known: // that state had other pods
		return next.pods, nil
	}
	left = []Pod{}
	exist := map[string]bool{}
	var there []app.Adopted
	lived := map[string]bool{}
	for _, p := range inOrder(f.last.pods) {
		if !p.Ended {
			lived[p.GetMetadata().GetUid()] = true
			there = append(there, app.Adopted{Pod: p.Pod, At: p.Started})
		}
	}
	l := newLoader(ctx, &Node{}, f.app, f.last.Node, Options{Root: f.Config.Observe.Root, Now: f.Now})
	state := "on the state that berthd had read at " + f.last.at.UTC().Format(time.RFC3339)
	for _, p := range next.pods {
		uid := p.GetMetadata().GetUid()
		exist[uid] = true
		switch {
		case !p.Rejected():
			left = append(left, p)
			delete(f.explained, uid) // a static pod has the same uid again
			continue
		case f.explained[uid]:
			continue
		}
		if f.unsure[uid] {
			left = append(left, p)
			continue
		}
		if lived[uid] {
			// It held on that state what it asked for. The kubelet has decided again, after all others.
			p.Started = next.at
			left = append(left, p)
			continue
		}
		unknown, err := l.reject(ctx, p, there, state, true)
		if err != nil {
			return nil, err
		}
		if unknown != "" { // pods that came after that reading may be why
			left = append(left, p)
		}
	}
	for _, known := range []map[string]bool{f.explained, f.unsure} {
		maps.DeleteFunc(known, func(uid string, _ bool) bool { return !exist[uid] })
	}
	return left, nil
}

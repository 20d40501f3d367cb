// Package usage reads the usage of CPUs and containers.
//
// It limits the cost of readings. Callers that come while a reading is in progress share it, and
// so do callers within Fresh of its end. A reading has at most MaxContainers containers and takes
// at most MaxTime.
//
// It computes no rates, because callers use different intervals. It reads only when it is called.
package usage

import (
	"cmp"
	"context"
	"iter"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/server/internal/reconcile"
)

// Bounds of readings.
const (
	Fresh         = 500 * time.Millisecond
	MaxContainers = 2000
	MaxTime       = 5 * time.Second
)

// Sources are the inputs of a reading. Functions may be nil.
type Sources struct {
	View func() *ledger.View
	// Bindings returns the containers of pods; nil means those of the view.
	Bindings func(*ledger.View) iter.Seq[ledger.Binding]
	// Details reads the cgroup of a container; false if there is none.
	Details func(ctx context.Context, b ledger.Binding) (cgroup.Details, bool)
	// CPUs returns how long each CPU was busy since the boot.
	CPUs   func() (map[int]time.Duration, error)
	Drifts func() []reconcile.Drift
	Now    func() time.Time
}

// Container counts what a container uses.
type Container struct {
	Owner ledger.Owner
	ID    string
	cgroup.Details
}

// Reading is the result of one reading. Callers share it and must not change it.
type Reading struct {
	Time       time.Time
	CPUs       map[int]time.Duration
	Containers []Container
	// Omitted is how many containers the bounds left out.
	Omitted int
	Drifts  []reconcile.Drift
}

// Reader reads for all callers.
type Reader struct {
	Sources
	mu sync.Mutex
	// last is the newest reading. under is closed when the one under way has ended; nil
	// without one.
	last  *Reading
	err   error
	under chan struct{}
}

// New makes a reader.
func New(s Sources) *Reader { return &Reader{Sources: s} }

// Read returns a reading that is at most Fresh old. The end of one caller's context does not
// end a reading that others wait for.
func (r *Reader) Read(ctx context.Context) (*Reading, error) {
	r.mu.Lock()
	if r.under == nil && r.last != nil && r.err == nil && r.Now().Sub(r.last.Time).Abs() < Fresh {
		defer r.mu.Unlock()
		return r.last, nil
	}
	under := r.under
	if under == nil {
		under = make(chan struct{})
		r.under = under
		go r.read(context.WithoutCancel(ctx), under)
	}
	r.mu.Unlock()
	select {
	case <-under:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last, r.err
}

func (r *Reader) read(ctx context.Context, under chan struct{}) {
	reading, err := r.readAll(ctx)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last, r.err, r.under = reading, err, nil
	close(under)
}

func (r *Reader) readAll(ctx context.Context) (*Reading, error) {
	out := &Reading{Time: r.Now()}
	if r.CPUs != nil {
		var err error
		if out.CPUs, err = r.CPUs(); err != nil {
			return nil, err
		}
	}
	if r.Drifts != nil {
		out.Drifts = r.Drifts()
	}
	if r.Details == nil {
		return out, nil
	}
	out.Omitted = Each(ctx, r.View(), r.Bindings, r.Details, func(b ledger.Binding, used cgroup.Details) {
		out.Containers = append(out.Containers, Container{b.Owner, b.ID, used})
	})
	return out, nil
}

// Each reads the containers of all admitted pods within the bounds. Of a container that was
// started again, it reads the newest cgroup that exists. It returns how many containers it has
// left out. bindings is Sources.Bindings.
func Each[U any](ctx context.Context, view *ledger.View, bindings func(*ledger.View) iter.Seq[ledger.Binding],
	read func(context.Context, ledger.Binding) (U, bool), use func(ledger.Binding, U)) (omitted int) {
	ctx, cancel := context.WithTimeout(ctx, MaxTime)
	defer cancel()
	if bindings == nil {
		bindings = (*ledger.View).Bindings
	}
	bound := map[ledger.Owner][]ledger.Binding{}
	for b := range bindings(view) {
		if _, admitted := view.Pod(b.Owner.Pod); admitted {
			bound[b.Owner] = append(bound[b.Owner], b)
		}
	}
	left := MaxContainers
	for _, owner := range slices.SortedFunc(maps.Keys(bound), func(a, b ledger.Owner) int {
		return cmp.Or(cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.Container, b.Container))
	}) {
		if left == 0 || ctx.Err() != nil {
			omitted++
			continue
		}
		for _, b := range slices.Backward(bound[owner]) {
			if used, ok := read(ctx, b); ok {
				left--
				use(b, used)
				break
			}
		}
	}
	return omitted
}

package observer

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/claimrecord"
	"github.com/berthd/berth/managers/recovery"
	"github.com/berthd/berth/managers/workload"
)

// Observer reads what pods have. It has no state, and is safe for concurrent use.
type Observer struct {
	Tree   cgroup.Tree
	Layout cgroup.Layout
	// Records stores the pods' claim records; nil if they cannot be stored.
	Records cgroup.Records
	// Unseen means that the tree is not the kernel's, so it shows no processes.
	Unseen bool
	Now    func() time.Time
	Log    *slog.Logger
}

// Pods returns the observed state of all pods with a cgroup or a claim record, by
// uid. unseen means that processes are not visible.
func (w *Observer) Pods(ctx context.Context) (all []recovery.Observation, unseen bool, err error) {
	if files, ok := w.Records.(cgroup.NamedRecords); ok && w.Unseen {
		return w.observeFiles(ctx, files)
	}
	seen, err := w.Tree.Observe(ctx, w.Layout.Pods(), -1)
	if err != nil {
		return nil, false, fmt.Errorf("observe the cgroup tree: %w", err)
	}
	byUID := map[string]*recovery.Observation{}
	for i := range seen.Nodes {
		n := &seen.Nodes[i]
		uid, ok := w.Layout.PodUID(n.Name)
		if !ok || n.State == cgroup.Absent {
			continue
		}
		o := byUID[uid]
		if o == nil {
			o = &recovery.Observation{UID: uid, Processes: recovery.Empty}
			byUID[uid] = o
		}
		if err := w.observePod(ctx, seen, n.Name, o); err != nil {
			return nil, false, err
		}
	}
	for _, uid := range slices.Sorted(maps.Keys(byUID)) {
		all = append(all, *byUID[uid])
	}
	return all, false, nil
}

// observePod adds the state of one cgroup of a pod. If a pod has several cgroups, the one
// with processes counts.
func (w *Observer) observePod(ctx context.Context, seen *cgroup.Snapshot, name cgroup.Name, o *recovery.Observation) error {
	class := w.classOf(name)
	containers := map[string]*recovery.Container{}
	for i := range seen.Nodes {
		n := &seen.Nodes[i]
		if !n.Name.Within(name) || !n.Populated {
			continue
		}
		o.Processes, o.QoS = recovery.Running, class
		if len(n.Name) == len(name) {
			continue // a process outside the containers has no CPUs of its own
		}
		top := n.Name[:len(name)+1]
		c := containers[top.Base()]
		if c == nil {
			c = shownBy(seen.Find(top))
			containers[top.Base()] = c
		}
	}
	for _, key := range slices.Sorted(maps.Keys(containers)) {
		o.Containers = append(o.Containers, *containers[key])
	}
	if o.QoS == "" {
		o.QoS = class
	}
	if o.Record == recovery.Whole && o.QoS != class {
		return nil
	}
	return w.readRecord(ctx, name, o)
}

// shownBy returns the state of a container's cgroup.
func shownBy(n cgroup.Observed) *recovery.Container {
	c := &recovery.Container{Name: n.Name.Base(), CPUs: n.Values.CPUs, Mems: n.Values.Mems}
	if c.CPUs.IsEmpty() {
		c.CPUs = n.Effective.CPUs
	}
	if c.Mems.IsEmpty() {
		c.Mems = n.Effective.Mems
	}
	switch limit := n.Values.MemoryBytes; {
	case limit != nil && *limit > 0:
		c.MemoryBytes = uint64(*limit)
	case n.MemoryUsageBytes > 0:
		c.MemoryBytes = uint64(n.MemoryUsageBytes)
	}
	return c
}

// observeFiles returns the pods with a claim record.
func (w *Observer) observeFiles(ctx context.Context, files cgroup.NamedRecords) (all []recovery.Observation, unseen bool, err error) {
	names, err := files.Names()
	if err != nil {
		return nil, true, err
	}
	for _, base := range names {
		name := append(slices.Clone(w.Layout.Pods()), base)
		uid, ok := w.Layout.PodUID(name)
		if !ok {
			continue
		}
		o := recovery.Observation{UID: uid, Processes: recovery.Unseen}
		if err := w.readRecord(ctx, name, &o); err != nil {
			return nil, true, err
		}
		if o.Claims != nil {
			o.QoS = o.Claims.QoS
		}
		all = append(all, o)
	}
	return all, true, nil
}

// readRecord reads a pod's claim record. A record that cannot be read for the moment is an
// error: taken for a damaged one, its pod would lose what it holds.
func (w *Observer) readRecord(ctx context.Context, name cgroup.Name, o *recovery.Observation) error {
	if w.Records == nil {
		return nil
	}
	data, err := w.Records.ReadRecord(ctx, name)
	if err == nil && data == nil {
		return nil
	}
	if err == nil {
		o.Claims, err = claimrecord.Decode(o.UID, data)
	}
	switch errdefs.ClassOf(err) {
	case errdefs.Corrupt, errdefs.PermissionDenied:
		o.Record, o.Claims = recovery.Damaged, nil
		w.Log.WarnContext(ctx, "a claim record is not believed", "uid", o.UID, "error", err)
		return nil
	}
	if err != nil {
		return fmt.Errorf("read what pod %s holds: %w", o.UID, err)
	}
	o.Record = recovery.Whole
	return nil
}

// classOf returns the QoS class in whose tier a pod's cgroup is.
func (w *Observer) classOf(name cgroup.Name) workload.QoSClass {
	for _, class := range []workload.QoSClass{workload.Burstable, workload.BestEffort} {
		if w.Layout.Tier(class).Equal(name.Parent()) {
			return class
		}
	}
	return workload.Guaranteed
}

// Known returns what is known of a running pod that is not in a view of the ledger, if it was found
// while berthd runs.
func (w *Observer) Known(ctx context.Context, view *ledger.View, uid string) ledger.UnknownLivePod {
	bare := ledger.UnknownLivePod{UID: uid, Since: w.Now()}
	all, unseen, err := w.Pods(ctx)
	if err != nil {
		w.Log.ErrorContext(ctx, "reading the resources of a running pod failed", "uid", uid, "error", err)
		return bare
	}
	at := slices.IndexFunc(all, func(o recovery.Observation) bool { return o.UID == uid })
	if at < 0 {
		return bare
	}
	plan := recovery.Decide(recovery.Input{View: view, Observed: all, BootID: view.BootID(), Unseen: unseen, Now: w.Now()})
	draft := ledger.NewDraft(view)
	plan.Apply(draft)
	if u, ok := draft.View().UnknownLivePod(uid); ok {
		return u
	}
	return bare
}

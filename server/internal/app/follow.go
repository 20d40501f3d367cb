package app

import (
	"context"
	"errors"
	"reflect"
	"time"

	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/history"
	"github.com/berthd/berth/server/internal/socket"
	"github.com/berthd/berth/server/internal/task"
)

// Serve answers calls about a node that is only observed, while follow keeps the App as the node is. It returns when ctx or follow has
// ended, and everything has stopped. ready is called once, when the socket answers; it may be nil.
func (a *App) Serve(ctx context.Context, follow func(context.Context) error, ready func()) (err error) {
	g, s := a.given, a.servers
	defer func() { err = errors.Join(err, a.opened.close()) }()
	if !g.Service.Has(g.Config.Listen) {
		if err := socket.Unserved(g.Config.Listen); err != nil {
			return err
		}
	}
	if err := s.listen(g); err != nil {
		return err
	}
	tasks := task.New()
	tasks.Go("kubelet's node", follow)
	return a.serve(ctx, tasks, ready)
}

// Take makes what another App has of the same machine this one's: the pods with what they hold, the devices, and the explanations of
// rejected pods that this one does not have, or that are better by their uids. What is equal is not changed.
func (a *App) Take(ctx context.Context, from *App, better func(uid string) bool) error {
	a.given.Observed.take(from.given.Observed.Devices, a.devices.inventory, a.given.Now())
	a.given.Observed.containers.Store(from.given.Observed.containers.Load())
	next, now := from.Ledger.View(), a.Ledger.View()
	var put []*ledger.Pod
	for p := range next.Pods() {
		old, ok := now.Pod(p.UID())
		if ok && samePod(old, p) {
			continue
		}
		record := *p
		record.AdmittedGeneration, record.ChangedGeneration = 0, 0
		if ok {
			record.AdmissionID, record.AdmittedAt, record.Trace = old.AdmissionID, old.AdmittedAt, old.Trace
			record.AdmittedGeneration = old.AdmittedGeneration
		}
		put = append(put, &record)
	}
	var gone []string
	for p := range now.Pods() {
		if _, ok := next.Pod(p.UID()); !ok {
			gone = append(gone, p.UID())
		}
	}
	var rejected []*ledger.Trace
	for _, t := range next.Traces() {
		known, ok := now.TraceOfPod(t.Pod)
		if !t.Admitted && (!ok || known.Admitted || better(t.Pod)) {
			rejected = append(rejected, t)
		}
	}
	if len(put)+len(gone)+len(rejected) == 0 {
		return nil
	}
	ctx = history.WithCall(ctx, &history.Call{Name: "Observe", Time: a.given.Now()})
	_, err := a.state.ledger.Update(ctx, func(d *ledger.Draft) error {
		for _, uid := range gone {
			d.RemovePod(uid)
		}
		for _, p := range put {
			d.PutPod(p)
		}
		for _, t := range rejected {
			d.PutTrace(t)
		}
		return nil
	})
	return err
}

// Explained takes the explanation of a rejected pod from another App.
func (a *App) Explained(ctx context.Context, from *App, uid string) error {
	t, ok := from.Ledger.View().TraceOfPod(uid)
	if !ok {
		return nil
	}
	_, err := a.state.ledger.Update(ctx, func(d *ledger.Draft) error { d.PutTrace(t); return nil })
	return err
}

// samePod reports whether two records of a pod differ only in what the one who has made them chose.
func samePod(a, b *ledger.Pod) bool {
	x, y := *a, *b
	for _, p := range []*ledger.Pod{&x, &y} {
		p.AdmissionID, p.Trace, p.AdmittedAt, p.AdmittedGeneration, p.ChangedGeneration = "", nil, time.Time{}, 0, 0
	}
	return reflect.DeepEqual(x, y)
}

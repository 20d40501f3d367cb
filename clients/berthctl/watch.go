package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"

	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/clients/berth"
)

const watchLong = `Show every change as it happens, until interrupted: pods that come and go, container ids that are bound, the shared
CPUs, device plugins and the health of devices. It begins with what is there, or with --from after a revision that was
shown before. A restart of berthd does not end it; what happened meanwhile is shown then.

--timeout ends it after that time; without, it goes on.`

func (c *ctl) watch() *cobra.Command {
	var from uint64
	var cmd *cobra.Command
	cmd = c.local(about{
		use:   "watch [--from REVISION]",
		short: "Show what changes, as it happens",
		long:  watchLong,
		example: `  berthctl watch
  berthctl watch --from 120 -o json`,
	}, func(ctx context.Context, _ []string) error {
		if !cmd.Flags().Changed("timeout") {
			c.timeout = 0
		}
		return c.connected(ctx, func(ctx context.Context, s *session) error {
			w := &watcher{session: s, revision: from, names: names{}}
			if from > 0 {
				w.names = s.names(ctx)
			}
			return w.run(ctx)
		})
	})
	cmd.Flags().Uint64Var(&from, "from", 0, "a revision that was shown before; 0 begins with what is there")
	return cmd
}

// watcher is one run of watch.
type watcher struct {
	*session
	// revision up to which all was shown.
	revision uint64
	// seen is set once something came.
	seen  bool
	names names
}

// run shows events, over restarts of berthd, until the context ends.
func (w *watcher) run(ctx context.Context) error {
	for {
		err := w.stream(ctx)
		var failed *berth.Error
		switch errors.As(err, &failed); {
		case !w.seen || failed == nil:
			return err
		case ctx.Err() != nil:
			return nil
		case failed.Code == codes.OutOfRange:
			fmt.Fprintf(w.err, "%s; beginning with what is there\n", failed.Message)
			w.revision = 0
		case failed.Code == codes.Unavailable:
			fmt.Fprintln(w.err, "berthd has gone; waiting for it")
			if err := w.WaitReady(ctx); err != nil && ctx.Err() == nil {
				return err
			}
		default:
			return err
		}
	}
}

// stream shows the events of one stream; it returns what ended it.
func (w *watcher) stream(ctx context.Context) error {
	events, err := w.Allocation().Watch(ctx, &allocationv1.WatchRequest{FromRevision: w.revision})
	if err != nil {
		return err
	}
	for {
		e, err := events.Recv()
		if err != nil {
			return err
		}
		w.revision, w.seen = e.GetRevision(), true
		w.learn(e)
		if err := w.print(e); err != nil {
			return err
		}
	}
}

// learn keeps the name of a pod that comes.
func (w *watcher) learn(e *allocationv1.WatchResponse) {
	if p := e.GetPod(); p != nil && w.names != nil {
		w.names[p.GetUid()] = podName(p)
	}
}

func (w *watcher) print(e *allocationv1.WatchResponse) error {
	if !w.forPrograms() && e.GetType() == allocationv1.EventType_EVENT_TYPE_BOOKMARK {
		return nil
	}
	return w.show(e, func(out io.Writer) {
		what, text := w.text(e)
		fmt.Fprintf(out, "%-6d  %-8s  %s\n", e.GetRevision(), what, text)
	})
}

// text says what an event is about, and what happened.
func (w *watcher) text(e *allocationv1.WatchResponse) (what, text string) {
	switch e.GetType() {
	case allocationv1.EventType_EVENT_TYPE_ADDED:
		return "added", w.podText(e.GetPod())
	case allocationv1.EventType_EVENT_TYPE_CHANGED:
		return "changed", w.podText(e.GetPod())
	case allocationv1.EventType_EVENT_TYPE_REMOVED:
		return "removed", podName(e.GetPod())
	case allocationv1.EventType_EVENT_TYPE_BOUND, allocationv1.EventType_EVENT_TYPE_UNBOUND:
		b := e.GetBinding()
		owner := w.names.owner(b.GetPodUid() + "/" + b.GetContainerName())
		if e.GetType() == allocationv1.EventType_EVENT_TYPE_BOUND {
			return "bound", b.GetContainerId() + " is " + owner
		}
		return "unbound", b.GetContainerId() + " is " + owner + " no more"
	case allocationv1.EventType_EVENT_TYPE_SHARED_CPUS:
		return "shared", orNone(e.GetSharedCpus().GetCpus(), cpuNoun)
	case allocationv1.EventType_EVENT_TYPE_RESOURCE:
		return "resource", resourceText(e.GetResource())
	case allocationv1.EventType_EVENT_TYPE_DEVICE_HEALTH:
		return "device", w.deviceText(e.GetDevice())
	}
	return strings.ToLower(strings.TrimPrefix(e.GetType().String(), "EVENT_TYPE_")), ""
}

// podText spells what a pod holds.
func (w *watcher) podText(p *typesv1.PodAllocation) string {
	text := podName(p) + " on " + orNone(ownCPUs(p).String(), func(list string) string { return cpuNoun(list) + " of its own" })
	claims := allClaims(p)
	if m := memory(claims); m != "" {
		text += ", " + m
	}
	if d := deviceCounts(claims); d != "" {
		text += ", " + d
	}
	return text
}

// orNone spells a list of CPUs; an empty one is the shared pool.
func orNone(list string, spell func(string) string) string {
	if list == "" {
		return "the shared CPUs"
	}
	return spell(list)
}

func resourceText(r *allocationv1.DeviceResource) string {
	text := fmt.Sprintf("%s: plugin %s, %d of %d healthy", r.GetName(), r.GetPlugin(), r.GetAllocatable(), r.GetCapacity())
	if list := r.GetUnhealthyDevices(); len(list) > 0 {
		text += ", not " + joined(list)
	}
	return text
}

func (w *watcher) deviceText(d *allocationv1.DeviceHealth) string {
	health := d.GetDevice().GetHealth()
	if health == "" {
		health = "missing"
	}
	text := fmt.Sprintf("%s %s is %s", d.GetResource(), d.GetDevice().GetId(), health)
	if len(d.GetHolders()) > 0 {
		text += ", held by " + w.names.owners(d.GetHolders())
	}
	return text
}

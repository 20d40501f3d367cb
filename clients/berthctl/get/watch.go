package get

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/api/sentences"
	"github.com/berthd/berth/clients/internal/command"
	"github.com/berthd/berth/clients/internal/output"
)

const watchLong = `Show every change as it happens, until interrupted: added, changed and removed pods, container ids, the shared
CPUs, device plugins and the health of devices. Each line begins with the time at which berthctl received it, and the
revision. The output begins with the current state, or with --from after a revision
of an earlier output. The command continues after a restart of berthd, and then shows the changes in between. --types
selects kinds of changes. --namespace, --resource and --owner select pods and their containers; a pod must match all.

With --timeout the command ends after that time; without it, the command does not end.`

func Watch(c *command.Ctl) *cobra.Command {
	var from uint64
	var types []string
	req := &allocationv1.WatchRequest{}
	var in command.Namespaces
	var cmd *cobra.Command
	cmd = c.Local(command.About{
		Use:   "watch [--from REVISION] [--types TYPE,…] [--namespace NAMESPACE | -A] [--resource NAME] [--owner NAME]",
		Short: "Show changes as they happen",
		Long:  watchLong,
		Example: `  berthctl watch
  berthctl watch --types added,removed --namespace default
  berthctl watch --from 1806172160000006 -o json`,
	}, func(ctx context.Context, _ []string) error {
		if err := in.Check("watch"); err != nil {
			return err
		}
		req.Namespace = in.Namespace
		var err error
		if req.Types, err = eventTypes(types); err != nil {
			return err
		}
		c.Lines = true
		if !cmd.Flags().Changed("timeout") {
			c.Timeout = 0
		}
		return c.Connected(ctx, func(ctx context.Context, s *command.Session) error {
			p := &eventPrinter{Session: s, names: command.Names{}}
			if from > 0 {
				p.names = s.Names(ctx)
			}
			return s.Followed(ctx, (&command.Watcher{Session: s, Request: req, Revision: from, Each: p.print}).Run)
		})
	})
	f := cmd.Flags()
	f.Uint64Var(&from, "from", 0, "a revision that was shown before; 0 starts with the current state")
	f.StringSliceVar(&types, "types", nil, "show only these: "+strings.Join(typeNames(), ", "))
	in.Flags(f, "show only pods of this namespace and their containers")
	f.StringVar(&req.Resource, "resource", "", "show only pods that hold this resource, their containers, and its devices")
	f.StringVar(&req.Owner, "owner", "", "show only pods of this agent, such as berthlet or kubernetes, and their containers")
	return cmd
}

// typeName is the name of a type of events in flags, such as "shared-cpus".
func typeName(t allocationv1.EventType) string {
	return command.Word(t, "EVENT_TYPE_")
}

func typeNames() (out []string) {
	for t := range allocationv1.EventType_name {
		if t != 0 {
			out = append(out, typeName(allocationv1.EventType(t)))
		}
	}
	slices.Sort(out)
	return out
}

// eventTypes reads the names of types.
func eventTypes(list []string) (out []allocationv1.EventType, err error) {
	for _, name := range list {
		n, known := allocationv1.EventType_value["EVENT_TYPE_"+strings.ToUpper(strings.ReplaceAll(name, "-", "_"))]
		if !known || n == 0 {
			return nil, command.Usagef("watch", "--types: no events are called %q, only %s", name, strings.Join(typeNames(), ", "))
		}
		out = append(out, allocationv1.EventType(n))
	}
	return out, nil
}

// eventPrinter prints events, with names for the uids of pods.
type eventPrinter struct {
	*command.Session
	names command.Names
}

// line is an event as programs read it.
type line struct {
	Type string `json:"type"`
	// Revision is where a later watch may begin without missing an event.
	Revision uint64          `json:"revision"`
	Initial  bool            `json:"initial"`
	Object   json.RawMessage `json:"object,omitempty"`
}

// print shows a message: a line for each event.
func (w *eventPrinter) print(message *allocationv1.WatchResponse) error {
	if w.ForPrograms() {
		return w.printLines(message)
	}
	if len(message.GetEvents()) == 0 {
		return nil
	}
	return w.Say(func(out io.Writer) {
		for _, e := range message.GetEvents() {
			what, text := w.text(e)
			fmt.Fprintf(out, "%s  %-6d  %-8s  %s\n", w.Now().Format(time.TimeOnly), resumeAt(message, e), what, text)
		}
	})
}

// resumeAt is the revision to show with an event: a watch from there misses nothing, not what is in the next message.
func resumeAt(message *allocationv1.WatchResponse, e *allocationv1.Event) uint64 {
	return min(e.GetRevision(), message.GetRevision())
}

// printLines prints a message for programs.
func (w *eventPrinter) printLines(message *allocationv1.WatchResponse) error {
	var lines []line
	for _, e := range message.GetEvents() {
		l := line{Type: "unknown", Revision: resumeAt(message, e), Initial: message.GetInitial()}
		m := e.ProtoReflect()
		if f := m.WhichOneof(m.Descriptor().Oneofs().ByName("event")); f != nil {
			l.Type = strings.ReplaceAll(string(f.Name()), "_", "-")
			var err error
			if l.Object, err = output.Field(m, f); err != nil {
				return fmt.Errorf("print the answer: %w", err)
			}
		}
		lines = append(lines, l)
	}
	if len(lines) == 0 {
		lines = []line{{Type: "bookmark", Revision: message.GetRevision(), Initial: message.GetInitial()}}
	}
	for _, l := range lines {
		raw, err := json.Marshal(l)
		if err != nil {
			return fmt.Errorf("print the answer: %w", err)
		}
		if err := w.Ctl.Print("Event", raw); err != nil {
			return err
		}
	}
	return nil
}

// text returns the subject of an event, and what happened.
func (w *eventPrinter) text(event *allocationv1.Event) (what, text string) {
	switch e := event.GetEvent().(type) {
	case *allocationv1.Event_Added:
		w.learn(e.Added)
		return "added", w.podText(e.Added)
	case *allocationv1.Event_Changed:
		w.learn(e.Changed)
		return "changed", w.podText(e.Changed)
	case *allocationv1.Event_Removed:
		return "removed", command.PodName(e.Removed)
	case *allocationv1.Event_Bound:
		return "bound", e.Bound.GetContainerId() + " is " + w.owner(e.Bound)
	case *allocationv1.Event_Unbound:
		return "unbound", e.Unbound.GetContainerId() + " is " + w.owner(e.Unbound) + " no more"
	case *allocationv1.Event_SharedCpus:
		return "shared", orNone(e.SharedCpus.GetList(), sentences.CPUNoun)
	case *allocationv1.Event_DeviceResource:
		return "resource", resourceText(e.DeviceResource, w.Kubelet == "")
	case *allocationv1.Event_DeviceHealth:
		return "device", w.deviceText(e.DeviceHealth)
	case *allocationv1.Event_Policy:
		return "policy", policyText(e.Policy)
	case *allocationv1.Event_Machine:
		return "machine", machineText(e.Machine)
	}
	return "unknown", "an event of an unknown type: use a newer berthctl"
}

// learn keeps the name of a pod.
func (w *eventPrinter) learn(p *typesv1.PodAllocation) {
	if w.names != nil {
		w.names[p.GetUid()] = command.PodName(p)
	}
}

func (w *eventPrinter) owner(b *allocationv1.ContainerBinding) string {
	return w.names.Owner(&typesv1.ContainerRef{PodUid: b.GetPodUid(), ContainerName: b.GetContainerName()})
}

func policyText(p *allocationv1.PolicyState) string {
	text := "as configured"
	if p.GetOverridden() {
		text = "set at " + p.GetSetTime().AsTime().Format(time.RFC3339)
	}
	if cpus := p.GetReservedCpus().GetList(); cpus != "" {
		text += ", " + sentences.CPUNoun(cpus) + " reserved"
	}
	return text
}

func machineText(m *allocationv1.MachineState) string {
	text := sentences.CPUNoun(m.GetCpus().GetList())
	if offline := m.GetOfflineCpus().GetList(); offline != "" {
		text += ", of which " + offline + " offline"
	}
	return text
}

// podText returns what a pod holds.
func (w *eventPrinter) podText(p *typesv1.PodAllocation) string {
	text := command.PodName(p) + " on " + orNone(command.OwnCPUs(p).String(),
		func(list string) string { return sentences.CPUNoun(list) + " of its own" })
	claims := command.AllClaims(p)
	if m := command.Memory(claims); m != "" {
		text += ", " + m
	}
	if d := command.DeviceCounts(claims); d != "" {
		text += ", " + d
	}
	if m := movingText(p); m != "" {
		text += ", " + m
	}
	return text
}

// movingText is empty for a pod that does not move.
func movingText(p *typesv1.PodAllocation) string {
	switch {
	case !p.GetMoving():
		return ""
	case p.GetMoveReason() == "":
		return "moving"
	}
	return "moving: " + p.GetMoveReason()
}

// orNone returns a list of CPUs; an empty one is the shared pool.
func orNone(list string, text func(string) string) string {
	if list == "" {
		return "the shared CPUs"
	}
	return text(list)
}

// resourceText describes a resource. Whether a kubelet has a connection to the plugin is not known.
func resourceText(r *allocationv1.DeviceResource, known bool) string {
	text := r.GetName() + ": "
	if known {
		text += "plugin " + convert.Word(r.GetPluginState()) + ", "
	}
	text += fmt.Sprintf("%d of %d healthy", r.GetAllocatable(), r.GetCapacity())
	if list := r.GetUnhealthyDevices(); len(list) > 0 {
		text += ", not " + command.Joined(list)
	}
	return text
}

func (w *eventPrinter) deviceText(d *allocationv1.DeviceHealth) string {
	text := fmt.Sprintf("%s %s is %s", d.GetResource(), d.GetDevice().GetId(), cmp.Or(command.Health(d.GetDevice().GetHealth()), "missing"))
	if len(d.GetHolders()) > 0 {
		text += ", held by " + w.names.Owners(d.GetHolders())
	}
	return text
}

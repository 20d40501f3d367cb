package app

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"

	"golang.org/x/time/rate"

	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/server/internal/rpc"
	"github.com/berthd/berth/server/internal/rpc/node"
)

// reloadable lists the fields, and the beginnings of fields that end with a dot, that can
// change while berthd runs; docs/operate.md lists them too.
var reloadable = []string{
	"access", "log.level",
	"limits.call", "limits.messageElements", "limits.podResourcesBurst", "limits.podResourcesPerSecond", "limits.userCalls",
	"limits.userConnections",
	"cpu.", "memory.", "reserved.", "topology.",
}

// fixed reports why other fields need a restart.
var fixed = []struct{ prefix, why string }{
	{"apiVersion", "it names the format of the file"},
	{"kind", "it names the format of the file"},
	{"cgroups.", "the cgroups of running pods were created with it"},
	{"devices.", "device plugins have registered with the previous value"},
	{"observe.", "it decides whether berthd decides"},
	{"beside", "it decides which sockets berthd serves and who writes the cgroups"},
	{"devicePluginDir", "device plugins are connected there"},
	{"dra.", "the managers divide CPUs and memory by it at the start"},
	{"features.", "running pods were admitted with the previous value"},
	{"history.", "the ledger is opened with it"},
	{"hotplug.", "berthd reads it at the start only"},
	{"moves.", "berthd reads it at the start only"},
	{"http", "the socket or port is opened at the start"},
	{"kubeletMetrics", "metrics are registered at the start"},
	{"limits.", "buffers are allocated for it at the start"},
	{"listen", "the socket is opened at the start"},
	{"log.format", "the log is opened at the start"},
	{"machine", "the ledger belongs to one machine"},
	{"node.", "the node is checked and set up at the start"},
	{"pluginRegistryDir", "the watch of the directory begins at the start"},
	{"podResourcesDir", "the socket is opened at the start"},
	{"privileges.", "a process cannot regain privileges that it dropped"},
	{"providers.", "providers have registered with the previous value"},
	{"rootDir", "files and sockets are open there"},
	{"runtimeEndpoint", "containers are tracked through this runtime"},
	{"stateDir", "the ledger is open there"},
	{"strictState", "berthd looks for damage only at the start"},
	{"verdicts.", "berthd reads it at the start only"},
}

// isReloadable reports whether a field can change while berthd runs.
func isReloadable(field string) bool {
	return slices.ContainsFunc(reloadable, func(r string) bool {
		return field == r || strings.HasSuffix(r, ".") && strings.HasPrefix(field, r)
	})
}

// restartReason reports why a field cannot change while berthd runs.
func restartReason(field string) string {
	for _, f := range fixed {
		if strings.HasPrefix(field, f.prefix) {
			return "needs a restart: " + f.why
		}
	}
	return "needs a restart"
}

// reloader puts a changed configuration into force.
type reloader struct {
	given    *given
	policies *policies
	deciding *deciding
	servers  *servers
}

// Reload reads the configuration again and puts into force what can change. The outcome
// lists every field that differs. An error means that nothing has changed.
func (r *reloader) Reload(ctx context.Context, dryRun bool) (node.Reloaded, error) {
	if r.given.Load == nil {
		return node.Reloaded{}, errdefs.Preconditionf("this berthd was started without files to read again")
	}
	p := r.policies
	p.mu.Lock() // one change of the configuration or the policy at a time
	defer p.mu.Unlock()
	now := p.files()
	next, notes, err := r.given.Load()
	if err != nil {
		return node.Reloaded{}, err
	}
	changes, err := differences(now, next)
	if err != nil {
		return node.Reloaded{}, err
	}
	policy, inTheWay := withoutTaken(p.state.ledger.View(), now, next)
	out := node.Reloaded{Changes: changes, Notes: notes}
	for i := range out.Changes {
		c := &out.Changes[i]
		switch {
		case c.Field == "reserved.cpus" && inTheWay != "":
			c.Reason = inTheWay
		case isReloadable(c.Field):
			c.Applied = true
		default:
			c.Reason = restartReason(c.Field)
		}
	}
	into := now.With(policy)
	into.Access, into.Log.Level = next.Access, next.Log.Level
	l := &into.Limits
	l.Call, l.MessageElements, l.UserCalls, l.UserConnections = next.Limits.Call, next.Limits.MessageElements, next.Limits.UserCalls,
		next.Limits.UserConnections
	l.PodResourcesPerSecond, l.PodResourcesBurst = next.Limits.PodResourcesPerSecond, next.Limits.PodResourcesBurst
	if err := into.Validate(); err != nil {
		return node.Reloaded{}, fmt.Errorf("with the fields that need a restart as they are: %w", err)
	}
	if err := r.adopt(ctx, now, into, dryRun); err != nil || dryRun {
		return out, err
	}
	logReload(ctx, out, r.given.Log)
	return out, nil
}

// adopt puts a configuration into force that differs from the one in force only where it may.
func (r *reloader) adopt(ctx context.Context, now, into config.Config, dryRun bool) error {
	before, err := now.Digest()
	if err != nil {
		return err
	}
	after, err := into.Digest()
	if err != nil {
		return err
	}
	// A policy that was set by a call stays until files and flags have another one.
	if before != after {
		keep := func(string) (*ledger.Override, error) { return nil, nil }
		if _, _, err := r.policies.change(ctx, into, keep, dryRun); err != nil {
			return err
		}
	}
	if dryRun {
		return nil
	}
	if mode := into.SocketMode(); mode != now.SocketMode() {
		if err := r.servers.agentSocket.SetMode(mode); err != nil {
			return err
		}
	}
	r.deciding.access.Change(into.Access)
	if err := r.deciding.external.EndRegistrations(ctx); err != nil {
		r.given.Log.WarnContext(ctx, "ending the registrations of users without the role provider failed; berthd tries again", "error", err)
	}
	l := into.Limits
	r.servers.main.SetLimits(rpc.Limits{Connections: l.UserConnections, Calls: l.UserCalls, MaxElements: l.MessageElements,
		Ceiling: l.Call.Duration})
	r.servers.readers.SetLimits(rpc.Limits{MaxElements: l.MessageElements, Ceiling: l.Call.Duration})
	r.servers.readersLimit.SetLimit(rate.Limit(l.PodResourcesPerSecond))
	r.servers.readersLimit.SetBurst(l.PodResourcesBurst)
	if level := r.given.LogLevel; level != nil {
		if err := level.UnmarshalText([]byte(into.Log.Level)); err != nil {
			return err
		}
	}
	r.policies.reloaded.Store(&into)
	return nil
}

// withoutTaken returns the policy of a configuration. CPUs that it would reserve stay as they
// are if a container has one of them for itself; inTheWay then names it.
func withoutTaken(view *ledger.View, now, next config.Config) (p config.Policy, inTheWay string) {
	p = next.Policy()
	if added := next.Reserved.CPUs.Minus(now.Reserved.CPUs); !added.IsEmpty() {
		if inTheWay = holder(view, added); inTheWay != "" {
			p.Reserved.CPUs = now.Reserved.CPUs
		}
	}
	return p, inTheWay
}

// holder names a container that has one of the CPUs for itself; empty if there is none.
func holder(view *ledger.View, cpus cpuset.Set) string {
	if view.ExclusiveCPUs().Intersect(cpus).IsEmpty() {
		return ""
	}
	for pod := range view.Pods() {
		for _, c := range pod.Pod.Walk() {
			set, exclusive, _ := view.ContainerCPUs(ledger.Owner{Pod: pod.UID(), Container: c.Name})
			if taken := set.Intersect(cpus); exclusive && !taken.IsEmpty() {
				return fmt.Sprintf("container %s of pod %s has CPU %s for itself: remove the pod and reload, or reserve other CPUs",
					c.Name, &pod.Pod, taken)
			}
		}
	}
	return fmt.Sprintf("a pod has CPU %s for itself: remove the pod and reload, or reserve other CPUs",
		view.ExclusiveCPUs().Intersect(cpus))
}

// logReload logs the changes of a reload, and the changes that need a restart.
func logReload(ctx context.Context, r node.Reloaded, log *slog.Logger) {
	for _, n := range r.Notes {
		log.WarnContext(ctx, n)
	}
	for _, c := range r.Changes {
		if c.Applied {
			log.InfoContext(ctx, "the configuration was changed", "field", c.Field, "from", c.From, "to", c.To)
		} else {
			log.WarnContext(ctx, "a field of the configuration is not in force", "field", c.Field, "in_force", c.From, "in_file", c.To,
				"reason", c.Reason)
		}
	}
	if len(r.Changes) == 0 {
		log.InfoContext(ctx, "the configuration was read again, and nothing has changed")
	}
}

// differences lists the fields in which two configurations differ, by name.
func differences(now, next config.Config) ([]node.FieldChange, error) {
	from, err := now.Fields()
	if err != nil {
		return nil, err
	}
	to, err := next.Fields()
	if err != nil {
		return nil, err
	}
	names := maps.Clone(from)
	maps.Copy(names, to)
	var out []node.FieldChange
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if from[name] != to[name] {
			out = append(out, node.FieldChange{Field: name, From: from[name], To: to[name]})
		}
	}
	return out, nil
}

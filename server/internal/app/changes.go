package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/api/trust"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/machine"
	nodes "github.com/berthd/berth/managers/node"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/server/internal/host/hotplug"
	"github.com/berthd/berth/server/internal/host/sysfs"
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
		r.given.Log.WarnContext(ctx, "end the registrations of users without the role provider; berthd tries again", "error", err)
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
	from, err := fields(now)
	if err != nil {
		return nil, err
	}
	to, err := fields(next)
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

// fields returns the values of a configuration as JSON, by the names of their fields.
func fields(c config.Config) (map[string]string, error) {
	text, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	var tree map[string]json.RawMessage
	if err := json.Unmarshal(text, &tree); err != nil {
		return nil, err
	}
	out := map[string]string{}
	spread(out, "", tree)
	return out, nil
}

func spread(out map[string]string, prefix string, tree map[string]json.RawMessage) {
	for name, text := range tree {
		var below map[string]json.RawMessage
		if json.Unmarshal(text, &below) == nil && len(below) > 0 {
			spread(out, prefix+name+".", below)
			continue
		}
		out[prefix+name] = string(text)
	}
}

// AfterMachineChange is the failure point after the commit of a changed machine, before the
// managers, the limits and the cgroups follow it.
const AfterMachineChange = "app/after-machine-change"

// measure returns the machine to work on, and facts of the running system; none if the machine is simulated.
func measure(c config.Config) (m *machine.Topology, facts nodes.Facts, err error) {
	if m, err = findMachine(c.Machine); err == nil && c.Machine == "" {
		facts, err = measureHost(c)
	}
	return m, facts, err
}

// findMachine returns the machine to work on: the one that a snapshot file or a
// shape describes, or with neither the one that berthd runs on.
func findMachine(fileOrShape string) (*machine.Topology, error) {
	if fileOrShape == "" {
		snapshot, err := sysfs.Host()
		if err != nil {
			return nil, err
		}
		return machine.New(snapshot)
	}
	data, err := readMachine(fileOrShape)
	if err == nil {
		return machine.Load(data)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, errdefs.Invalidf("read the machine %s: %w", fileOrShape, err)
	}
	snapshot, err := machine.ParseShape(fileOrShape)
	if err != nil {
		return nil, errdefs.Invalidf("machine %q is neither a file nor a shape: %w", fileOrShape, err)
	}
	return machine.New(snapshot)
}

// largestMachine is the most of a machine's file that is read; the one of 4,096 CPUs has less than 1 MiB.
const largestMachine = 64 << 20

// readMachine reads a machine's file, at every poll.
func readMachine(file string) ([]byte, error) {
	return trust.ReadFile(file, largestMachine)
}

// probe returns a text that differs after each change of the machine; false for a machine
// that cannot change.
func (m *machineChanges) probe() (text string, changes bool, err error) {
	if m.given.Config.Machine == "" {
		text, err := sysfs.ProbeHost(m.inUse().CPUs())
		return text, true, err
	}
	data, err := readMachine(m.given.Config.Machine)
	if errors.Is(err, fs.ErrNotExist) {
		return "", false, nil // a shape
	}
	return string(data), true, err
}

// machineChanges makes the managers, the ledger and the cgroups follow a changed machine.
type machineChanges struct {
	given    *given
	policies *policies
	// places is the present machine with the CPUs that have gone offline, see notePlaces.
	places atomic.Pointer[machine.Topology]
	// settingPages is held while huge pages are set by a call. pagesSet has an element after such a change that berthd may not have
	// noticed.
	settingPages sync.Mutex
	pagesSet     chan struct{}
	// following is held from the reading of a machine to its commit. Otherwise a machine that was read before huge pages were set
	// could come into force after them, and a CPU that went offline meanwhile could come back.
	following sync.Mutex
}

func newMachineChanges(p *policies) *machineChanges {
	return &machineChanges{given: p.given, policies: p, pagesSet: make(chan struct{}, 1)}
}

// inUse returns the machine in use.
func (m *machineChanges) inUse() *machine.Topology { return m.policies.state.ledger.View().Machine() }

// comparison is the state of the comparison of the machine with the one in use.
type comparison struct {
	debounce machine.Debounce
	// probed is the last text of a probe whose machine needs nothing more.
	probed string
	// failed is the last error, as it was logged.
	failed string
}

// calm is how long events of the kernel may be collected: one action causes several.
const calm = 50 * time.Millisecond

// follow compares the machine with the one in use, after each event of the kernel and
// periodically.
func (m *machineChanges) follow(ctx context.Context) error {
	if _, changes, err := m.probe(); !changes && err == nil {
		<-ctx.Done()
		return ctx.Err()
	}
	events := make(chan struct{}, 1)
	if m.given.Config.Machine == "" {
		listening := make(chan struct{})
		defer func() { <-listening }()
		go func() {
			defer close(listening)
			err := hotplug.Listen(ctx, func() {
				select {
				case events <- struct{}{}:
				default:
				}
			})
			if ctx.Err() == nil {
				m.given.Log.WarnContext(ctx, "changes of CPUs and memory are only found by polling", "hotplug.poll",
					m.given.Config.Hotplug.Poll.Duration, "error", err)
			}
		}()
	}
	w := comparison{debounce: machine.Debounce{For: m.given.Config.Hotplug.Debounce.Duration}}
	tick := time.NewTicker(m.given.Config.Hotplug.Poll.Duration)
	defer tick.Stop()
	for {
		var due <-chan time.Time
		if again := m.compare(ctx, &w); !again.IsZero() {
			due = time.After(max(again.Sub(m.given.Now()), calm))
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		case <-due:
		case <-m.pagesSet:
		case <-events:
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(calm):
			}
			m.policies.kernel.loop.CPUsMayHaveChanged()
		}
	}
}

// compare reads the machine if it may have changed, and changes the one in use if it has.
// An error is logged, unless it is the last one again. again is when to compare once more; the
// zero time for the next event.
func (m *machineChanges) compare(ctx context.Context, w *comparison) (again time.Time) {
	m.following.Lock()
	defer m.following.Unlock()
	text, _, err := m.probe()
	if err == nil && text == w.probed {
		return time.Time{}
	}
	w.probed = ""
	var observed *machine.Topology
	if err == nil {
		observed, err = findMachine(m.given.Config.Machine)
	}
	var next *machine.Topology
	if err == nil {
		next, again = w.debounce.Observe(m.inUse(), observed, m.given.Now())
	}
	if next != nil {
		err = m.change(ctx, next)
	}
	switch {
	case err != nil && ctx.Err() == nil && err.Error() != w.failed:
		w.failed = err.Error()
		m.given.Log.ErrorContext(ctx, "the machine has changed, and berthd cannot follow", "error", err)
		m.given.metrics.MachineFailed()
	case err == nil && again.IsZero():
		w.probed, w.failed = text, ""
	}
	return again
}

// change makes the managers, the ledger and the cgroups follow a changed machine. If the
// configuration does not fit it, missing CPUs and missing memory are still taken out of use; the error then says what
// does not fit.
func (m *machineChanges) change(ctx context.Context, to *machine.Topology) error {
	p := m.policies
	p.mu.Lock() // one change of the configuration, the policy or the machine at a time
	defer p.mu.Unlock()
	before := m.inUse()
	err := m.use(ctx, to)
	if class := errdefs.ClassOf(err); err == nil || class == errdefs.Unavailable || ctx.Err() != nil {
		return err
	}
	less, lacks := before.Left(to)
	if less == before || lacks != nil {
		return err
	}
	gone := machine.Compare(before, less)
	if lacks := m.use(ctx, less); lacks != nil {
		return fmt.Errorf("what is gone was not taken out of use (%s), and a start of berthd would fail: %w", gone, errors.Join(err, lacks))
	}
	return fmt.Errorf("only what is gone was taken out of use (%s), and a start of berthd would fail: %w", gone, err)
}

// use puts a machine into force, under the policy in force. The caller holds policies.mu.
func (m *machineChanges) use(ctx context.Context, to *machine.Topology) error {
	p, k, d := m.policies, m.policies.kernel, m.policies.deciding
	now := p.state.ledger.View()
	policy, _ := p.Policy()
	managers, err := p.state.sets.on(p.files().With(policy), to, m.given.Config.KeptReserved(now.Rules().ReservedCPUs))
	if err != nil {
		return err
	}
	limits, err := k.limitsOf(ctx, managers)
	if err != nil {
		return err
	}
	if err := d.Stage(managers); err != nil {
		return err
	}
	m.notePlaces(to)
	// The ledger decides which managers stay active, whether or not the change succeeds.
	defer func() { d.Activate(p.state.ledger.View().Rules()) }()
	ctx = ledger.WithCall(ctx, &ledger.Call{Name: "MachineChange", Time: m.given.Now()})
	outlook, err := d.engine.ChangeMachine(ctx, managers.Rules)
	if err != nil {
		return err
	}
	m.given.Failpoint.Hit(AfterMachineChange)
	if tree, ok := k.tree.(interface {
		SetOnline(cpuset.Set)
		SetNodes(numa.Mask)
	}); ok { // cgroups in memory are of the simulated machine
		tree.SetOnline(to.CPUs())
		tree.SetNodes(to.MemoryNodeMask())
	}
	k.setLimits(limits)
	change := machine.Compare(now.Machine(), to)
	m.given.metrics.MachineChanged()
	m.given.Log.WarnContext(ctx, "the machine has changed", "change", change.String(), "generation", outlook.After.Generation())
	if was, is := now.Rules().ReservedCPUs, managers.Rules.ReservedCPUs; was != is {
		m.given.Log.WarnContext(ctx, "other CPUs are reserved on the changed machine", "before", was.String(), "now", is.String())
	}
	for _, pod := range outlook.Pods {
		for _, f := range pod.Findings {
			m.given.Log.WarnContext(ctx, "a pod has lost something on the changed machine", "pod", pod.Pod.Pod.String(),
				"uid", pod.Pod.UID(), "finding", f.Text)
		}
	}
	return nil
}

// notePlaces keeps the places of CPUs that go offline, before another machine comes into force: places is the present
// machine with those.
func (m *machineChanges) notePlaces(to *machine.Topology) {
	places := m.offlinePlaces(to)
	if whole, err := to.With(places); err == nil {
		m.places.Store(whole)
	}
}

// offlinePlaces returns the offline CPUs of a machine that were online since the start.
func (m *machineChanges) offlinePlaces(of *machine.Topology) []machine.CPU {
	if whole := m.places.Load(); whole != nil {
		return machine.Places(of, whole)
	}
	return machine.Places(of, m.policies.state.found)
}

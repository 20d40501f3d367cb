package app

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"sync/atomic"
	"time"

	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/api/trust"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger/check"
	"github.com/berthd/berth/managers/ledger/history"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/node"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/server/internal/host/hotplug"
	"github.com/berthd/berth/server/internal/host/sysfs"
)

// AfterMachineChange is the failure point after the commit of a changed machine, before the
// managers, the limits and the cgroups follow it.
const AfterMachineChange = "app/after-machine-change"

// measure returns the machine to work on, and facts of the running system; none if the machine is simulated.
func measure(c config.Config) (m *machine.Topology, facts node.Facts, err error) {
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
	// uncounted is the last error of countPages, as it was logged, and taken are its last findings. Only one goroutine counts.
	uncounted string
	taken     []check.Finding
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
		m.countPages(ctx)
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
		m.given.Metrics.MachineFailed()
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
	if err := d.managers.Stage(managers); err != nil {
		return err
	}
	m.notePlaces(to)
	// The ledger decides which managers stay active, whether or not the change succeeds.
	defer func() { d.managers.Activate(p.state.ledger.View().Rules()) }()
	ctx = history.WithCall(ctx, &history.Call{Name: "MachineChange", Time: m.given.Now()})
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
	m.given.Metrics.MachineChanged()
	m.given.Log.WarnContext(ctx, "the machine has changed", "change", change.String(), "generation", outlook.After.Generation())
	for _, warning := range managers.Memory.Warnings() {
		m.given.Log.WarnContext(ctx, "on the changed machine", "warning", warning)
	}
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

package app

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"reflect"
	"time"

	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/managerset"
	"github.com/berthd/berth/managers/memory"
	"github.com/berthd/berth/server/internal/host/hotplug"
	"github.com/berthd/berth/server/internal/host/sysfs"
)

// AfterMachineChange is the failure point after the commit of a changed machine, before the
// managers, the limits and the cgroups follow it.
const AfterMachineChange = "app/after-machine-change"

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
	data, err := os.ReadFile(fileOrShape)
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

// machine returns the machine in use.
func (a *App) machine() *machine.Topology {
	if a.Ledger == nil {
		return a.found
	}
	return a.Ledger.View().Machine()
}

// probeMachine returns a text that differs after each change of the machine; false for a machine
// that cannot change.
func (a *App) probeMachine() (text string, changes bool, err error) {
	if a.Config.Machine == "" {
		sys, err := os.OpenRoot("/sys")
		if err != nil {
			return "", true, errdefs.Unavailablef("look at the machine: %w", err)
		}
		defer sys.Close()
		text, err := sysfs.Probe(sys.FS())
		return text, true, err
	}
	data, err := os.ReadFile(a.Config.Machine)
	if errors.Is(err, fs.ErrNotExist) {
		return "", false, nil // a shape
	}
	return string(data), true, err
}

// machineWatch is the state of the comparison of the machine with the one in use.
type machineWatch struct {
	settling machine.Settling
	// probed is the last text of a probe whose machine needs nothing more.
	probed string
	// failed is the last error, as it was logged.
	failed string
}

// calm is how long events of the kernel may be collected: one action causes several.
const calm = 50 * time.Millisecond

// followMachine compares the machine with the one in use, after each event of the kernel and
// periodically.
func (a *App) followMachine(ctx context.Context) error {
	if _, changes, err := a.probeMachine(); !changes && err == nil {
		<-ctx.Done()
		return ctx.Err()
	}
	events := make(chan struct{}, 1)
	if a.Config.Machine == "" {
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
				a.Log.WarnContext(ctx, "changes of CPUs and memory are only found by polling", "hotplug.poll", a.Config.Hotplug.Poll.Duration, "error", err)
			}
		}()
	}
	w := machineWatch{settling: machine.Settling{For: a.Config.Hotplug.Settle.Duration}}
	tick := time.NewTicker(a.Config.Hotplug.Poll.Duration)
	defer tick.Stop()
	for {
		var due <-chan time.Time
		if again := a.compareMachine(ctx, &w); !again.IsZero() {
			due = time.After(max(again.Sub(a.Now()), calm))
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		case <-due:
		case <-events:
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(calm):
			}
		}
	}
}

// compareMachine reads the machine if it may have changed, and changes the one in use if it has.
// An error is logged, unless it is the last one again. again is when to compare once more; the
// zero time for the next event.
func (a *App) compareMachine(ctx context.Context, w *machineWatch) (again time.Time) {
	text, _, err := a.probeMachine()
	if err == nil && text == w.probed {
		return time.Time{}
	}
	w.probed = ""
	var observed *machine.Topology
	if err == nil {
		observed, err = findMachine(a.Config.Machine)
	}
	replace := false
	if err == nil {
		replace, again = w.settling.Observe(a.machine(), observed, a.Now())
	}
	if replace {
		err = a.changeMachine(ctx, observed)
	}
	switch {
	case err != nil && ctx.Err() == nil && err.Error() != w.failed:
		w.failed = err.Error()
		a.Log.ErrorContext(ctx, "the machine has changed, and berthd cannot follow", "error", err)
		a.metrics.MachineFailed()
	case err == nil && again.IsZero():
		w.probed, w.failed = text, ""
	}
	return again
}

// changeMachine makes the managers, the ledger and the cgroups follow a changed machine. If the
// configuration does not fit it, missing CPUs are still taken out of use; the error then says what
// does not fit.
func (a *App) changeMachine(ctx context.Context, to *machine.Topology) error {
	p := a.policies
	p.mu.Lock() // one change of the configuration, the policy or the machine at a time
	defer p.mu.Unlock()
	before := a.machine()
	err := a.useMachine(ctx, to)
	if class := errdefs.ClassOf(err); err == nil || class == errdefs.Unavailable || ctx.Err() != nil {
		return err
	}
	gone := before.CPUs().Minus(to.CPUs())
	less, lacks := before.Without(gone)
	if gone.IsEmpty() || lacks != nil {
		return err
	}
	return fmt.Errorf("only CPUs %s were taken out of use, and a start of berthd would fail: %w", gone, errors.Join(err, a.useMachine(ctx, less)))
}

// useMachine puts a machine into force, under the policy in force. The caller holds policies.mu.
func (a *App) useMachine(ctx context.Context, to *machine.Topology) error {
	now := a.Ledger.View()
	policy, _ := a.policies.Policy()
	managers, err := a.managerSetOn(a.files().With(policy), to, a.Config.KeptReserved(now.Rules().ReservedCPUs))
	if err != nil {
		return err
	}
	limits, err := a.limitsOf(ctx, managers)
	if err != nil {
		return err
	}
	if err := a.Managers.Stage(managers); err != nil {
		return err
	}
	// The ledger decides which managers stay active, whether or not the change succeeds.
	defer func() { a.Managers.Activate(a.Ledger.View().Rules()) }()
	ctx = ledger.WithCall(ctx, &ledger.Call{Name: "MachineChange", Time: a.Now()})
	outlook, err := a.Engine.ChangeMachine(ctx, managers.Rules)
	if err != nil {
		return err
	}
	a.Failpoint.Hit(AfterMachineChange)
	if tree, ok := a.tree.(interface{ SetOnline(cpuset.Set) }); ok {
		tree.SetOnline(to.CPUs()) // cgroups in memory are of the simulated machine
	}
	a.limits.Store(&limits)
	a.reconcile.SetLimits(limits)
	change := machine.Compare(now.Machine(), to)
	a.metrics.MachineChanged()
	a.Log.WarnContext(ctx, "the machine has changed", "change", change.String(), "generation", outlook.After.Generation())
	if was, is := now.Rules().ReservedCPUs, managers.Rules.ReservedCPUs; was != is {
		a.Log.WarnContext(ctx, "other CPUs are reserved on the changed machine", "before", was.String(), "now", is.String())
	}
	for _, pod := range outlook.Pods {
		for _, f := range pod.Findings {
			a.Log.WarnContext(ctx, "a pod has lost something on the changed machine", "pod", pod.Pod.Pod.String(), "uid", pod.Pod.UID(), "finding", f.Text)
		}
	}
	return nil
}

// keptUnder returns the reserved CPUs that another policy keeps: the present ones, if it reserves
// the same.
func (a *App) keptUnder(next config.Config) cpuset.Set {
	policy, _ := a.policies.Policy()
	if !reflect.DeepEqual(policy.Reserved, next.Reserved) || !reflect.DeepEqual(policy.CPU, next.CPU) {
		return cpuset.Set{}
	}
	return a.Config.KeptReserved(a.Ledger.View().Rules().ReservedCPUs)
}

// keepReserved implements ledger.Options.Keep: a start in the same boot keeps what the berthd
// before it kept.
func (a *App) keepReserved(reserved cpuset.Set, o *ledger.Override) (ledger.Rules, bool) {
	set, err := a.managerSetKeeping(a.Config.KeptReserved(reserved), o)
	if err != nil {
		return ledger.Rules{}, false
	}
	return set.Rules, true
}

// managerSetKeeping makes the managers of the configuration, or of the policy that replaces it, with
// CPUs that stay reserved.
func (a *App) managerSetKeeping(reserved cpuset.Set, o *ledger.Override) (*managerset.Set, error) {
	c := a.files()
	if o != nil {
		var err error
		if c, err = a.overridden(*o); err != nil {
			return nil, err
		}
	}
	return a.managerSetOn(c, a.machine(), reserved)
}

// managerSetOn makes the managers that a configuration requests on a machine. kept are the CPUs
// that stay reserved; empty for those that follow from the configuration.
func (a *App) managerSetOn(c config.Config, m *machine.Topology, kept cpuset.Set) (*managerset.Set, error) {
	cfg, err := c.ManagerSet(m)
	if err != nil {
		return nil, err
	}
	cfg.CPU.KeptReserved = kept
	cfg.Facts = a.facts
	if check := c.Memory.CheckFreeHugePages; check != config.PagesIgnore && c.Machine == "" {
		cfg.Pages = &memory.Pages{Free: freePages, Wait: check == config.PagesDefer}
	}
	return managerset.New(cfg, m)
}

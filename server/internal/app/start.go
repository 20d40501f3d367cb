package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/api/trust"
	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/recovery"
	"github.com/berthd/berth/server/internal/host/claimfiles"
	"github.com/berthd/berth/server/internal/host/confine"
	"github.com/berthd/berth/server/internal/host/procfs"
	"github.com/berthd/berth/server/internal/logs"
	"github.com/berthd/berth/server/internal/rpc/inspect"
	"github.com/berthd/berth/server/internal/runtime"
	"github.com/berthd/berth/server/internal/store"
)

// AfterRecovery is the failure point after the commit of the recovery's decisions.
const AfterRecovery = "app/after-recovery"

// Failpoints returns all points of this package.
func Failpoints() []string { return []string{AfterRecovery, AfterMachineChange} }

// keepsPods reports whether pods have cgroups in the kernel, which show running processes.
func (a *App) keepsPods() bool {
	return a.Config.Cgroups.Tree != config.TreeMemory && a.Config.Cgroups.PerQOS
}

// openRecords finds the storage of the pods' claim records: attributes of their cgroups. If the
// tree is in memory or stores no attributes, the records are files.
func (a *App) openRecords(ctx context.Context) (cgroup.Records, error) {
	if a.keepsPods() {
		records, ok := a.tree.(cgroup.Records)
		if !ok {
			return nil, nil // a test's tree without
		}
		_, err := records.ReadRecord(ctx, a.layout.Pods())
		if errdefs.ClassOf(err) != errdefs.Unsupported {
			return records, nil
		}
		a.Log.WarnContext(ctx, "claim records are kept as files", "directory", a.claimsDir(), "error", err)
	}
	boot, err := a.bootID(os.DirFS("/proc"))
	if err != nil {
		return nil, err
	}
	if err := a.makeClaimsDir(); err != nil {
		return nil, err
	}
	files, err := claimfiles.Open(a.claimsDir(), boot)
	if err != nil {
		return nil, err
	}
	a.records = files
	return files, nil
}

// claimsDir is in the directory of berthd's socket, which a boot usually clears.
func (a *App) claimsDir() string { return filepath.Join(filepath.Dir(a.Config.Listen), "claims") }

// makeClaimsDir makes the directory of claim records, which is berthd's alone. The one
// around it is the socket's: others get through.
func (a *App) makeClaimsDir() error {
	if err := trust.MkdirAll(filepath.Dir(a.Config.Listen), listenDirMode); err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	return trust.MkdirAll(a.claimsDir(), 0o700)
}

// listenDirMode is that of the directory of berth's own socket where berthd makes it.
const listenDirMode = 0o755

func (a *App) closeRecords() error {
	var errs []error
	if a.records != nil {
		errs = append(errs, a.records.(io.Closer).Close())
	}
	if a.lastCommit != nil {
		errs = append(errs, a.lastCommit.Close())
	}
	return errors.Join(errs...)
}

// probeRecords reports whether claim records can be written. Where their directory is not in its
// place any more, it is made again. Calls come one at a time.
func (a *App) probeRecords(ctx context.Context) error {
	files, ok := a.records.(*claimfiles.Files)
	if !ok {
		return nil // the kernel keeps them with the cgroups
	}
	renewed, err := files.Check()
	if renewed > a.recordsRenewed {
		a.recordsRenewed = renewed
		a.Log.WarnContext(ctx, "the directory of claim records was removed or replaced, and is made again",
			logs.Repaired(logs.Records, "directory", a.claimsDir())...)
	}
	return err
}

// openLastCommit opens the mark of the last commit. Without the mark, a ledger that is one commit
// behind cannot be distinguished from a crash before that commit.
func (a *App) openLastCommit(ctx context.Context) {
	boot, err := a.bootID(os.DirFS("/proc"))
	if err == nil {
		err = a.makeClaimsDir()
	}
	if err == nil {
		a.lastCommit, err = claimfiles.OpenMark(filepath.Join(a.claimsDir(), ".last-commit"), boot)
	}
	if err != nil {
		a.Log.WarnContext(ctx, "the last commit is not marked: a copy of the ledger that is older by one commit would not be recognized",
			"error", err)
	}
}

// markCommits returns what marks each commit, before the call that made it answers. Calls come one at a time.
func (a *App) markCommits() func(_, v *ledger.View) {
	fails := false
	return func(_, v *ledger.View) {
		if a.lastCommit == nil {
			return
		}
		err := a.lastCommit.Set(uint64(v.EpochID()), v.Revision())
		if err != nil && !fails {
			a.Log.Warn("the last commit cannot be marked", "error", err)
		}
		fails = err != nil
	}
}

// acknowledged returns the last commit that the previous berthd marked. For a new or salvaged
// ledger the revision is 0, because a lower revision does not make it an older copy.
func (a *App) acknowledged() recovery.Commit {
	if a.lastCommit == nil {
		return recovery.Commit{}
	}
	epoch, revision, _ := a.lastCommit.Found()
	if a.start.Damage != nil || a.Ledger.View().Generation() == 0 {
		revision = 0
	}
	return recovery.Commit{Epoch: ledger.EpochID(epoch), Revision: revision}
}

// recover decides which pods exist and what they hold, and commits the result. Living pods are
// not changed.
func (a *App) recover(ctx context.Context) error {
	observed, unseen, err := a.observePods(ctx)
	if err != nil {
		return err
	}
	boot, err := a.bootID(os.DirFS("/proc"))
	if err != nil {
		return err
	}
	view := a.Ledger.View()
	fresh := view.Generation() == 0
	plan := recovery.Decide(recovery.Input{
		View: view, Report: a.start.Ledger, Observed: observed, BootID: boot, Unseen: unseen, Now: a.Now(),
		Acknowledged: a.acknowledged(),
	})
	a.start.Recovery, a.start.OlderCopy = plan.Decisions, plan.OlderCopy
	why := a.stillUncertain(view, observed, unseen)
	if plan.Changes() || plan.OlderCopy || why != view.Uncertain() {
		_, err = a.Ledger.Update(ctx, func(d *ledger.Draft) error {
			plan.Apply(d)
			if plan.OlderCopy {
				// The new epoch is committed with the recovered claims. If they were separate, a
				// start between the two commits would not detect that its ledger is an older
				// copy.
				d.RenewEpoch(store.NewEpochID(), uint64(max(0, a.Now().UnixMilli())))
			}
			d.SetUncertain(why)
			return nil
		})
	} else if fresh || len(a.start.Ledger.Renewed) > 0 {
		// The first generation marks that berthd has run here. Damaged values are written again before
		// there are more.
		_, err = a.Ledger.SetRules(ctx, view.Rules())
	}
	if err != nil {
		return fmt.Errorf("commit the recovery: %w", err)
	}
	a.Failpoint.Hit(AfterRecovery)
	if plan.OlderCopy {
		a.history.Start(a.Ledger.View()) // no reader has seen a state of this ledger
	}
	for _, uid := range plan.Remove {
		if err := a.reconcile.RemoveEmpty(ctx, a.Ledger.View(), uid); err != nil {
			// The sweep repeats a failed removal.
			a.Log.ErrorContext(ctx, "remove what is left of a pod", "uid", uid, "error", err)
		}
	}
	return nil
}

// Reading a claim record can fail for lack of descriptors or memory. It is repeated a few times
// before the start fails.
const (
	observeAttempts = 5
	observePause    = 200 * time.Millisecond
)

// observePods reads the cgroups and claim records of all pods.
func (a *App) observePods(ctx context.Context) (all []recovery.Observation, unseen bool, err error) {
	for attempt := 1; ; attempt++ {
		all, unseen, err = a.reconcile.ObservePods(ctx)
		if err == nil || attempt == observeAttempts {
			return all, unseen, err
		}
		a.Log.WarnContext(ctx, "observe the pods again", "error", err)
		select {
		case <-ctx.Done():
			return nil, false, err
		case <-time.After(observePause):
		}
	}
}

// stillUncertain returns why the agent must list the living pods although all pods were read.
// Without the processes, a pod may live that neither the ledger nor a claim record lists.
func (a *App) stillUncertain(view *ledger.View, observed []recovery.Observation, unseen bool) string {
	if !unseen || view.Uncertain() == "" {
		return ""
	}
	seen := map[string]bool{}
	for _, o := range observed {
		seen[o.UID] = o.Record == recovery.Whole
	}
	r := a.start.Ledger
	if r.Uncertain == "" && a.start.Damage != nil {
		for _, l := range r.Lost {
			if !seen[l.UID] {
				return view.Uncertain()
			}
		}
		return ""
	}
	return view.Uncertain()
}

// keepLiving reports whether a cgroup without a pod in the ledger is kept. Until the agent has
// sent Sync, its processes may belong to a living pod.
func (a *App) keepLiving(ctx context.Context, name cgroup.Name) (bool, error) {
	if a.Engine.Synced() {
		return false, nil
	}
	pids, err := a.tree.Procs(ctx, name)
	return len(pids) > 0, err
}

// lives returns the known facts of a pod that a Sync has listed as living.
func (a *App) lives(ctx context.Context, uid string) ledger.UnknownLivePod {
	return a.reconcile.Known(ctx, uid, a.Ledger.View().BootID())
}

// recovered returns the decisions of the start, for Inspect.
func (a *App) recovered() inspect.Recovered {
	return inspect.Recovered{Decisions: a.start.Recovery, OlderCopy: a.start.OlderCopy}
}

// recoveryLines describes each pod whose case needs a line.
func (a *App) recoveryLines() (lines []string) {
	if a.start.OlderCopy {
		lines = append(lines, "the ledger is an older copy: commits that were acknowledged are not in it; living pods keep what they have")
	}
	for _, d := range a.start.Recovery {
		switch d.Case {
		case recovery.Agrees, recovery.LedgerOnly, recovery.NotRunning, recovery.LedgerNewer:
		default:
			lines = append(lines, d.String())
		}
	}
	return lines
}

// maxReported limits the findings and the unread parts in the start report. The file beside the
// damaged ledger has all of them.
const maxReported = 20

// damageLines describes the damage and its consequences.
func damageLines(d *store.Damage, r ledger.Report) []string {
	if d == nil {
		return nil
	}
	lines := []string{fmt.Sprintf("the ledger was damaged and is set aside as %s: %s", d.SetAside, d.Error)}
	lines = append(lines, "after the damage "+r.Outcome())
	for _, l := range r.Lost {
		line := fmt.Sprintf("pod %s is lost: %s; %d of its claims are known", l.UID, l.Why, len(l.Claims))
		if l.PerhapsStale {
			line += ", and may be out of date"
		}
		lines = append(lines, line)
	}
	for i, f := range r.Damage {
		if i == maxReported {
			lines = append(lines, fmt.Sprintf("%d more entries are damaged, see %s.json", len(r.Damage)-maxReported, d.SetAside))
			break
		}
		lines = append(lines, "damaged: "+f.Text)
	}
	for i, text := range r.Unread {
		if i == maxReported {
			lines = append(lines, fmt.Sprintf("%d more places could not be read, see %s.json", len(r.Unread)-maxReported, d.SetAside))
			break
		}
		lines = append(lines, "not read: "+text)
	}
	return lines
}

// renewedLines describes damaged values that berthd has written again.
func renewedLines(r ledger.Report) (lines []string) {
	for _, text := range r.Renewed {
		lines = append(lines, "damaged in the ledger, and written again: "+text)
	}
	return lines
}

// bootID returns the kernel's id of this boot, random(4), from a /proc.
func bootID(proc fs.FS) (string, error) {
	const file = "sys/kernel/random/boot_id"
	text, err := fs.ReadFile(proc, file)
	if err != nil {
		return "", errdefs.Unavailablef("read the id of this boot: %w", err)
	}
	id := strings.TrimSpace(string(text))
	if id == "" {
		return "", fmt.Errorf("read the id of this boot: /proc/%s is empty", file)
	}
	return id, nil
}

// bootID returns the id of this boot, or the id of a test.
func (a *App) bootID(proc fs.FS) (string, error) {
	if a.Stage != nil && a.Stage.BootID != "" {
		return a.Stage.BootID, nil
	}
	return bootID(proc)
}

// checkTimeout is how long Check waits for the container runtime.
const checkTimeout = 5 * time.Second

// Check runs the checks of a start without its effects, and returns all errors. Notes are the
// start's warnings, and the checks that were not possible. For a simulated machine the running
// system is not checked.
func Check(ctx context.Context, cfg config.Config) (notes []string, err error) {
	if cfg.Machine != "" {
		return nil, Validate(cfg)
	}
	a := &App{Config: cfg, Environment: Environment{Log: slog.New(slog.DiscardHandler)}}
	errs := []error{a.checkDirectories(ctx)}
	a.driver = cgroup.Driver(cfg.Cgroups.Driver)
	driver, note := a.checkRuntime(ctx)
	notes = append(notes, note...)
	if driver != "" {
		a.driver = driver
	}
	notes = append(notes, a.besideSystemd()...)
	if driver == "" && cfg.RuntimeEndpoint != "" {
		a.driver = cgroup.Cgroupfs // as in Validate
	}
	errs = append(errs, a.buildMachine(ctx), a.checkTree(), a.checkSystem(ctx))
	taken, note, err := a.checkSockets()
	notes = append(notes, note...)
	errs = append(errs, err, taken)
	note, err = a.checkAddress()
	notes = append(notes, note...)
	errs = append(errs, err)
	if os.Geteuid() != 0 {
		notes = append(notes,
			fmt.Sprintf("checked as user %d: whether berthd has the rights that it needs is known only to the user that runs it",
				os.Geteuid()))
	} else if have, err := confine.Effective(); err == nil {
		notes = append(notes, lacking(cfg, have)...)
	}
	return notes, errors.Join(errs...)
}

// checkRuntime gets the cgroup driver from the container runtime. It overrides the configured
// one.
func (a *App) checkRuntime(ctx context.Context) (driver cgroup.Driver, notes []string) {
	endpoint := a.Config.RuntimeEndpoint
	if endpoint == "" {
		return "", nil
	}
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	client, err := runtime.Dial(endpoint)
	if err != nil {
		return "", []string{fmt.Sprintf("runtimeEndpoint (--runtime-endpoint): %v", err)}
	}
	defer func() { _ = client.Close() }()
	found, _, err := client.Driver(ctx)
	switch {
	case err != nil:
		return "", []string{fmt.Sprintf("runtimeEndpoint (--runtime-endpoint): the runtime does not answer now, and a start waits %s for it: %v", runtimeTimeout, err)}
	case found == "":
		return "", []string{fmt.Sprintf("the container runtime does not report its cgroup driver; it must be cgroups.driver (--cgroup-driver), which is %s", a.Config.Cgroups.Driver)}
	case string(found) != a.Config.Cgroups.Driver:
		notes = append(notes,
			fmt.Sprintf("the container runtime's cgroup driver, %s, holds, not cgroups.driver (--cgroup-driver), which is %s", found,
				a.Config.Cgroups.Driver))
	}
	return found, notes
}

// besideSystemd reports where systemd and berthd would both write the root of the tree.
func (a *App) besideSystemd() []string {
	c := a.Config.Cgroups
	if _, err := os.Stat("/run/systemd/system"); err != nil || !realCgroups(a.Config) || a.driver != cgroup.Cgroupfs || c.Root != "/" {
		return nil
	}
	return []string{"systemd manages the cgroups of this machine, and cgroups.driver (--cgroup-driver) is cgroupfs: both write the root of the tree; use systemd, or a cgroups.root (--cgroup-root) of berthd's own"}
}

// checkSystem is checkHost without its effects.
func (a *App) checkSystem(ctx context.Context) error {
	if !realCgroups(a.Config) {
		return nil
	}
	proc, err := os.OpenRoot("/proc")
	if err != nil {
		return errdefs.Unavailablef("check the system: %w", err)
	}
	defer proc.Close()
	swapping, err := procfs.Swapping(proc.FS())
	errs := []error{err, refuseSwap(a.Config, swapping)}
	if a.Config.Node.FailCgroupV1 {
		// A tree that cannot be opened is refused by checkTree.
		if tree, facts, err := a.openTree(); err == nil {
			errs = append(errs, refuseV1(a.Config, facts.Version))
			if c, ok := tree.(io.Closer); ok {
				errs = append(errs, c.Close())
			}
		}
	}
	if a.Config.Node.KernelTunables == config.TunablesRequire {
		errs = append(errs, a.checkTunables(ctx, proc))
	}
	return errors.Join(errs...)
}

// checkSockets reports sockets that another program serves. Exempt are the sockets of a running
// berthd with the same state directory, and a socket that systemd passes to berthd.
func (a *App) checkSockets() (taken error, notes []string, err error) {
	proc := os.DirFS("/proc")
	if info, err := os.Stat(filepath.Join(a.Config.StateDir, store.LockFile)); err == nil {
		pid, err := procfs.FlockHolder(proc, info)
		if err != nil {
			return nil, nil, err
		}
		if pid != 0 {
			return nil, []string{fmt.Sprintf("berthd runs with this stateDir (process %d), so sockets and addresses are taken until it ends", pid)}, nil
		}
	}
	sockets := []struct{ field, path string }{
		{"listen (--listen)", a.Config.Listen},
		{"podResourcesDir (--pod-resources-dir)", a.Config.PodResourcesSocket()},
		{"devicePluginDir (--device-plugin-dir)", a.Config.DevicePluginSocket()},
	}
	if path, ok := a.Config.HTTPSocket(); ok {
		sockets = append(sockets, struct{ field, path string }{"http (--http)", path})
	}
	var errs []error
	for _, s := range sockets {
		if s.path == "" {
			continue // switched off
		}
		inode, err := procfs.Listening(proc, s.path)
		if err != nil {
			return nil, nil, err
		}
		switch {
		case inode == "":
		case procfs.HasSocket(proc, 1, inode):
			notes = append(notes, fmt.Sprintf("%s: systemd keeps %s for berthd", s.field, s.path))
		default:
			errs = append(errs, errdefs.Conflictf("%s: another process already serves %s: a kubelet (then start berthd with --beside=kubelet), or another berthd with the same path", s.field, s.path))
		}
	}
	return errors.Join(errs...), notes, nil
}

// checkAddress tries the address for metrics, unless a berthd that runs has it. An address that another program has taken is a note,
// because a start tries it again.
func (a *App) checkAddress() (notes []string, err error) {
	if _, ok := a.Config.HTTPSocket(); ok || a.Config.HTTP == "" {
		return nil, nil
	}
	if info, err := os.Stat(filepath.Join(a.Config.StateDir, store.LockFile)); err == nil {
		if pid, err := procfs.FlockHolder(os.DirFS("/proc"), info); err == nil && pid != 0 {
			return nil, nil
		}
	}
	l, err := net.Listen("tcp", a.Config.HTTP)
	if errors.Is(err, syscall.EADDRINUSE) {
		return []string{fmt.Sprintf("http (--http): another program has the address, so metrics and health are not served until it is free: %v", err)}, nil
	}
	if err != nil {
		return nil, errdefs.Unavailablef("http (--http): %w", err)
	}
	return nil, l.Close()
}

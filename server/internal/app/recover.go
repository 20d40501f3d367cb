package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/api/trust"
	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/recovery"
	"github.com/berthd/berth/server/internal/host/claimfiles"
	"github.com/berthd/berth/server/internal/logs"
	"github.com/berthd/berth/server/internal/rpc/inspect"
	"github.com/berthd/berth/server/internal/store"
)

// AfterRecovery is the point after the commit of what was decided.
const AfterRecovery = "app/after-recovery"

// Failpoints returns all points of this package.
func Failpoints() []string { return []string{AfterRecovery} }

// keepsPods reports whether pods have cgroups of the kernel's, which show what lives.
func (a *App) keepsPods() bool {
	return a.Config.Cgroups.Tree != config.TreeMemory && a.Config.Cgroups.PerQOS
}

// openRecords finds out where the pods' claim records are kept: at their cgroups, or
// where the tree is not the kernel's, or keeps no attributes, in files.
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

// claimsDir lies beside berth's own socket, as a rule in a directory that a boot clears.
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

// openLastCommit opens the mark of the last commit. Without it, copies of the ledger that
// are older by one commit cannot be told from a crash before it.
func (a *App) openLastCommit(ctx context.Context) {
	boot, err := a.bootID(os.DirFS("/proc"))
	if err == nil {
		err = a.makeClaimsDir()
	}
	if err == nil {
		a.lastCommit, err = claimfiles.OpenMark(filepath.Join(a.claimsDir(), ".last-commit"), boot)
	}
	if err != nil {
		a.Log.WarnContext(ctx, "the last commit is not marked: a copy of the ledger that is older by one commit would not be recognized", "error", err)
	}
}

// markCommit marks a commit, before the call that made it answers. Calls come one at a time.
func (a *App) markCommit(v *ledger.View) {
	if a.lastCommit == nil {
		return
	}
	err := a.lastCommit.Set(uint64(v.EpochID()), v.Revision())
	if err != nil && !a.markFails {
		a.Log.Warn("the last commit cannot be marked", "error", err)
	}
	a.markFails = err != nil
}

// acknowledged is the last commit that the berthd before this one marked. Its revision says
// nothing about a ledger that was made, or salvaged, at this start: that is no copy.
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

// recover decides what is true of each pod, and makes it last. Nobody who lives is
// touched.
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
				// With the claims that are taken over: a start that finds another epoch,
				// and not them, would not know that its ledger is an older copy.
				d.RenewEpoch(store.NewEpochID(), uint64(max(0, a.Now().UnixMilli())))
			}
			d.SetUncertain(why)
			return nil
		})
	} else if fresh {
		// The first generation says that berth has been here.
		_, err = a.Ledger.SetRules(ctx, view.Rules())
	}
	if err != nil {
		return fmt.Errorf("keep what lives here: %w", err)
	}
	a.Failpoint.Hit(AfterRecovery)
	if plan.OlderCopy {
		a.history.Start(a.Ledger.View()) // no reader has seen a state of this ledger
	}
	for _, uid := range plan.Remove {
		if err := a.reconcile.RemoveEmpty(ctx, a.Ledger.View(), uid); err != nil {
			// What cannot be removed now is tried again by the sweep.
			a.Log.ErrorContext(ctx, "remove what is left of a pod", "uid", uid, "error", err)
		}
	}
	return nil
}

// A claim record that cannot be read for the moment, for want of descriptors or memory, is
// tried again a few times before the start fails.
const (
	observeAttempts = 5
	observePause    = 200 * time.Millisecond
)

// observePods looks at all pods.
func (a *App) observePods(ctx context.Context) (all []recovery.Observation, unseen bool, err error) {
	for attempt := 1; ; attempt++ {
		all, unseen, err = a.reconcile.ObservePods(ctx)
		if err == nil || attempt == observeAttempts {
			return all, unseen, err
		}
		a.Log.WarnContext(ctx, "look at the pods again", "error", err)
		select {
		case <-ctx.Done():
			return nil, false, err
		case <-time.After(observePause):
		}
	}
}

// stillUncertain reports why the agent has to say which pods live although all has been
// looked at: where processes cannot be seen, a pod of which neither ledger nor claim
// record tell may live all the same.
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

// keepLiving reports whether a cgroup that no pod of the ledger has stays: until the agent
// has sent Sync, whatever runs there may be a living pod's.
func (a *App) keepLiving(ctx context.Context, name cgroup.Name) (bool, error) {
	if a.Engine.Synced() {
		return false, nil
	}
	pids, err := a.tree.Procs(ctx, name)
	return len(pids) > 0, err
}

// lives reports what is known of a pod that was found living by a Sync.
func (a *App) lives(ctx context.Context, uid string) ledger.UnknownLivePod {
	return a.reconcile.Known(ctx, uid, a.Ledger.View().BootID())
}

// recovered is what the start decided, for those who ask later.
func (a *App) recovered() inspect.Recovered {
	return inspect.Recovered{Decisions: a.start.Recovery, OlderCopy: a.start.OlderCopy}
}

// recoveryLines tell each pod's case where there is something to tell.
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

// maxReported is how many findings and how many unread places the start reports; the file
// beside the damaged ledger has them all.
const maxReported = 20

// damageLines lists, in sentences, what was damaged and what became of it.
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

// bootID returns the id of this boot, or the one that a test wants.
func (a *App) bootID(proc fs.FS) (string, error) {
	if a.Stage != nil && a.Stage.BootID != "" {
		return a.Stage.BootID, nil
	}
	return bootID(proc)
}

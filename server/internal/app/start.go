package app

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/check"
	"github.com/berthd/berth/managers/ledger/journal"
	"github.com/berthd/berth/managers/recovery"
	"github.com/berthd/berth/server/internal/logs"
	"github.com/berthd/berth/server/internal/observer"
	"github.com/berthd/berth/server/internal/rpc/allocation"
	"github.com/berthd/berth/server/internal/store/epoch"
)

// AfterRecovery is the failure point after the commit of the recovery's decisions.
const AfterRecovery = "app/after-recovery"

// Failpoints returns all points of this package.
func Failpoints() []string { return []string{AfterRecovery, AfterMachineChange} }

// recover decides which pods exist and what they hold, and commits the result. Living pods are
// not changed.
func (s *state) recover(ctx context.Context, g *given, k *kernel, history *allocation.History) error {
	observed, unseen, err := observePods(ctx, k.observer, g.Log)
	if err != nil {
		return err
	}
	view := s.ledger.View()
	fresh := view.Generation() == 0
	plan := recovery.Decide(recovery.Input{
		View: view, Report: s.start.Ledger, Observed: observed, BootID: g.boot, Unseen: unseen, Now: g.Now(),
		Acknowledged: s.acknowledged(),
	})
	s.start.Recovery, s.start.OlderCopy = plan.Decisions, plan.OlderCopy
	why := s.stillUncertain(view, observed, unseen)
	if plan.Changes() || plan.OlderCopy || why != view.Uncertain() {
		_, err = s.ledger.Update(ctx, func(d *ledger.Draft) error {
			plan.Apply(d)
			if plan.OlderCopy {
				// The new epoch is committed with the recovered claims. If they were separate, a
				// start between the two commits would not detect that its ledger is an older
				// copy.
				d.RenewEpoch(epoch.NewID(), uint64(max(0, g.Now().UnixMilli())))
			}
			d.SetUncertain(why)
			return nil
		})
	} else if fresh || len(s.start.Ledger.Renewed) > 0 {
		// The first generation marks that berthd has run here. Damaged values are written again before
		// there are more.
		_, err = s.ledger.SetRules(ctx, view.Rules())
	}
	if err != nil {
		return fmt.Errorf("commit the recovery: %w", err)
	}
	g.Failpoint.Hit(AfterRecovery)
	if plan.OlderCopy {
		history.Start(s.ledger.View()) // no reader has seen a state of this ledger
	}
	for _, uid := range plan.Remove {
		if err := k.loop.RemoveEmpty(ctx, s.ledger.View(), uid); err != nil {
			// The sweep repeats a failed removal.
			g.Log.ErrorContext(ctx, "removing what is left of a pod failed", "uid", uid, "error", err)
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
func observePods(ctx context.Context, from *observer.Observer, log *slog.Logger) (all []recovery.Observation, unseen bool, err error) {
	for attempt := 1; ; attempt++ {
		all, unseen, err = from.Pods(ctx)
		if err == nil || attempt == observeAttempts {
			return all, unseen, err
		}
		log.WarnContext(ctx, "reading the pods' cgroups failed; berthd reads them again", "error", err)
		select {
		case <-ctx.Done():
			return nil, false, err
		case <-time.After(observePause):
		}
	}
}

// stillUncertain returns why the agent must list the living pods although all pods were read.
// Without the processes, a pod may live that neither the ledger nor a claim record lists.
func (s *state) stillUncertain(view *ledger.View, observed []recovery.Observation, unseen bool) string {
	if !unseen || view.Uncertain() == "" {
		return ""
	}
	seen := map[string]bool{}
	for _, o := range observed {
		seen[o.UID] = o.Record == recovery.Whole
	}
	r := s.start.Ledger
	if r.Uncertain == "" && s.start.Damage != nil {
		for _, l := range r.Lost {
			if !seen[l.UID] {
				return view.Uncertain()
			}
		}
		return ""
	}
	return view.Uncertain()
}

// recoveryLines describes each pod whose case needs a line.
func (r *StartReport) recoveryLines() (lines []string) {
	if r.OlderCopy {
		lines = append(lines, "the ledger is an older copy: commits that were acknowledged are not in it; living pods keep what they have")
	}
	for _, d := range r.Recovery {
		switch d.Case {
		case recovery.Agrees, recovery.LedgerOnly, recovery.NotRunning, recovery.LedgerNewer:
		default:
			lines = append(lines, d.String())
		}
	}
	return lines
}

// maxReported limits the findings and the unread parts in the start report. The file next to the
// damaged ledger has all of them.
const maxReported = 20

// damageLines describes the damage and its consequences.
func damageLines(d *journal.DamagedFile, r journal.Report) []string {
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
func renewedLines(r journal.Report) (lines []string) {
	for _, text := range r.Renewed {
		lines = append(lines, "damaged in the ledger, and written again: "+text)
	}
	return lines
}

// applyLedger makes the cgroup tree equal to the ledger, before any client can call.
func applyLedger(ctx context.Context, g *given, s *state, k *kernel, history *allocation.History) error {
	if err := checkHost(ctx, g.Config, k.qos.Cgroup.Facts.Version, g.Log); err != nil {
		return err
	}
	if err := s.recover(ctx, g, k, history); err != nil {
		return err
	}
	s.start.NoDevices = !knowsDevices(s.ledger.View())
	if s.start.Ledger.Dropped != nil { // the dropped policy is removed from the ledger
		if _, err := s.ledger.SetRules(ctx, s.ledger.View().Rules()); err != nil {
			return err
		}
	}
	s.logStart(ctx, g)
	if suspect := s.ledger.View().Uncertain(); suspect != "" {
		g.Log.WarnContext(ctx, "nothing exclusive is allocated until the agent has called SyncPods", "reason", suspect)
	}
	if err := k.loop.Begin(ctx); err != nil {
		return fmt.Errorf("create the cgroups of all pods: %w", err)
	}
	if err := k.loop.Pass(ctx); err != nil {
		// What the kernel refuses one pod now, it may grant later.
		g.Log.ErrorContext(ctx, "making the cgroup tree equal to the ledger failed", "error", err)
	}
	return nil
}

// knowsDevices reports whether a view has a device resource, or devices that a pod holds.
func knowsDevices(view *ledger.View) bool {
	for range view.SeenResources() {
		return true
	}
	for u := range view.UnknownLivePods() {
		if slices.ContainsFunc(u.Claims, func(c ledger.Claim) bool { return c.Devices != nil }) {
			return true
		}
	}
	for range view.DeviceHolders() {
		return true
	}
	return false
}

// logStart logs what the start found.
func (s *state) logStart(ctx context.Context, g *given) {
	repairs := slices.Concat(damageLines(s.start.Damage, s.start.Ledger), renewedLines(s.start.Ledger), s.start.recoveryLines())
	for _, line := range s.lines(g.Config) {
		var keys []any
		if slices.Contains(repairs, line) {
			keys = logs.Repaired(logs.Ledger)
		}
		g.Log.WarnContext(ctx, line, keys...)
	}
}

// lines lists, in sentences, what the start found and did; none if there was nothing to report.
func (s *state) lines(c config.Config) (lines []string) {
	r := s.start.Ledger
	lines = append(lines, damageLines(s.start.Damage, r)...)
	if uncertain := s.ledger.View().Uncertain(); uncertain != "" {
		lines = append(lines, uncertain+"; waiting for the agent's SyncPods")
	}
	lines = append(lines, s.start.recoveryLines()...)
	lines = append(lines, renewedLines(r)...)
	if r.History != "" {
		lines = append(lines, "the history of calls begins again, and nothing else is affected: "+r.History)
	}
	if r.MigratedFrom != nil {
		lines = append(lines, fmt.Sprintf("the ledger was migrated from schema version %d", *r.MigratedFrom))
	}
	if line := s.policyLine(); line != "" {
		lines = append(lines, line)
	}
	if r.MachineChanged {
		lines = append(lines, "the machine has changed since the last commit")
	}
	if r.ConfigChanged {
		lines = append(lines, "the configuration has changed since the last commit"+settingsText(r.Settings))
	}
	for _, f := range s.start.Drift {
		lines = append(lines, f.Text)
	}
	for _, f := range r.Grandfathered {
		if f.Rule == check.RuleMemory && slices.ContainsFunc(s.start.Drift, func(d check.Finding) bool {
			return d.Rule == f.Rule && d.Resource == f.Resource
		}) {
			continue // has a line already, with the owners
		}
		lines = append(lines, "kept although today's rules would not allow it: "+f.Text)
	}
	for _, f := range r.Broken {
		lines = append(lines, "broken: "+f.Text)
	}
	if c.Memory.CheckFreeHugePages != config.PagesIgnore && c.Machine != "" {
		lines = append(lines, "free huge pages are not read: the machine is simulated")
	}
	return append(lines, s.first.Memory.Warnings()...)
}

// listedSettings limits how many changed settings a line lists.
const listedSettings = 16

// settingsText lists what has changed in the configuration, for the end of a sentence; empty if that is not known.
func settingsText(changes []journal.SettingChange) string {
	var all []string
	for i, c := range changes {
		if i == listedSettings {
			all = append(all, fmt.Sprintf("and %d more settings", len(changes)-i))
			break
		}
		all = append(all, fmt.Sprintf("%s from %s to %s", c.Name, cmp.Or(c.Old, "the default"), cmp.Or(c.New, "the default")))
	}
	if len(all) == 0 {
		return ""
	}
	return ": " + strings.Join(all, ", ")
}

// policyLine reports what became of a policy that was set before; empty if there was
// none.
func (s *state) policyLine() string {
	if d := s.start.Ledger.Dropped; d != nil {
		return fmt.Sprintf("the policy that was set at %s is dropped: %v", d.SetAt.UTC().Format(time.RFC3339), s.start.DropReason)
	}
	if o := s.ledger.View().Override(); o != nil {
		return fmt.Sprintf("the policy that was set at %s replaces the configured one", o.SetAt.UTC().Format(time.RFC3339))
	}
	return ""
}

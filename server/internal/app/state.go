package app

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"strings"

	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/api/trust"
	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/check"
	"github.com/berthd/berth/managers/ledger/history"
	"github.com/berthd/berth/managers/ledger/journal"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/managerset"
	"github.com/berthd/berth/managers/node"
	"github.com/berthd/berth/managers/recovery"
	"github.com/berthd/berth/server/internal/host/claimfiles"
	"github.com/berthd/berth/server/internal/logs"
	"github.com/berthd/berth/server/internal/privileges"
	"github.com/berthd/berth/server/internal/store/epoch"
	"github.com/berthd/berth/server/internal/system"
)

// state is the opened ledger.
type state struct {
	store  system.Ledger
	ledger *ledger.Ledger
	past   *history.History // the history of the ledger
	mark   *claimfiles.Mark // of the last commit; nil if that is not possible
	// found is the machine of the start; the ledger has the one in use.
	found *machine.Topology
	sets  setMaker
	// first are the managers of the start.
	first *managerset.Set
	start StartReport
}

// StartReport has the findings and actions of the start, for Inspect.
type StartReport struct {
	Ledger journal.Report
	// DropReason is why a policy that was set before is dropped; nil if none is.
	DropReason error
	// Damage is set if a damaged ledger was set aside at this start.
	Damage *journal.DamagedFile
	// Drift are the differences of the nodes' memory since the last commit.
	Drift []check.Finding
	// Recovery has the case of each pod, by uid; OlderCopy means that the ledger was an
	// older copy.
	Recovery  []recovery.Decision
	OlderCopy bool
	// NoDevices means that no device resource was known after the recovery: the kubelet's
	// ShouldResetExtendedResourceCapacity.
	NoDevices bool
}

// openState opens the ledger. The intact part of a damaged ledger is kept. If pods are lost,
// admissions wait for the agent's SyncPods, unless the configuration refuses damaged ledgers.
func openState(ctx context.Context, g *given, found *machine.Topology, facts node.Facts, opened *closers) (_ *state, err error) {
	c := g.Config
	sets := setMaker{facts: facts}
	set, err := sets.checked(c, found, cpuset.Set{})
	if err != nil {
		return nil, err
	}
	if g.Observed != nil {
		return openUnkept(ctx, g, found, sets, set)
	}
	if err := openStateDir(c); err != nil {
		return nil, fmt.Errorf("stateDir: %w", err)
	}
	path := filepath.Join(c.StateDir, LedgerFile)
	s := &state{
		found: found, past: history.New(history.Limits{Entries: c.History.Entries, Bytes: c.History.Bytes}, g.Now),
	}
	notice := func(text string) { g.Log.Error(text, logs.Repaired(logs.Ledger)...) }
	if s.store, err = g.System.Ledger(path, g.Failpoint, notice); err != nil {
		return nil, err
	}
	opened.add("the ledger", s.store.Close)
	s.mark = openMark(ctx, g, opened)
	// rulesOf gives the rules of the configuration or of an override, with reserved CPUs that are kept.
	rulesOf := func(kept cpuset.Set, o *ledger.Override) (ledger.Rules, error) {
		set, err := sets.keeping(c, found, kept, o)
		if err != nil {
			return ledger.Rules{}, err
		}
		return set.Rules, nil
	}
	options := journal.Options{
		EpochID: epoch.NewID(), NewEpochID: epoch.NewID,
		BootID: g.boot,
		Rules:  set.Rules,
		Restore: func(o ledger.Override) (rules ledger.Rules, ok bool) {
			rules, s.start.DropReason = rulesOf(cpuset.Set{}, &o)
			return rules, s.start.DropReason == nil
		},
		// A start in the same boot keeps what the berthd before it kept.
		Keep: func(reserved cpuset.Set, o *ledger.Override) (ledger.Rules, bool) {
			rules, err := rulesOf(c.KeptReserved(reserved), o)
			return rules, err == nil
		},
		History: s.past,
	}
	if c.StrictState {
		if s.ledger, s.start.Ledger, err = s.store.OpenStrict(ctx, options, g.Now()); errdefs.ClassOf(err) == errdefs.Corrupt {
			return nil, fmt.Errorf("%w; without strictState (--strict-state) the file would be set aside, and its intact records kept", err)
		}
	} else {
		s.ledger, s.start.Ledger, s.start.Damage, err = s.store.OpenLedger(ctx, options, g.Now())
	}
	if err != nil {
		return nil, fmt.Errorf("open the ledger %s: %w", path, err)
	}
	if s.mark != nil {
		s.ledger.Follow(markCommits(s.mark, g.Log)) // first follower: the mark precedes all notifications
	}
	s.sets = setMaker{facts: facts, view: s.ledger.View}
	view := s.ledger.View()
	rules := view.Rules()
	if s.first, err = s.sets.keeping(c, found, cpuset.Set{}, view.Override()); err != nil {
		return nil, fmt.Errorf("restore the policy that was set before: %w", err)
	}
	if rules.ReservedCPUs != s.first.Rules.ReservedCPUs {
		if s.first, err = s.sets.keeping(c, found, rules.ReservedCPUs, view.Override()); err != nil {
			return nil, fmt.Errorf("keep the reserved CPUs: %w", err)
		}
	}
	s.start.Drift = s.first.Memory.Drift(view, s.start.Ledger.Memory)
	return s, nil
}

// openMark opens the mark of the last commit. Without the mark, a ledger that is one commit
// behind cannot be distinguished from a crash before that commit.
func openMark(ctx context.Context, g *given, opened *closers) *claimfiles.Mark {
	var mark *claimfiles.Mark
	err := makeClaimsDir(g.Config)
	if err == nil {
		mark, err = claimfiles.OpenMark(filepath.Join(claimsDir(g.Config), ".last-commit"), g.boot)
	}
	if err != nil {
		g.Log.WarnContext(ctx, "the last commit is not marked: a copy of the ledger that is older by one commit would not be recognized",
			"error", err)
		return nil
	}
	opened.add("the mark of the last commit", mark.Close)
	return mark
}

// markCommits returns what marks each commit, before the call that made it answers. Calls come one at a time.
func markCommits(mark *claimfiles.Mark, log *slog.Logger) func(_, v *ledger.View) {
	fails := false
	return func(_, v *ledger.View) {
		err := mark.Set(uint64(v.EpochID()), v.Revision())
		if err != nil && !fails {
			log.Warn("the last commit cannot be marked", "error", err)
		}
		fails = err != nil
	}
}

// acknowledged returns the last commit that the previous berthd marked. For a new or salvaged
// ledger the revision is 0, because a lower revision does not make it an older copy.
func (s *state) acknowledged() recovery.Commit {
	if s.mark == nil {
		return recovery.Commit{}
	}
	epoch, revision, _ := s.mark.Found()
	if s.start.Damage != nil || s.ledger.View().Generation() == 0 {
		revision = 0
	}
	return recovery.Commit{Epoch: ledger.EpochID(epoch), Revision: revision}
}

// probe reports whether a commit can succeed. Where the file is not in its place any more, a commit puts it back.
func (s *state) probe(ctx context.Context) error {
	err := s.store.Probe()
	if errors.Is(err, journal.ErrDetached) {
		_, err = s.ledger.RenewEpoch(ctx, epoch.NewID())
	}
	return err
}

// keepFile puts the ledger's file back before the end if it was removed since the last
// probe.
func (s *state) keepFile(ctx context.Context) error {
	if !errors.Is(s.store.InPlace(), journal.ErrDetached) {
		return nil
	}
	_, err := s.ledger.RenewEpoch(context.WithoutCancel(ctx), epoch.NewID())
	return err
}

// keepsPods reports whether pods have cgroups in the kernel, which show running processes.
func keepsPods(c config.Config) bool {
	return c.KernelCgroups() && c.Cgroups.PerQOS
}

// recordFiles are claim records that are files.
type recordFiles struct {
	*claimfiles.Files
	// renewed is how often their directory was made again, as logged.
	renewed int
}

// openRecords finds the storage of the pods' claim records: attributes of their cgroups. If the
// tree is in memory or stores no attributes, the records are files; files is nil otherwise.
func openRecords(ctx context.Context, g *given, tree cgroup.Tree, layout cgroup.Layout, opened *closers) (records cgroup.Records,
	files *recordFiles, err error) {
	if keepsPods(g.Config) {
		records, ok := tree.(cgroup.Records)
		if !ok {
			return nil, nil, nil // a test's tree without
		}
		_, err := records.ReadRecord(ctx, layout.Pods())
		if errdefs.ClassOf(err) != errdefs.Unsupported {
			return records, nil, nil
		}
		g.Log.WarnContext(ctx, "claim records are kept as files", "directory", claimsDir(g.Config), "error", err)
	}
	if err := makeClaimsDir(g.Config); err != nil {
		return nil, nil, err
	}
	opener, err := claimfiles.Open(claimsDir(g.Config), g.boot)
	if err != nil {
		return nil, nil, err
	}
	opened.add("the claim records", opener.Close)
	return opener, &recordFiles{Files: opener}, nil
}

// probe reports whether claim records can be written. Where their directory is not in its
// place any more, it is made again. Calls come one at a time.
func (r *recordFiles) probe(ctx context.Context, g *given) error {
	if r == nil {
		return nil // the kernel keeps them with the cgroups
	}
	renewed, err := r.Check()
	if renewed > r.renewed {
		r.renewed = renewed
		g.Log.WarnContext(ctx, "the directory of claim records was removed or replaced, and is made again",
			logs.Repaired(logs.Records, "directory", claimsDir(g.Config))...)
	}
	return err
}

// claimsDir is in the directory of berthd's socket, which a boot usually clears.
func claimsDir(c config.Config) string { return filepath.Join(filepath.Dir(c.Listen), "claims") }

// makeClaimsDir makes the directory of claim records, which is berthd's alone. The one
// around it is the socket's: others get through.
func makeClaimsDir(c config.Config) error {
	if err := trust.MkdirAll(filepath.Dir(c.Listen), privileges.ListenDirMode); err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	return trust.MkdirAll(claimsDir(c), 0o700)
}

// bootID returns the id of this boot, or the id of a test.
func (e *Environment) bootID(proc fs.FS) (string, error) {
	if e.Observed != nil {
		return "observed", nil
	}
	if e.Stage != nil && e.Stage.BootID != "" {
		return e.Stage.BootID, nil
	}
	return bootID(proc)
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

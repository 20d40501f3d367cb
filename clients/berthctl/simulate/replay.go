package simulate

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	"github.com/berthd/berth/api/bundle"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/clients/berthctl/drawing"
	"github.com/berthd/berth/clients/berthctl/get"
	"github.com/berthd/berth/clients/berthctl/pods"
	"github.com/berthd/berth/clients/internal/command"
	"github.com/berthd/berth/clients/internal/table"
	"github.com/berthd/berth/clients/simulation"
	"github.com/berthd/berth/managers/ledger/history"
	"github.com/berthd/berth/managers/machine"
)

const replayLong = `Decide about recorded requests again, with this berthctl's code, and list the verdicts that differ from the recorded ones.
Another machine (--machine) or configuration (--config, --topology-manager-policy and others) shows the effect that it would have had.

The record is a file of 'berthctl bundle', a ledger file (--ledger), or without both that of berthd, which needs the role
admin. A ledger file is only read, also while berthd has it open. It has neither the machine nor the configuration nor
the devices: give --machine, --config and --device.

With the recorded machine and configuration, each request is decided on the state of its time. With others, the pods
from before the oldest entry keep their allocations (on another machine they are admitted again), and each request is
decided on the state that the replay has reached. Removals and other calls are carried out as recorded. A pod that only the replay
admits is not kept, because nothing says when it would have ended; with --keep-admitted it stays until a recorded call
removes it, and later pods cannot have its resources.

Plugins and external providers are not called, and the present health of devices is used. Requests that cannot be decided
again are counted. 10,000 entries take about 1 second of CPU time and 100 MB, and 1,000 explanations 1 second more.`

const replayExample = `  berthctl replay --topology-manager-policy single-numa-node
  berthctl replay --config new.yaml incident.tar.gz
  berthctl replay --ledger /var/lib/berth/ledger.db --machine machine.json --config berth.yaml -o json`

// replay's flags.
type replayFlags struct {
	sceneFlags
	ledger                   string
	keepPolicy, keepAdmitted bool
	explain                  int
}

func Replay(c *command.Ctl) *cobra.Command {
	var (
		f     replayFlags
		drawn drawing.Flags
	)
	cmd := c.Local(command.About{
		Use:   "replay [BUNDLE | --ledger FILE] [--machine FILE|SHAPE] [--config FILE]",
		Short: "Decide about recorded requests again",
		Long:  replayLong, Example: replayExample, Args: []string{"[FILE]"},
	}, func(ctx context.Context, args []string) error {
		if f.explain < 0 {
			return command.Usagef("replay", "--explain %d: expected 0 or more", f.explain)
		}
		picture, err := drawn.Options(c)
		if err != nil {
			return command.Usagef("replay", "%v", err)
		}
		b, err := f.record(ctx, c, args)
		if err != nil {
			return err
		}
		scene, err := f.scene(ctx, c, "replay", b)
		if err != nil {
			return err
		}
		rec, err := simulation.RecordOf(b, scene.Machine)
		if err != nil {
			return err
		}
		out, placed, err := scene.Replay(ctx, rec, simulation.ReplayOptions{KeepPolicy: f.keepPolicy, KeepAdmitted: f.keepAdmitted,
			Explain: f.explain})
		if err != nil {
			return err
		}
		known, err := recordedNames(rec)
		if err != nil {
			return err
		}
		if err := c.Show(out, func(w io.Writer) { showReplay(c, w, out, known) }); err != nil {
			return err
		}
		if drawn.Draw && !c.ForPrograms() {
			fmt.Fprintln(c.Out)
			return drawing.ShowMap(c, drawing.SimulatedState(scene, placed), picture)
		}
		return nil
	})
	fs := cmd.Flags()
	f.declare(fs, "the recorded one")
	fs.StringVar(&f.ledger, "ledger", "", "ledger file to read in place of a bundle")
	fs.BoolVar(&f.keepAdmitted, "keep-admitted", false, "keep pods that only the replay admits until a recorded call removes them")
	fs.BoolVar(&f.keepPolicy, "keep-policy", false,
		"leave out recorded changes of the policy (SetPolicy): the configuration's policy holds throughout")
	fs.IntVar(&f.explain, "explain", 10, "how many verdicts that differ to explain")
	drawn.Declare(cmd, "draw the machine after the last entry")
	command.ChoosePolicies(cmd, "topology-manager-policy", "topology-manager-scope", "topology-planning", "cpu-manager-policy")
	return cmd
}

// record reads a bundle, a ledger file, or what berthd has.
func (f *replayFlags) record(ctx context.Context, c *command.Ctl, args []string) (b *bundle.Bundle, err error) {
	switch {
	case len(args) > 0 && f.ledger != "":
		return nil, command.Usagef("replay", "--ledger contradicts %s: give one of both", args[0])
	case len(args) > 0:
		return bundle.ReadFile(args[0])
	case f.ledger == "":
		err := c.Connected(ctx, func(ctx context.Context, s *command.Session) (err error) {
			b, err = bundle.Collect(s.Bundle(ctx))
			return err
		})
		return b, err
	case f.machine == "":
		return nil, command.Usagef("replay",
			"--machine is missing: a ledger file does not have the machine, which 'berthctl topology --export' writes")
	}
	m, err := findMachine(ctx, f.machine)
	if err != nil {
		return nil, err
	}
	return readLedger(ctx, c, f.ledger, m)
}

// recordedNames are the names of all pods of a record.
func recordedNames(r *simulation.Record) (command.Names, error) {
	known := make(command.Names)
	for p := range r.View.Pods() {
		known[p.UID()] = p.Pod.Namespace + "/" + p.Pod.Name
	}
	err := r.History(func(e *history.Entry, _ error) bool {
		if e.Name != "" {
			known[e.Pod] = e.Namespace + "/" + e.Name
		}
		return true
	})
	return known, err
}

// readLedger reads a ledger file, and warns of its damage.
func readLedger(ctx context.Context, c *command.Ctl, path string, m *machine.Topology) (*bundle.Bundle, error) {
	b, damage, err := bundle.FromLedger(ctx, path, m)
	if damage != nil {
		c.Warn("%s is damaged, and only the undamaged part is used: %s", path,
			damage.Error())
	}
	return b, err
}

// showReplay prints how many verdicts differ, and each of them.
func showReplay(c *command.Ctl, w io.Writer, r *admissionv1.Replay, known command.Names) {
	scope := ""
	if r.GetTopologyPolicy() != "none" {
		scope = ", " + r.GetTopologyScope() + " scope"
	}
	fmt.Fprintf(w, "%s; topology policy %s%s; CPU policy %s\n", origin(r), r.GetTopologyPolicy(), scope, r.GetCpuPolicy())
	if r.GetEntries() > 0 {
		fmt.Fprintf(w, "%s from %s to %s; before the first one %s at revision %d\n", entryCount(int(r.GetEntries())),
			stamp(r.GetBeginTime()), stamp(r.GetEndTime()),
			table.Count(int(r.GetBeginPods()), "pod"), r.GetBeginRevision())
	}
	if r.GetBeginReason() != "" {
		fmt.Fprintf(w, "the state before that is not known: %s\n", command.OneLine(r.GetBeginReason()))
	}
	if n := r.GetPolicyChanges(); n > 0 {
		fmt.Fprintf(w, "the policy was set by %s, which replaced the configuration's (--keep-policy leaves them out)\n",
			table.Count(int(n), "recorded call"))
	}
	if n := r.GetMachineChanges(); n > 0 {
		fmt.Fprintf(w, "the machine changed: %s\n", table.Count(int(n), "time"))
	}
	fmt.Fprintf(w, "\n%d of %s\n", r.GetDiffer(), differing(r.GetVerdicts()))
	if n := r.GetMoved(); n > 0 {
		fmt.Fprintf(w, "%s other CPUs, memory or devices than recorded\n", holding(n))
	}
	if n := r.GetOtherConfiguration(); n > 0 {
		fmt.Fprintf(w, "%d of the verdicts were recorded under a configuration that is not known any more\n", n)
	}
	for _, s := range r.GetSkipped() {
		fmt.Fprintf(w, "%d not decided again: %s\n", s.GetCount(), command.OneLine(s.GetText()))
	}
	for _, p := range r.GetRefusedAtBegin() {
		fmt.Fprintf(w, "%s/%s, which was there before the first entry, is %s\n", p.GetNamespace(), p.GetName(),
			pods.VerdictText(p.GetVerdict()))
	}
	if len(r.GetDifferences()) == 0 {
		return
	}
	t := table.New("TIME", "CALL", "POD", "RECORDED", "REASON", "NOW", "REASON").Wide(c.Wide(), "UID", "ENTRY")
	for _, d := range r.GetDifferences() {
		t.Row(stamp(d.GetDecisionTime()), d.GetCall(), d.GetNamespace()+"/"+d.GetName(), convert.Word(d.GetRecorded()),
			d.GetRecordedReason(),
			convert.Word(d.GetReplayed().GetVerdict()), d.GetReplayed().GetReason(), d.GetPodUid(), fmt.Sprint(d.GetEntry()))
	}
	fmt.Fprintf(w, "\n%v", t)
	for _, d := range r.GetDifferences() {
		if d.GetReplayed().GetTrace() == nil {
			fmt.Fprintf(w, "\nthe others are not explained: --explain %d explains all\n", r.GetDiffer())
			break
		}
		showReplayed(c, w, d, known)
	}
}

// showReplayed explains a verdict that differs.
func showReplayed(c *command.Ctl, w io.Writer, d *admissionv1.ReplayedVerdict, known command.Names) {
	was := convert.Word(d.GetRecorded())
	for _, why := range []string{d.GetRecordedReason(), d.GetRecordedMessage()} {
		if why != "" { // a masked bundle has no messages
			was += ": " + command.OneLine(why)
		}
	}
	fmt.Fprintf(w, "\n%s %s of %s/%s\n", stamp(d.GetDecisionTime()), d.GetCall(), d.GetNamespace(), d.GetName())
	fmt.Fprintf(w, "recorded: %s\n", was)
	if d.GetOtherConfiguration() {
		fmt.Fprintln(w, "  under a configuration that is not known any more")
	}
	fmt.Fprintf(w, "now: %s\n", pods.VerdictText(d.GetReplayed()))
	get.ExplainAll(c, w, d.GetReplayed().GetTrace())
}

// origin says whose machine and configuration decide.
func origin(r *admissionv1.Replay) string {
	name := "the recorded machine"
	if !r.GetSameMachine() {
		name = "another machine"
	}
	if r.GetMachine() != "" {
		name += " " + r.GetMachine()
	}
	if r.GetSameConfiguration() {
		return name + " with the recorded configuration"
	}
	return name + " with another configuration"
}

func entryCount(n int) string {
	if n == 1 {
		return "1 entry"
	}
	return fmt.Sprintf("%d entries", n)
}

func differing(n uint32) string {
	if n == 1 {
		return "1 verdict differs"
	}
	return fmt.Sprintf("%d verdicts differ", n)
}

func holding(n uint32) string {
	if n == 1 {
		return "1 admitted pod has"
	}
	return fmt.Sprintf("%d admitted pods have", n)
}

// stamp returns a time as the history does, so that it can be given to --at.
func stamp(t *timestamppb.Timestamp) string { return t.AsTime().Format(command.TimeMillis) }

package simulate

import (
	"context"
	"fmt"
	"io"
	"strconv"

	"github.com/spf13/cobra"

	fitv1 "github.com/berthd/berth/api/berth/fit/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/bundle"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/api/sentences"
	"github.com/berthd/berth/clients/internal/command"
	"github.com/berthd/berth/clients/internal/table"
	"github.com/berthd/berth/clients/simulation"
)

const fitLong = `Show which pods fit now, after other pods have moved, later or never, and what is free on each NUMA node. Nothing
changes.

The pods are decided about in order, each together with the pods before it that fit. A pod that fits later would be
admitted if no other pod were there; a pod that never fits would be rejected even then, with the present devices and
policy. NODES are the NUMA nodes of what a pod gets. Without -f only the resources of the NUMA nodes are shown: FREE/TOTAL is
what is free of the allocatable amount.

A pod that fits "after-defragmentation" fits after 'berthctl defrag' has moved up to --max-moves other pods that allow
it. Such moves are searched after the decisions about all pods that fit now.

--bundle takes the pods that are admitted, the machine, the configuration and the devices from a file of 'berthctl
bundle', --ledger from a ledger file, which has only the pods: give --machine, --config and --device, too. Both need no
berthd.

The exit code is 3 if a pod does not fit now.`

const fitExample = `  berthctl fit
  berthctl fit -f pods/ -o json
  berthctl fit -f pod.yaml --bundle incident.tar.gz --topology-manager-policy best-effort
  berthctl fit -f pod.yaml --ledger /var/lib/berth/ledger.db --machine machine.json --config berth.yaml`

// fit's flags.
type fitFlags struct {
	sceneFlags
	pods           command.Manifest
	bundle, ledger string
	maxMoves       uint32
}

func Fit(c *command.Ctl) *cobra.Command {
	var f fitFlags
	cmd := c.Local(command.About{
		Use:   "fit [-f FILE] [--bundle FILE | --ledger FILE]",
		Short: "Show which pods fit, and what the NUMA nodes have left",
		Long:  fitLong, Example: fitExample,
	}, func(ctx context.Context, _ []string) error {
		f.pods.GenerateUID = true
		var pods []*typesv1.Pod
		if len(f.pods.Files) > 0 {
			var err error
			if pods, err = f.pods.Load(ctx, c); err != nil {
				return err
			}
		}
		out, err := f.answer(ctx, c, pods)
		if err != nil {
			return err
		}
		if err := c.Show(out, func(w io.Writer) { showFit(w, out) }); err != nil {
			return err
		}
		if out.GetNow() < uint32(len(out.GetPods())) {
			return command.Verdict(command.ExitRejected)
		}
		return nil
	})
	fs := cmd.Flags()
	fs.StringSliceVarP(&f.pods.Files, "filename", "f", nil, command.FilesUsage)
	f.pods.ReadingFlags(fs)
	fs.Uint32Var(&f.maxMoves, "max-moves", 4, "the most other pods that move for a pod, up to 16; 0: none")
	fs.StringVar(&f.bundle, "bundle", "", "bundle to read in place of asking berthd")
	fs.StringVar(&f.ledger, "ledger", "", "ledger file to read in place of asking berthd")
	f.declare(fs, "that of the bundle")
	command.ChoosePolicies(cmd, "topology-manager-policy", "topology-manager-scope", "topology-planning", "cpu-manager-policy")
	return cmd
}

// answer is berthd's answer, or what it would be for a record.
func (f *fitFlags) answer(ctx context.Context, c *command.Ctl, pods []*typesv1.Pod) (out *fitv1.FitResponse, err error) {
	if f.bundle == "" && f.ledger == "" {
		if f.sceneFlags.given() {
			return nil, command.Usagef("fit", "--machine, --config, --topology-manager-policy and the like are for --bundle and --ledger")
		}
		err := c.Connected(ctx, func(ctx context.Context, s *command.Session) (err error) {
			if len(pods) > 0 {
				out, err = s.Fit().Fit(ctx, &fitv1.FitRequest{Pods: pods, MaxMoves: f.maxMoves})
				return err
			}
			free, err := s.Fit().GetFreeResources(ctx, &fitv1.GetFreeResourcesRequest{})
			out = &fitv1.FitResponse{Free: free.GetFree()}
			return err
		})
		return out, err
	}
	b, err := f.record(ctx, c)
	if err != nil {
		return nil, err
	}
	scene, err := f.scene(ctx, c, "fit", b)
	if err != nil {
		return nil, err
	}
	rec, err := simulation.RecordOf(b, scene.Machine)
	if err != nil {
		return nil, err
	}
	return scene.Fit(ctx, pods, int(f.maxMoves), rec)
}

// record reads a bundle or a ledger file.
func (f *fitFlags) record(ctx context.Context, c *command.Ctl) (*bundle.Bundle, error) {
	switch {
	case f.bundle != "" && f.ledger != "":
		return nil, command.Usagef("fit", "--ledger contradicts --bundle: give one of both")
	case f.bundle != "":
		return bundle.ReadFile(f.bundle)
	case f.machine == "":
		return nil, command.Usagef("fit",
			"--machine is missing: a ledger file does not have the machine, which 'berthctl topology --export' writes")
	}
	m, err := findMachine(ctx, f.machine)
	if err != nil {
		return nil, err
	}
	return readLedger(ctx, c, f.ledger, m)
}

// showFit prints a line for each pod and for each NUMA node.
func showFit(w io.Writer, out *fitv1.FitResponse) {
	if len(out.GetPods()) > 0 {
		t := table.New("POD", "FITS", "NODES", "MOVES", "REASON", "MESSAGE")
		for _, p := range out.GetPods() {
			t.Row(p.GetNamespace()+"/"+p.GetName(), convert.Word(p.GetFit()), sentences.Nodes(p.GetNumaNodes()),
				moves(p.GetMoves(), p.GetMovedBytes()), p.GetReason(), p.GetMessage())
		}
		fmt.Fprintf(w, "%v\n%s: %d now, ", t, table.Count(len(out.GetPods()), "pod"), out.GetNow())
		if n := out.GetAfterDefragmentation(); n > 0 {
			fmt.Fprintf(w, "%d after defragmentation (moves: %s), ", n, moves(out.GetMoves(), out.GetMovedBytes()))
		}
		fmt.Fprintf(w, "%d later, %d never\n\n", out.GetLater(), out.GetNever())
		if out.GetSearchLimited() {
			fmt.Fprint(w, "the search for moves has reached its limit: more of the pods that fit later may fit after moves\n\n")
		}
	}
	fmt.Fprint(w, freeTable(out.GetFree()))
}

// moves returns how many pods move, with how much memory; empty for none.
func moves(count uint32, bytes uint64) string {
	switch {
	case count == 0:
		return ""
	case bytes == 0:
		return strconv.Itoa(int(count))
	}
	return fmt.Sprintf("%d, at most %s", count, table.Bytes(bytes))
}

// freeTable has a row for each NUMA node and a column for each resource that any node has.
func freeTable(free *fitv1.FreeResources) *table.Table {
	resources := resourceNames(free.GetNodes())
	t := table.New(resourceHeaders(resources, "NODE")...)
	for _, n := range free.GetNodes() {
		t.Row(append([]string{strconv.Itoa(int(n.GetNumaNode()))}, resourceCells(n, resources, "-", func(r *fitv1.NodeResource) string {
			return pair(r.GetResource(), r.GetAvailable(), r.GetAllocatable())
		})...)...)
	}
	return t
}

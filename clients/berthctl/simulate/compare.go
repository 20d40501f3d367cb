package simulate

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/bundle"
	"github.com/berthd/berth/clients/internal/command"
	"github.com/berthd/berth/clients/internal/table"
	"github.com/berthd/berth/clients/simulation"
	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/topology"
)

const compareLong = `Decide again about the pods of a kubelet's node, in the order in which the kubelet has decided about them, with each topology
policy: as the kubelet plans a pod ("kubelet"), and as berth does ("berth"). One table says how many pods are admitted, how
many of them are aligned, and how many free CPUs are scattered; below it are the pods that differ, with the rows.

The pods are those that run, and those that the kubelet has rejected for their CPUs, memory or devices. Each row begins with
an empty machine, with the node's devices and its kubelet's configuration; only topology.planning and the topology policy
change. docs/kubelet.md defines each column.

It requires --kubelet, and --pods unless the kubelet has the Pods API. Nothing changes.`

const compareExample = `  berthctl compare --kubelet --pods pods.json
  berthctl compare --kubelet=copy-of-the-node --pods pods.json -o json`

// Compare makes 'berthctl compare'.
func Compare(c *command.Ctl) *cobra.Command {
	return c.Local(command.About{
		Use:   "compare",
		Short: "Compare kubelet and berth on a kubelet's node",
		Long:  compareLong, Example: compareExample,
	}, func(ctx context.Context, _ []string) error {
		return c.OfNode(ctx, "'berthctl policy set --dry-run' is for a berthd",
			func(ctx context.Context, n *command.Observed, s *command.Session) error {
				out, err := compare(ctx, n, s)
				if err != nil {
					return err
				}
				return showComparison(c, out)
			})
	})
}

// compare decides about the pods of a node.
func compare(ctx context.Context, n *command.Observed, s *command.Session) (*comparison, error) {
	b, err := collected(ctx, s)
	if err != nil {
		return nil, err
	}
	scene := simulation.Scene{Machine: b.Machine, Config: *b.Config, Devices: b.DevicesByResource(), Facts: b.Node}
	// A kubelet admits a pod without a resource that no plugin has registered.
	scene.Config.Devices.Elsewhere = []string{admission.Everywhere}
	var pods []*typesv1.Pod
	for _, p := range n.Decided {
		pods = append(pods, p.Pod)
	}
	found, err := scene.Compare(ctx, pods)
	if err != nil {
		return nil, err
	}
	return comparisonOf(n.Decided, found), nil
}

// collected is a kubelet's node as a bundle.
func collected(ctx context.Context, s *command.Session) (*bundle.Bundle, error) {
	b, err := bundle.Collect(s.Bundle(ctx))
	if err == nil && (b.Machine == nil || b.Config == nil) {
		err = fmt.Errorf("read the node: %s", strings.Join(b.About.Missing, ", "))
	}
	return b, err
}

// comparison is printed as docs/cli-output.md documents it.
type comparison struct {
	Rows []comparedRow `json:"items"`
	Pods int           `json:"pods"`
	// Differences are the pods that have not the same outcome in all rows.
	Differences []comparedPod `json:"differences,omitempty"`
	// NotRepeated are the pods about which the first row decides otherwise than the kubelet has.
	NotRepeated []notRepeated `json:"notRepeated,omitempty"`
	// Attempts are the rejected pods of controllers after the first one of each: attempts for one replica, or for several.
	Attempts int `json:"attempts"`
	// undated is the number of pods whose place in the order is not known.
	undated int
}

type comparedRow struct {
	Decides string `json:"decides"`
	Policy  string `json:"policy"`
	InForce bool   `json:"inForce"`
	// Refused is why the row has no numbers.
	Refused  string `json:"refused,omitempty"`
	Admitted int    `json:"admitted"`
	Rejected int    `json:"rejected"`
	// Placed pods are admitted, and have something on certain NUMA nodes.
	Placed    int `json:"placed"`
	Aligned   int `json:"aligned"`
	NUMANodes int `json:"numaNodes"`
	FreeCPUs  int `json:"freeCpus"`
	OneNode   int `json:"freeCpusOfOneNode"`
	Scattered int `json:"scatteredCpus"`
}

// named is a pod.
type named struct {
	UID       string `json:"uid"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

func nameOf(p *typesv1.Pod) named {
	m := p.GetMetadata()
	return named{m.GetUid(), m.GetNamespace(), m.GetName()}
}

func (n named) String() string { return n.Namespace + "/" + n.Name }

type comparedPod struct {
	named
	Fewest   int               `json:"fewestNumaNodes"`
	Outcomes []comparedOutcome `json:"outcomes"`
}

type comparedOutcome struct {
	Decides   string `json:"decides"`
	Policy    string `json:"policy"`
	Verdict   string `json:"verdict"`
	Reason    string `json:"reason,omitempty"`
	NUMANodes string `json:"numaNodes,omitempty"`
	Aligned   bool   `json:"aligned"`
	// count is the number of NUMA nodes.
	count int
}

type notRepeated struct {
	named
	// Kubelet and Replay are verdicts.
	Kubelet string `json:"kubelet"`
	Replay  string `json:"replay"`
	// Reason is that of the one that has rejected the pod.
	Reason string `json:"reason"`
}

const (
	admitted = "admitted"
	rejected = "rejected"
)

// who decides, by the planning.
var who = map[topology.Planning]string{topology.ByContainer: "kubelet", topology.ByPod: "berth"}

// comparisonOf sums up what was found about the pods.
func comparisonOf(pods []command.DecidedPod, found *simulation.Comparison) *comparison {
	out := &comparison{Pods: len(pods)}
	for i, r := range found.Rows {
		row := comparedRow{
			Decides: who[r.Planning], Policy: string(r.Policy), InForce: i == 0,
			FreeCPUs: r.CPUs.All, OneNode: r.CPUs.OneNode, Scattered: r.CPUs.Scattered,
		}
		if r.Refused != nil {
			row.Refused = r.Refused.Error()
		}
		for _, o := range r.Outcomes {
			row.count(o)
		}
		out.Rows = append(out.Rows, row)
	}
	rejecting := map[string]bool{}
	for i, p := range pods {
		if p.Undated {
			out.undated++
		}
		if p.Rejection != "" && p.Controller != "" {
			if rejecting[p.Controller] {
				out.Attempts++
			}
			rejecting[p.Controller] = true
		}
		one := comparedPod{named: nameOf(p.Pod), Fewest: found.Fewest[i]}
		for _, r := range found.Rows {
			if r.Refused == nil {
				one.Outcomes = append(one.Outcomes, outcomeOf(r, r.Outcomes[i]))
			}
		}
		if slices.ContainsFunc(one.Outcomes, one.Outcomes[0].differs) {
			out.Differences = append(out.Differences, one)
		}
		first, kubelet := one.Outcomes[0], admitted
		if p.Rejection != "" {
			kubelet = rejected
		}
		if kubelet != first.Verdict {
			out.NotRepeated = append(out.NotRepeated, notRepeated{one.named, kubelet, first.Verdict, cmp.Or(p.Rejection, first.Reason)})
		}
	}
	return out
}

func (r *comparedRow) count(o simulation.Outcome) {
	if !o.Admitted {
		r.Rejected++
		return
	}
	r.Admitted++
	if r.NUMANodes += o.Nodes.Len(); !o.Nodes.IsEmpty() {
		r.Placed++
	}
	if o.Aligned {
		r.Aligned++
	}
}

func outcomeOf(r simulation.Compared, o simulation.Outcome) comparedOutcome {
	out := comparedOutcome{
		Decides: who[r.Planning], Policy: string(r.Policy), Verdict: rejected, Reason: o.Reason, Aligned: o.Aligned, count: o.Nodes.Len(),
	}
	if o.Admitted {
		out.Verdict, out.NUMANodes = admitted, o.Nodes.String()
	}
	return out
}

// differs reports whether a pod is admitted or aligned with one of two outcomes only.
func (o comparedOutcome) differs(from comparedOutcome) bool {
	return o.Verdict != from.Verdict || o.Aligned != from.Aligned
}

// same reports whether two outcomes have the same text.
func (o comparedOutcome) same(as comparedOutcome) bool {
	return o.Verdict == as.Verdict && o.Reason == as.Reason && o.Aligned == as.Aligned && o.count == as.count
}

// mostShown is how many pods people see of a list. Programs see all.
const mostShown = 20

func showComparison(c *command.Ctl, out *comparison) error {
	if out.undated > 0 {
		c.Warn("%s: the order of the admissions is not known, and neither are rejected pods: give the pods with --pods FILE",
			table.Count(out.undated, "pod"))
	}
	if out.Attempts > 0 {
		c.Warn("%d of the pods may be further attempts for a replica whose pod was rejected: a row that admits the first one counts them, too",
			out.Attempts)
	}
	for i, p := range out.NotRepeated {
		if i == mostShown {
			c.Warn("not repeated: %d more; -o json has them", len(out.NotRepeated)-i)
			break
		}
		c.Warn("not repeated: %s: the kubelet has %s it, and here it is %s (%s): the node may have had other pods then", p.named, p.Kubelet,
			p.Replay, p.Reason)
	}
	if c.ForPrograms() {
		raw, err := json.Marshal(out)
		if err != nil {
			return fmt.Errorf("print the comparison: %w", err)
		}
		return c.Print("Comparison", raw)
	}
	return c.Say(func(w io.Writer) {
		fmt.Fprint(w, comparedRows(out.Rows))
		showRefused(w, out.Rows)
		fmt.Fprintf(w, "\nthe rows differ about %d of %s\n", len(out.Differences), table.Count(out.Pods, "pod"))
		for i, p := range out.Differences {
			if i == mostShown {
				fmt.Fprintf(w, "\nand %d more; -o json has them\n", len(out.Differences)-i)
				break
			}
			showDifference(w, p)
		}
	})
}

func comparedRows(rows []comparedRow) *table.Table {
	t := table.New("DECIDES", "POLICY", "ADMITTED", "REJECTED", "ALIGNED/PLACED", "NODES/POD", "FREE-CPUS", "OF-ONE-NODE", "SCATTERED")
	for _, r := range rows {
		policy := r.Policy
		if r.InForce {
			policy += " (now)"
		}
		if r.Refused != "" {
			t.Row(r.Decides, policy, "-", "-", "-", "-", "-", "-", "-")
			continue
		}
		per := "-"
		if r.Placed > 0 {
			per = fmt.Sprintf("%.2f", float64(r.NUMANodes)/float64(r.Placed))
		}
		t.Row(r.Decides, policy, strconv.Itoa(r.Admitted), strconv.Itoa(r.Rejected), fmt.Sprintf("%d/%d", r.Aligned, r.Placed), per,
			strconv.Itoa(r.FreeCPUs), strconv.Itoa(r.OneNode), strconv.Itoa(r.Scattered))
	}
	return t
}

// rowList lists rows by who decides: "kubelet none, restricted; berth none".
type rowList struct {
	text, last string
}

func (l *rowList) add(decides, policy string) {
	switch {
	case decides == l.last:
		l.text += ", " + policy
		return
	case l.last != "":
		l.text += "; "
	}
	l.text += decides + " " + policy
	l.last = decides
}

// showRefused prints each reason for rows without numbers, with the rows.
func showRefused(w io.Writer, rows []comparedRow) {
	for i, r := range rows {
		if r.Refused == "" || slices.IndexFunc(rows, func(o comparedRow) bool { return o.Refused == r.Refused }) < i {
			continue
		}
		var list rowList
		for _, o := range rows {
			if o.Refused == r.Refused {
				list.add(o.Decides, o.Policy)
			}
		}
		fmt.Fprintf(w, "\nnot possible on this machine: %s: %s\n", list.text, command.OneLine(r.Refused))
	}
}

// showDifference prints each outcome of a pod with the rows that have it.
func showDifference(w io.Writer, p comparedPod) {
	fmt.Fprintf(w, "\n%s\n", command.OneLine(p.String()))
	for i, o := range p.Outcomes {
		if slices.IndexFunc(p.Outcomes, o.same) < i {
			continue
		}
		var list rowList
		for _, other := range p.Outcomes {
			if other.same(o) {
				list.add(other.Decides, other.Policy)
			}
		}
		fmt.Fprintf(w, "  %s: %s\n", outcomeText(p, o), list.text)
	}
}

func outcomeText(p comparedPod, o comparedOutcome) string {
	switch {
	case o.Verdict == rejected:
		return fmt.Sprintf("%s (%s)", rejected, command.OneLine(o.Reason))
	case o.Aligned:
		return "aligned on " + table.Count(o.count, "NUMA node")
	case o.count > 0 && p.Fewest > 0:
		return fmt.Sprintf("not aligned: on %s instead of %d", table.Count(o.count, "NUMA node"), p.Fewest)
	case o.count > 0:
		return "not aligned: on " + table.Count(o.count, "NUMA node")
	}
	return admitted
}

package machine

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	topologyv1 "github.com/berthd/berth/api/berth/topology/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/clients/internal/command"
	"github.com/berthd/berth/clients/internal/table"
)

func Policy(c *command.Ctl) *cobra.Command {
	return command.Group(command.About{
		Use:   "policy",
		Short: "Show or change the policies of the resource managers",
		Example: `  berthctl policy get
  berthctl policy set --topology-manager-policy restricted --dry-run`,
	}, policyGet(c), policySet(c))
}

func policyGet(c *command.Ctl) *cobra.Command {
	return c.Verb(command.About{
		Use:     "get",
		Short:   "Show the policy in force",
		Long:    "Show the policies of the topology, CPU and memory managers, what is reserved, and whether this is as configured.",
		Example: `  berthctl policy get -o json`,
	}, func(ctx context.Context, s *command.Session, _ []string) error {
		answer, err := s.Topology().GetPolicy(ctx, &topologyv1.GetPolicyRequest{})
		if err != nil {
			return err
		}
		return s.Show(answer, func(w io.Writer) {
			fmt.Fprint(w, settingsFields(answer.GetSettings()))
			if answer.GetOverridden() {
				fmt.Fprintf(w, "\nset at %s in place of what the configuration says\n", answer.GetSetTime().AsTime().Format(time.RFC3339))
			}
		})
	})
}

// settingsFields returns a policy, a line for each setting that has a value.
func settingsFields(p *topologyv1.PolicySettings) *table.Fields {
	f := table.NewFields("")
	scope := p.GetTopologyScope()
	if p.GetTopologyPolicy() == "none" {
		scope = ""
	}
	f.Add("Topology policy", p.GetTopologyPolicy()+command.Options(p.GetTopologyOptions()))
	f.Add("Topology scope", scope)
	f.Add("Planning of pods", p.GetTopologyPlanning())
	if n := p.GetTopologyMaxNodes(); n > 0 && scope != "" {
		f.Add("NUMA nodes", fmt.Sprintf("at most %d", n))
	}
	f.Add("CPU policy", p.GetCpuPolicy()+command.Options(p.GetCpuOptions()))
	f.Add("Memory policy", p.GetMemoryPolicy())
	reserved := p.GetReservedCpus().GetList()
	if reserved != "" && p.GetCpuPolicy() == "none" {
		reserved += fmt.Sprintf(" (CPU policy none uses only their number, %d)", command.Set(p.GetReservedCpus()).Len())
	}
	f.Add("Reserved CPUs", reserved)
	f.Add("Reserved for the system", strings.Join(command.AmountTexts(p.GetSystemReserved(), "="), ", "))
	f.Add("Reserved for agents", strings.Join(command.AmountTexts(p.GetKubeReserved(), "="), ", "))
	f.Add("Evictions begin at", strings.Join(command.Pairs(p.GetEvictionHard()), ", "))
	for _, r := range p.GetReservedMemory() {
		f.Add("Reserved memory", fmt.Sprintf("node %d: %s", r.GetNumaNode(), strings.Join(command.AmountTexts(r.GetLimits(), "="), ", ")))
	}
	return f
}

const policySetLong = `Change the policies of the resource managers, all at once or not at all. Settings without a flag stay as they are.

No pod is stopped, and every pod keeps its CPUs, memory and devices. The output shows what running pods would get if they
were admitted with the new policy. The change survives restarts of berthd, until the policy in files or flags changes.`

const policySetExample = `  # Show the effect only.
  berthctl policy set --topology-manager-policy single-numa-node --reserved-cpus 0,32 --dry-run

  berthctl policy set --cpu-manager-policy static --cpu-manager-policy-options full-pcpus-only=true --reserved-cpus 0-1
  berthctl policy set --cpu-manager-policy-options ''

  # Back to the configured policy.
  berthctl policy set --from-configuration`

// policyFlags are the flags of policy set. A missing flag changes nothing.
type policyFlags struct {
	dryRun, configured                              bool
	topology, scope, planning, cpu, memory, cpus    string
	topologyOptions, cpuOptions, systemKeeps, keeps string
	eviction, reservedMemory                        string
	maxNodes                                        uint32
}

func (f *policyFlags) declare(fs *pflag.FlagSet) {
	fs.BoolVar(&f.dryRun, "dry-run", false, "show the effect, and change nothing")
	fs.BoolVar(&f.configured, "from-configuration", false, "begin with the configured policy instead of the active one")
	fs.StringVar(&f.topology, "topology-manager-policy", "", "none, best-effort, restricted or single-numa-node")
	fs.StringVar(&f.scope, "topology-manager-scope", "", "container or pod")
	fs.StringVar(&f.planning, "topology-planning", "", "which containers of a pod are planned first: pod or container")
	fs.StringVar(&f.topologyOptions, "topology-manager-policy-options", "",
		"options of the topology policy, all of them, as name=value; '' for none")
	fs.Uint32Var(&f.maxNodes, "topology-max-nodes", 0, "how many NUMA nodes the machine may have; 0 for as many as berth can do")
	fs.StringVar(&f.cpu, "cpu-manager-policy", "", "none or static")
	fs.StringVar(&f.cpuOptions, "cpu-manager-policy-options", "",
		"options of the CPU policy, all of them, as name=value; '' for none")
	fs.StringVar(&f.memory, "memory-manager-policy", "", "None or Static")
	fs.StringVar(&f.cpus, "reserved-cpus", "", "list of reserved CPUs, in place of amounts; '' uses the amounts")
	fs.StringVar(&f.systemKeeps, "system-reserved", "", "what the system keeps, as cpu=500m,memory=1Gi; '' for nothing")
	fs.StringVar(&f.keeps, "kube-reserved", "", "what node agents keep, as cpu=500m,memory=1Gi; '' for nothing")
	fs.StringVar(&f.eviction, "eviction-hard", "", "how little may be left, all signals, as memory.available=100Mi; '' for none")
	fs.StringVar(&f.reservedMemory, "reserved-memory", "",
		"what is kept of NUMA nodes, all of it, as 0:memory=1Gi,hugepages-2Mi=64Mi;1:memory=1Gi; '' for nothing")
}

// request makes the request of the flags that are given.
func (f *policyFlags) request(fs *pflag.FlagSet) (*topologyv1.SetPolicyRequest, error) {
	req := &topologyv1.SetPolicyRequest{DryRun: f.dryRun, FromConfiguration: f.configured}
	for name, field := range map[string]struct {
		to    **string
		value *string
	}{
		"topology-manager-policy": {&req.TopologyPolicy, &f.topology}, "topology-manager-scope": {&req.TopologyScope, &f.scope},
		"topology-planning":  {&req.TopologyPlanning, &f.planning},
		"cpu-manager-policy": {&req.CpuPolicy, &f.cpu}, "memory-manager-policy": {&req.MemoryPolicy, &f.memory},
	} {
		if fs.Changed(name) {
			*field.to = field.value
		}
	}
	for name, field := range map[string]struct {
		to    **topologyv1.Values
		value string
	}{
		"topology-manager-policy-options": {&req.TopologyOptions, f.topologyOptions},
		"cpu-manager-policy-options":      {&req.CpuOptions, f.cpuOptions},
		"system-reserved":                 {&req.SystemReserved, f.systemKeeps}, "kube-reserved": {&req.KubeReserved, f.keeps},
		"eviction-hard": {&req.EvictionHard, f.eviction},
	} {
		if !fs.Changed(name) {
			continue
		}
		values, ok := namedValues(field.value)
		if !ok {
			return nil, command.Usagef("policy set", "--%s %s: expected name=value, several of them joined by commas", name, field.value)
		}
		*field.to = &topologyv1.Values{Values: values}
	}
	if fs.Changed("topology-max-nodes") {
		req.TopologyMaxNodes = &f.maxNodes
	}
	if fs.Changed("reserved-memory") {
		var ok bool
		if req.ReservedMemory, ok = reservedMemories(f.reservedMemory); !ok {
			return nil, command.Usagef("policy set",
				"--reserved-memory %s: expected NODE:name=amount, several amounts joined by commas and several nodes by semicolons",
				f.reservedMemory)
		}
	}
	if fs.Changed("reserved-cpus") {
		req.ReservedCpus = &typesv1.CPUSet{List: f.cpus}
	}
	return req, nil
}

// namedValues reads name=value pairs that are joined by commas.
func namedValues(text string) (values map[string]string, ok bool) {
	values = map[string]string{}
	if text == "" {
		return values, true
	}
	for one := range strings.SplitSeq(text, ",") {
		key, value, ok := strings.Cut(one, "=")
		if !ok {
			return nil, false
		}
		values[key] = value
	}
	return values, true
}

// reservedMemories reads the amounts of NUMA nodes as the kubelet's flag of that
// name has them.
func reservedMemories(text string) (*topologyv1.ReservedMemories, bool) {
	all := &topologyv1.ReservedMemories{}
	if text == "" {
		return all, true
	}
	for one := range strings.SplitSeq(text, ";") {
		id, amounts, _ := strings.Cut(one, ":")
		node, err := strconv.ParseUint(id, 10, 32)
		limits, ok := namedValues(amounts)
		if err != nil || !ok || len(limits) == 0 {
			return nil, false
		}
		all.Nodes = append(all.Nodes, &topologyv1.ReservedMemory{NumaNode: uint32(node), Limits: limits})
	}
	return all, true
}

func policySet(c *command.Ctl) *cobra.Command {
	var f policyFlags
	var cmd *cobra.Command
	cmd = c.Verb(command.About{
		Use:   "set [--dry-run]",
		Short: "Change the policy while pods run",
		Long:  policySetLong, Example: policySetExample,
	}, func(ctx context.Context, s *command.Session, _ []string) error {
		req, err := f.request(cmd.Flags())
		if err != nil {
			return err
		}
		answer, err := s.Topology().SetPolicy(ctx, req)
		if err != nil {
			return err
		}
		return s.Show(answer, func(w io.Writer) { showChange(w, answer, f.dryRun) })
	})
	f.declare(cmd.Flags())
	command.ChoosePolicies(cmd, "topology-manager-policy", "topology-manager-scope", "topology-planning", "cpu-manager-policy")
	command.Choices(cmd, "memory-manager-policy", "None", "Static")
	return cmd
}

// showChange prints the consequences of a change of policy.
func showChange(w io.Writer, a *topologyv1.SetPolicyResponse, dryRun bool) {
	switch {
	case !a.GetChanged():
		fmt.Fprintln(w, "this is the policy in force already")
	case dryRun:
		fmt.Fprintln(w, "the policy would be")
	default:
		fmt.Fprintf(w, "since revision %d the policy is\n", a.GetRevision())
	}
	fmt.Fprintf(w, "\n%v\n", settingsFields(a.GetSettings()))
	poolChange(w, "shared CPUs", a.GetSharedBefore(), a.GetSharedAfter())
	poolChange(w, "reserved CPUs", a.GetReservedBefore(), a.GetReservedAfter())
	if len(a.GetPods()) == 0 {
		fmt.Fprintln(w, "no pod is here")
		return
	}
	same := 0
	for _, p := range a.GetPods() {
		if p.GetFate() == topologyv1.Fate_FATE_SAME && len(p.GetGrandfathered()) == 0 {
			same++
		}
	}
	fmt.Fprintf(w, "all pods keep their resources; %d of %s would get the same amounts if admitted again\n", same,
		table.Count(len(a.GetPods()), "pod"))
	for _, p := range a.GetPods() {
		name := p.GetNamespace() + "/" + p.GetName()
		switch p.GetFate() {
		case topologyv1.Fate_FATE_REFUSED:
			fmt.Fprintf(w, "  %s would be rejected: %s: %s\n", name, p.GetReason(), command.OneLine(p.GetMessage()))
		case topologyv1.Fate_FATE_OTHERWISE:
			fmt.Fprintf(w, "  %s: %s\n", name, command.OneLine(p.GetMessage()))
		}
		for _, held := range p.GetGrandfathered() {
			fmt.Fprintf(w, "  %s keeps what the policy would not give: %s\n", name, command.OneLine(held))
		}
	}
}

// poolChange prints the change of a pool of CPUs.
func poolChange(w io.Writer, name string, before, after *typesv1.CPUSet) {
	if before.GetList() == after.GetList() {
		fmt.Fprintf(w, "%s: %s as before\n", name, cmp.Or(after.GetList(), "none"))
		return
	}
	fmt.Fprintf(w, "%s: %s instead of %s\n", name, cmp.Or(after.GetList(), "none"), cmp.Or(before.GetList(), "none"))
}

package topology

import (
	"context"
	"errors"
	"maps"
	"strings"

	"google.golang.org/protobuf/types/known/timestamppb"

	topologyv1 "github.com/berthd/berth/api/berth/topology/v1"
	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
)

// Policies holds the policy in force.
type Policies interface {
	// Policy returns the policy in force, and what made it so: nil if the
	// configuration did.
	Policy() (config.Policy, *ledger.Override)
	// SetPolicy puts in force, or only tries, what change makes of the policies in
	// force and of the configuration. It returns the new one, and whether it is
	// another one.
	SetPolicy(ctx context.Context, change func(now, configured config.Policy) config.Policy, dryRun bool) (
		p config.Policy, changed bool, outlook admission.Outlook, err error)
}

// GetPolicy implements TopologyService.
func (s *service) GetPolicy(context.Context, *topologyv1.GetPolicyRequest) (*topologyv1.GetPolicyResponse, error) {
	p, set := s.policies.Policy()
	out := &topologyv1.GetPolicyResponse{
		Policy: string(p.Topology.Policy), Scope: p.Topology.Scope, Options: p.Topology.Options,
		NumaNodes: convert.Mask(s.ledger.View().Machine().NodeMask()), Settings: settings(p),
	}
	if set != nil {
		out.Overridden, out.SetTime = true, timestamppb.New(set.SetAt)
	}
	return out, nil
}

// SetPolicy implements TopologyService.
func (s *service) SetPolicy(ctx context.Context, req *topologyv1.SetPolicyRequest) (*topologyv1.SetPolicyResponse, error) {
	var cpus cpuset.Set
	if req.GetReservedCpus() != nil {
		var err error
		if cpus, err = cpuset.Parse(req.GetReservedCpus().GetList()); err != nil {
			var vs errdefs.Violations
			vs.Addf("reserved_cpus.list", "%v", err)
			return nil, vs.Err("request")
		}
	}
	p, changed, outlook, err := s.policies.SetPolicy(ctx, func(now, configured config.Policy) config.Policy {
		if req.GetFromConfiguration() {
			now = configured
		}
		return changedBy(now, req, cpus)
	}, req.GetDryRun())
	if err != nil {
		return nil, ofRequest(err)
	}
	before, after := outlook.Before, outlook.After
	out := &topologyv1.SetPolicyResponse{
		Settings: settings(p), Changed: changed,
		SharedBefore: convert.CPUSet(before.SharedCPUs()), SharedAfter: convert.CPUSet(after.SharedCPUs()),
		ReservedBefore: convert.CPUSet(before.Rules().ReservedCPUs), ReservedAfter: convert.CPUSet(after.Rules().ReservedCPUs),
	}
	if out.Revision = after.Revision(); req.GetDryRun() {
		out.Revision = before.Revision()
	}
	for _, o := range outlook.Pods {
		out.Pods = append(out.Pods, fate(o))
	}
	return out, nil
}

// fields are the fields of a request for the configuration's settings.
var fields = []struct{ setting, field string }{
	{"topology.policy", "topology_policy"},
	{"topology.scope", "topology_scope"},
	{"topology.planning", "topology_planning"},
	{"topology.options", "topology_options.values"},
	{"topology.maxNodes", "topology_max_nodes"},
	{"cpu.policy", "cpu_policy"},
	{"cpu.options", "cpu_options.values"},
	{"memory.policy", "memory_policy"},
	{"memory.reserved", "reserved_memory.nodes"},
	{"reserved.system", "system_reserved.values"},
	{"reserved.kube", "kube_reserved.values"},
	{"reserved.evictionHard", "eviction_hard.values"},
	{"reserved.cpus", "reserved_cpus.list"},
}

// ofRequest names the fields of the request in an error about settings of the
// configuration.
func ofRequest(err error) error {
	e := new(errdefs.Error)
	if !errors.As(err, &e) || e.Class != errdefs.Invalid || len(e.Fields) == 0 {
		return err
	}
	var vs errdefs.Violations
	for _, v := range e.Fields {
		for _, f := range fields {
			if rest, ok := strings.CutPrefix(v.Field, f.setting); ok && (rest == "" || rest[0] == '[' || rest[0] == '.') {
				v.Field = f.field + rest
				break
			}
		}
		vs = append(vs, v)
	}
	return vs.Err("request")
}

// changedBy lays a request over a policy; cpus are the reserved ones that it names.
func changedBy(p config.Policy, req *topologyv1.SetPolicyRequest, cpus cpuset.Set) config.Policy {
	text := func(field *string, value *string) {
		if value != nil {
			*field = *value
		}
	}
	values := func(field *map[string]string, m *topologyv1.Values) {
		if m != nil {
			*field = m.GetValues()
		}
	}
	text((*string)(&p.Topology.Policy), req.TopologyPolicy)
	text(&p.Topology.Scope, req.TopologyScope)
	text((*string)(&p.Topology.Planning), req.TopologyPlanning)
	values(&p.Topology.Options, req.GetTopologyOptions())
	if req.TopologyMaxNodes != nil {
		p.Topology.MaxNodes = int(req.GetTopologyMaxNodes())
	}
	text(&p.CPU.Policy, req.CpuPolicy)
	values(&p.CPU.Options, req.GetCpuOptions())
	text(&p.Memory.Policy, req.MemoryPolicy)
	if req.GetReservedMemory() != nil {
		p.Memory.Reserved = nil
		for _, n := range req.GetReservedMemory().GetNodes() {
			p.Memory.Reserved = append(p.Memory.Reserved, config.ReservedMemory{NUMANode: int32(n.GetNumaNode()), Limits: n.GetLimits()})
		}
	}
	values(&p.Reserved.System, req.GetSystemReserved())
	values(&p.Reserved.Kube, req.GetKubeReserved())
	if m := req.GetEvictionHard(); m != nil {
		p.Reserved.EvictionHard = map[string]string{} // not nil, which means the kubelet's
		maps.Copy(p.Reserved.EvictionHard, m.GetValues())
	}
	if req.GetReservedCpus() != nil {
		p.Reserved.CPUs = cpus
	}
	return p
}

// settings returns the message form of a policy.
func settings(p config.Policy) *topologyv1.PolicySettings {
	out := &topologyv1.PolicySettings{
		TopologyPolicy: string(p.Topology.Policy), TopologyScope: p.Topology.Scope, TopologyOptions: p.Topology.Options,
		CpuPolicy: p.CPU.Policy, CpuOptions: p.CPU.Options, MemoryPolicy: p.Memory.Policy,
		SystemReserved: p.Reserved.System, KubeReserved: p.Reserved.Kube, ReservedCpus: convert.CPUSet(p.Reserved.CPUs),
		EvictionHard: p.Reserved.Eviction(), TopologyMaxNodes: uint32(max(p.Topology.MaxNodes, 0)),
		TopologyPlanning: string(p.Topology.Planning),
	}
	for _, r := range p.Memory.Reserved {
		out.ReservedMemory = append(out.ReservedMemory, &topologyv1.ReservedMemory{NumaNode: uint32(r.NUMANode), Limits: r.Limits})
	}
	return out
}

var fates = map[admission.Fate]topologyv1.Fate{
	admission.Same:      topologyv1.Fate_FATE_SAME,
	admission.Otherwise: topologyv1.Fate_FATE_OTHERWISE,
	admission.Refused:   topologyv1.Fate_FATE_REFUSED,
}

// fate returns the message form of what a change means for a pod.
func fate(o admission.PodOutlook) *topologyv1.PodFate {
	out := &topologyv1.PodFate{
		Uid: o.Pod.UID(), Namespace: o.Pod.Pod.Namespace, Name: o.Pod.Pod.Name,
		Fate: fates[o.Fate], Reason: string(o.Reason), Message: o.Message,
	}
	for _, f := range o.Findings {
		out.Grandfathered = append(out.Grandfathered, f.Text)
	}
	return out
}

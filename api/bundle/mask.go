package bundle

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/managers/cpu"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/history"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/topology"
	"github.com/berthd/berth/managers/workload"
)

// kind is a kind of names. Each has made names of its own.
type kind string

const (
	pods       kind = "pod"
	namespaces kind = "namespace"
	names      kind = "name"
	containers kind = "container"
	ids        kind = "id" // of admissions and runtime containers
	devices    kind = "device"
	processes  kind = "process"
	users      kind = "user"
	owners     kind = "owner"
	classes    kind = "class"
	providers  kind = "provider"
)

// kept are names that occur on every machine, and that decisions or readers depend on.
var kept = map[kind][]string{
	owners:    {"default", "berthlet", "kubernetes"},
	classes:   {"system-node-critical", "system-cluster-critical"},
	providers: {"cpu", "memory", "device", "node", "hugepages"},
}

// mask replaces names by made ones. It goes over a bundle twice: the first time it collects the
// names, the second time it replaces them. Made names have the order of the originals, because
// decisions depend on the order of uids, of containers and of devices.
type mask struct {
	names map[kind]map[string]string
	// made is whether the names are made, so that they are replaced.
	made bool
	err  error
}

// Mask replaces the names of pods, namespaces, containers, users, processes, devices, hosts and
// paths, and digests of pods by made ones, and leaves out what decisions do not depend on: labels,
// messages, metrics, notes about the machine, and the configuration's paths and grants. The other
// fields stay, so a replay gives the same verdicts. The names of resources and of their domains stay,
// too. So do the fingerprint of the machine and the digests of configurations, which anybody can
// compute from the fields that stay. An error is about a policy that cannot be read.
func (b *Bundle) Mask() error {
	m := &mask{names: map[kind]map[string]string{}}
	m.bundle(b) // collects
	m.make()
	masked := m.bundle(b)
	if m.err != nil {
		return fmt.Errorf("mask: %w", m.err)
	}
	*b = *masked
	return nil
}

// make makes the names.
func (m *mask) make() {
	for k, all := range m.names {
		digits := len(fmt.Sprint(len(all)))
		for i, name := range slices.Sorted(maps.Keys(all)) {
			all[name] = fmt.Sprintf("%s-%0*d", k, digits, i+1)
		}
	}
	m.made = true
}

// name returns the made name for a name.
func (m *mask) name(k kind, name string) string {
	if name == "" || slices.Contains(kept[k], name) {
		return name
	}
	if !m.made {
		if m.names[k] == nil {
			m.names[k] = map[string]string{}
		}
		m.names[k][name] = ""
	}
	return m.names[k][name]
}

// device returns the made name of a device; ids are by resource.
func (m *mask) device(resource, id string) string {
	return m.name(devices, resource+"\x00"+id)
}

func (m *mask) bundle(b *Bundle) *Bundle {
	out := *b
	out.About.Masked, out.Metrics = true, nil
	if b.Metrics != nil {
		out.About.Missing = append(slices.Clone(b.About.Missing), MetricsPart+": it names pods")
	}
	if b.Machine != nil {
		s := b.Machine.Snapshot()
		s.Name, s.Description, s.Notes = "", "", nil
		renamed, err := machine.New(s)
		m.failed(err)
		out.Machine = renamed
	}
	if b.Config != nil {
		out.Config = masked(b.Config)
	}
	out.Devices = slices.Clone(b.Devices)
	for i := range out.Devices {
		r := &out.Devices[i]
		r.Devices = slices.Clone(r.Devices)
		for j := range r.Devices {
			r.Devices[j].ID = m.device(r.Name, r.Devices[j].ID)
		}
	}
	if b.State != nil {
		out.State = m.state(b.State)
	}
	out.History = nil
	for _, l := range b.History {
		out.History = append(out.History, m.line(l))
	}
	return &out
}

func (m *mask) failed(err error) {
	if m.err == nil {
		m.err = err
	}
}

// masked returns what decisions depend on of a configuration.
func masked(c *config.Config) *config.Config {
	out := config.Default().With(maskedPolicy(c.Policy()))
	out.Features, out.Verdicts, out.Devices, out.History = c.Features, c.Verdicts, c.Devices, c.History
	out.Providers.Order, out.Limits.Containers = c.Providers.Order, c.Limits.Containers
	out.Node.MaxPods, out.Node.PodsPerCore, out.Node.NodeFit, out.Node.LocalStorage = c.Node.MaxPods, c.Node.PodsPerCore, c.Node.NodeFit,
		c.Node.LocalStorage
	out.Node.Enforce, out.Cgroups.PerQOS = c.Node.Enforce, c.Cgroups.PerQOS
	out.Cgroups.Driver, out.Cgroups.Root = c.Cgroups.Driver, "/"
	if slices.ContainsFunc(out.Node.Enforce, func(e string) bool { return strings.Contains(e, "reserved") }) {
		out.Node.SystemReservedCgroup, out.Node.KubeReservedCgroup = "system", "kube"
		if out.Cgroups.Driver == "systemd" {
			out.Node.SystemReservedCgroup, out.Node.KubeReservedCgroup = "system.slice", "kube.slice"
		}
	}
	return &out
}

// maskedPolicy leaves out options that no berthd takes, which may be any text.
func maskedPolicy(p config.Policy) config.Policy {
	plain := func(options map[string]string, names []string) {
		maps.DeleteFunc(options, func(name, value string) bool {
			_, notBool := strconv.ParseBool(value)
			_, notNumber := strconv.Atoi(value)
			return !slices.Contains(names, name) || notBool != nil && notNumber != nil
		})
	}
	plain(p.CPU.Options, cpu.OptionNames())
	plain(p.Topology.Options, topology.OptionNames())
	return p
}

// policy masks a stored policy.
func (m *mask) policy(text json.RawMessage) json.RawMessage {
	p, err := config.ReadPolicy(text)
	m.failed(err)
	out, err := maskedPolicy(p).Marshal()
	m.failed(err)
	return out
}

func (m *mask) override(o *ledger.Override) *ledger.Override {
	if o == nil {
		return nil
	}
	return &ledger.Override{Settings: m.policy(o.Settings), Over: o.Over, SetAt: o.SetAt}
}

func (m *mask) state(s *history.Snapshot) *history.Snapshot {
	out := *s
	out.Override = m.override(s.Override)
	if out.Uncertain != "" {
		out.Uncertain = "masked"
	}
	out.Pods = make([]history.Pod, len(s.Pods))
	for i, p := range s.Pods {
		if p.Record != nil {
			out.Pods[i] = history.Pod{Record: m.record(p.Record), Claims: m.claims(p.Claims)}
		}
	}
	out.Unknown, out.Bindings, out.Providers = nil, nil, nil
	for _, u := range s.Unknown {
		out.Unknown = append(out.Unknown, m.unknown(u))
	}
	for _, b := range s.Bindings {
		out.Bindings = append(out.Bindings, m.binding(b))
	}
	for _, p := range s.Providers {
		p.Name = m.name(providers, p.Name)
		out.Providers = append(out.Providers, p)
	}
	return &out
}

func (m *mask) record(p *ledger.Pod) *ledger.Pod {
	out := *p
	out.Pod = *m.pod(&p.Pod)
	out.Digest = m.digest(&out.Pod, p)
	out.OwnedBy = m.name(owners, p.OwnedBy)
	out.AdmissionID, out.ResizeID = m.name(ids, p.AdmissionID), m.name(ids, p.ResizeID)
	out.EarlierResizeIDs = m.each(ids, p.EarlierResizeIDs)
	if p.Acknowledged != nil {
		out.Acknowledged = append([]ledger.Claim{}, m.claims(p.Acknowledged)...)
	}
	if p.Move != nil {
		move := *p.Move
		move.From, move.To, move.Held = m.claims(p.Move.From), m.claims(p.Move.To), m.claims(p.Move.Held)
		move.Migrating, move.Stayed = m.each(containers, p.Move.Migrating), m.each(containers, p.Move.Stayed)
		move.Before, move.Reason = m.name(ids, p.Move.Before), "" // the reason may be a sentence with the name of another pod
		out.Move = &move
	}
	out.CgroupParent, out.Claims, out.Trace = "", m.claims(p.Claims), nil
	return &out
}

func (m *mask) each(k kind, list []string) (out []string) {
	for _, name := range list {
		out = append(out, m.name(k, name))
	}
	return out
}

// digest returns the digest of a masked pod, if the original has that of its pod. Any other one is
// of a request that is not known.
func (m *mask) digest(masked *workload.Pod, p *ledger.Pod) string {
	own, err := p.Pod.Digest()
	m.failed(err)
	if own != p.Digest {
		return m.name(ids, p.Digest)
	}
	digest, err := masked.Digest()
	m.failed(err)
	return digest
}

func (m *mask) pod(p *workload.Pod) *workload.Pod {
	out := *p
	out.UID, out.Namespace, out.Name = m.name(pods, p.UID), m.name(namespaces, p.Namespace), m.name(names, p.Name)
	out.PriorityClassName = m.name(classes, p.PriorityClassName)
	out.Labels, out.Annotations = nil, nil
	for name := range p.Annotations {
		if slices.Contains(workload.UsedAnnotations, name) {
			if out.Annotations == nil {
				out.Annotations = map[string]string{}
			}
			out.Annotations[name] = "masked"
			if name == workload.MovableAnnotation {
				out.Annotations[name] = string(p.Movable()) // decides which moves are planned
			}
		}
	}
	out.Containers = slices.Clone(p.Containers)
	for i := range out.Containers {
		c := &out.Containers[i]
		c.Name = m.name(containers, c.Name)
		c.ExternalDevices = slices.Clone(c.ExternalDevices)
		for j := range c.ExternalDevices {
			d := &c.ExternalDevices[j]
			d.ID, d.Claim = m.device(d.Resource, d.ID), nil // no decision depends on the claim
		}
	}
	return &out
}

func (m *mask) claims(claims []ledger.Claim) []ledger.Claim {
	var out []ledger.Claim
	for _, c := range claims {
		c.Owner = m.owner(c.Owner)
		c.Provider, c.Opaque = m.name(providers, c.Provider), nil
		if d := c.Devices; d != nil {
			replaced := &ledger.Devices{}
			for _, one := range d.Devices {
				one.ID = m.device(c.Resource, one.ID)
				replaced.Devices = append(replaced.Devices, one)
			}
			c.Devices = replaced
		}
		out = append(out, c)
	}
	return out
}

func (m *mask) owner(o ledger.Owner) ledger.Owner {
	return ledger.Owner{Pod: m.name(pods, o.Pod), Container: m.name(containers, o.Container)}
}

func (m *mask) binding(b history.Binding) history.Binding {
	b.ID = m.name(ids, b.ID)
	if b.Binding != nil {
		masked := *b.Binding
		masked.ID, masked.Owner, masked.CgroupPath = b.ID, m.owner(masked.Owner), ""
		b.Binding = &masked
	}
	return b
}

func (m *mask) unknown(of history.Unknown) history.Unknown {
	of.UID = m.name(pods, of.UID)
	if of.Pod == nil {
		return of
	}
	u := of.Pod
	out := ledger.UnknownLivePod{
		UID: of.UID, Since: u.Since, Namespace: m.name(namespaces, u.Namespace), Name: m.name(names, u.Name),
		Source: u.Source, Digest: m.name(ids, u.Digest), QoS: u.QoS, OwnedBy: m.name(owners, u.OwnedBy),
		Claims: m.claims(u.Claims), DevicesUnknown: u.DevicesUnknown, ResourceClaim: u.ResourceClaim,
	}
	for _, b := range u.Bindings {
		out.Bindings = append(out.Bindings, ledger.RecordedBinding{ID: m.name(ids, b.ID), Container: m.name(containers, b.Container),
			Own: b.Own})
	}
	of.Pod = &out
	return of
}

// line masks an entry. The number and the damage stay.
func (m *mask) line(l Line) Line {
	if l.Damage != "" {
		return Line{Number: l.Number, Damage: "damaged"}
	}
	e, err := history.ReadText(l.Number, l.Entry)
	if err != nil {
		return Line{Number: l.Number, Damage: "damaged"}
	}
	e.Message = maskedMessage(e.Message)
	if c := e.Caller; c != nil {
		e.Caller = &history.Caller{UID: m.user(c.UID), GID: m.user(c.GID), Name: m.name(processes, c.Name)}
	}
	e.Pod, e.Namespace, e.Name, e.Container = m.name(pods, e.Pod), m.name(namespaces, e.Namespace), m.name(names, e.Name),
		m.name(containers, e.Container)
	e.AdmissionID, e.Digest = m.name(ids, e.AdmissionID), ""
	steps := slices.Clone(e.Steps)
	for i := range steps {
		steps[i].Provider = m.name(providers, steps[i].Provider)
	}
	e.Steps = steps
	m.request(e)
	if e.Before != nil {
		e.Before = m.before(e.Before)
	}
	text, err := history.Text(e)
	m.failed(err)
	return Line{Number: l.Number, Entry: text}
}

// user returns the made number of a user or group.
func (m *mask) user(id uint32) uint32 {
	if id == 0 {
		return 0
	}
	made, n := m.name(users, fmt.Sprintf("%010d", id)), uint32(0)
	if made == "" {
		return 0
	}
	_, err := fmt.Sscanf(made, string(users)+"-%d", &n)
	m.failed(err)
	return n
}

// maskedMessage keeps only what a replay reads of a message.
func maskedMessage(text string) string {
	const swap = "containers with swap"
	if strings.Contains(text, swap) {
		return swap
	}
	return ""
}

// request masks the recorded request; one that cannot be read is left out.
func (m *mask) request(e *history.Entry) {
	req, err := e.Requested()
	if err != nil || req == nil {
		e.Request, e.Basis = nil, nil
		return
	}
	if req.Pod != nil {
		req.Pod = m.pod(req.Pod)
	}
	if req.Policy != nil {
		req.Policy = m.policy(req.Policy)
	}
	req.Owner = m.name(owners, req.Owner)
	req.Changes = slices.Clone(req.Changes)
	for i := range req.Changes {
		req.Changes[i].Container = m.name(containers, req.Changes[i].Container)
	}
	text, err := json.Marshal(req)
	m.failed(err)
	e.Request = text
	m.basis(e)
}

// basis masks what a verdict was decided on. Reservations that cannot be read are left out.
func (m *mask) basis(e *history.Entry) {
	if e.Basis == nil {
		return
	}
	own := *e.Basis
	pods, err := own.Pods()
	if err != nil {
		e.Basis = nil
		return
	}
	masked := make([]*ledger.Pod, len(pods))
	for i, p := range pods {
		masked[i] = m.record(p)
	}
	omitted := own.Omitted
	m.failed(own.Reserve(masked))
	own.Omitted = max(omitted, own.Omitted)
	e.Basis = &own
}

func (m *mask) before(b *history.Before) *history.Before {
	out := &history.Before{}
	if b.Rules != nil {
		rules := *b.Rules
		rules.Override = m.override(rules.Override)
		out.Rules = &rules
	}
	for _, p := range b.Pods {
		masked := history.Pod{UID: m.name(pods, p.UID), Claims: m.claims(p.Claims)}
		if p.Record != nil {
			masked.Record = m.record(p.Record)
		}
		out.Pods = append(out.Pods, masked)
	}
	for _, u := range b.Unknown {
		out.Unknown = append(out.Unknown, m.unknown(u))
	}
	for _, one := range b.Bindings {
		out.Bindings = append(out.Bindings, m.binding(one))
	}
	return out
}

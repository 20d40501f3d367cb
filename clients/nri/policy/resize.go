package policy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/containerd/nri/pkg/api"
	"google.golang.org/protobuf/proto"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/clients/berth"
	"github.com/berthd/berth/managers/errdefs"
)

// UpdateContainer resizes a container in berthd before the runtime carries out the update. For a
// resize in place a kubelet sends one such update for each container, for cpu and for memory
// (KEP-1287). After an error the container stays as it is. So it does while it cannot be compared with the ledger. CPU sets and the
// missing quota on exclusive CPUs are not part of a size.
func (p *Policy) UpdateContainer(ctx context.Context, pod *api.PodSandbox, c *api.Container,
	r *api.LinuxResources) ([]*api.ContainerUpdate, error) {
	ctx, end := p.begin(ctx)
	defer end()
	if p.released {
		return nil, nil
	}
	m := p.known(pod, c)
	if m == nil {
		return nil, nil
	}
	// The runtime may have failed to apply an earlier size, so its current values count.
	now := c.GetLinux().GetResources()
	if now == nil {
		now = m.resources
	}
	wanted, own, room := changed(now, r), p.ownOf(m), p.room.Load()
	if p.standby != nil {
		m.resources = wanted
		return nil, nil
	}
	if m.requested(wanted) != m.requested(m.resources) || m.asked != nil { // berthd may have lost what the runtime has not confirmed
		if err := p.resize(ctx, m, wanted); err != nil {
			p.logRefused(ctx, m, wanted, err)
			if !p.passes(m.pod) {
				return nil, refusal("resize container "+m.name, err)
			}
			if m.match == compared && m.key != "" {
				m.match, m.room = denied, room
			}
		}
		m.resources = wanted
	}
	p.ask(m, now)
	p.quotaReturns()
	if m.match == unplaced {
		return append(p.answer(m, nobody), p.stay(m, r)...), nil
	}
	// The runtime applies this update after it has continued with other events. CPUs and memory
	// nodes in this update could therefore replace those of a later update. Without them the
	// container keeps the last ones that were sent to the runtime, and Follow sends others.
	// An update by Follow adds CPUs, when others have left them.
	mine := p.grantable(m, m.own.Intersect(own))
	u := updateCPUs(m, mine)
	if !mine.IsEmpty() {
		p.send(m, mine)
	}
	if m.own != own || m.moved {
		p.kick()
	}
	if r.GetCpu().GetCpus() != "" && m.own.IsEmpty() {
		t, _ := p.state(m)
		u = updateCPUs(m, t.WantedCPUs)
		p.send(m, t.WantedCPUs)
	}
	updates := p.answer(m, nobody)
	if u.GetLinux() != nil { // an empty one would make the runtime change nothing
		updates = append(updates, u)
	}
	return updates, nil
}

// asked is a resize that the runtime was let carry out, and has not confirmed.
type asked struct {
	before *api.LinuxResources // what the runtime had
	at     time.Time
}

// askTime is the time in which a runtime confirms a resize that it carries out: the kubelet waits as long for an answer.
const askTime = 2 * time.Minute

// ask notes a resize until the runtime confirms it. Of one that fails no event tells, and the kubelet may take it back without another one.
func (p *Policy) ask(m *member, before *api.LinuxResources) {
	if m.asked = nil; m.requested(m.resources) == m.requested(before) {
		return
	}
	m.asked = &asked{before.Copy(), p.Now()}
	p.kickIn(&p.confirming, askTime)
}

// PostUpdateContainer is the event of an update that the runtime has carried out. It may be of a resize that was overdue.
func (p *Policy) PostUpdateContainer(ctx context.Context, _ *api.PodSandbox, c *api.Container) error {
	_, end := p.begin(ctx)
	defer end()
	m := p.members[c.GetId()]
	if m == nil {
		return nil
	}
	now := c.GetLinux().GetResources()
	if m.asked == nil && now != nil && m.requested(now) != m.requested(m.resources) {
		p.resizedTo(m, now)
	}
	m.asked = nil
	return nil
}

// resizedTo compares a member with berthd that the runtime has with another size.
func (p *Policy) resizedTo(m *member, r *api.LinuxResources) {
	m.resources = r
	p.compareAgain(m)
	p.kick()
}

// takeBack compares the sizes of containers with berthd's whose resize the runtime has not confirmed: they have the size
// from before. Berthd counts the other one until then, whichever is more.
func (p *Policy) takeBack() {
	for _, m := range p.live() {
		if m.asked == nil {
			continue
		}
		if left := askTime - p.Now().Sub(m.asked.at); left > 0 {
			p.kickIn(&p.confirming, left)
			continue
		}
		p.Log.Warn("the runtime has not confirmed a container's resize", "pod", m.pod.namespace+"/"+m.pod.name, "container", m.name)
		p.resizedTo(m, m.asked.before)
		m.asked = nil
	}
}

// logRefused logs a refused resize. A kubelet repeats it every second, so the same one with the
// same reason is a warning only once.
func (p *Policy) logRefused(ctx context.Context, m *member, wanted *api.LinuxResources, err error) {
	level, text := slog.LevelDebug, fmt.Sprint(m.requested(wanted), err)
	if text != m.refused {
		level, m.refused = slog.LevelWarn, text
	}
	p.Log.Log(ctx, level, "a container's resize is refused",
		"pod", m.pod.namespace+"/"+m.pod.name, "container", m.name, "let pass", p.passes(m.pod), "error", err)
}

// changed returns the resources after an update. Zero values of the update change nothing.
func changed(have, by *api.LinuxResources) *api.LinuxResources {
	out := have.Copy()
	if out == nil {
		out = &api.LinuxResources{}
	}
	if out.Cpu == nil {
		out.Cpu = &api.LinuxCPU{}
	}
	if out.Memory == nil {
		out.Memory = &api.LinuxMemory{}
	}
	if v := by.GetCpu().GetShares().GetValue(); v != 0 {
		out.Cpu.Shares = api.UInt64(v)
	}
	if v := by.GetCpu().GetQuota().GetValue(); v != 0 {
		out.Cpu.Quota = api.Int64(v)
	}
	if v := by.GetCpu().GetPeriod().GetValue(); v != 0 {
		out.Cpu.Period = api.UInt64(v)
	}
	if v := by.GetMemory().GetLimit().GetValue(); v != 0 {
		out.Memory.Limit = api.Int64(v)
	}
	return out
}

// stay answers an update of a member whose CPUs in the ledger are not known. It keeps those that it may run on, and its quota is
// compared later.
func (p *Policy) stay(m *member, r *api.LinuxResources) []*api.ContainerUpdate {
	m.moved = true
	p.kick()
	t, _ := p.state(m)
	if r.GetCpu().GetCpus() == "" || t.Anywhere || t.PossibleCPUs.IsEmpty() {
		return nil
	}
	u := &api.ContainerUpdate{}
	u.SetContainerId(m.id)
	u.SetLinuxCPUSetCPUs(t.PossibleCPUs.String())
	p.send(m, t.PossibleCPUs)
	return []*api.ContainerUpdate{u}
}

// resize changes a container's resources in berthd. An unmanaged container has none there. After an error the runtime keeps the size
// that it has, and berthd may have either size: they are compared again. The caller holds mu.
func (p *Policy) resize(ctx context.Context, m *member, r *api.LinuxResources) error {
	if m.match == unplaced {
		if err := p.placeNow(ctx, m); err != nil {
			m.moved = true // with an earlier quota it stays where it is
			return err
		}
	}
	if err := p.settle(ctx, m.key); err != nil {
		return err
	}
	was := m.resources
	m.resources = r
	err := p.count(ctx, m)
	m.unsure = undecided(err)
	if err == nil {
		if err = p.want(ctx); err != nil { // berthd has the new size
			m.unsure = true
			p.compareAgain(m)
			p.kickLater()
		}
	}
	if err != nil {
		m.resources = was
	}
	return err
}

// settle compares the sizes of members with berthd whose resize may have been carried out without an answer: others must not get the CPUs
// that berthd has taken from them meanwhile. An error means that it is still not known. waiting is berthd's pod that may change: its own
// sizes do not matter.
func (p *Policy) settle(ctx context.Context, waiting string) error {
	for _, m := range p.live() {
		if !m.unsure || p.crashed(m) || m.key == "" && m.match != unplaced || cmp.Or(m.key, p.keyOf(m)) == waiting {
			continue
		}
		l, err := p.list(ctx)
		if err != nil {
			return err
		}
		if counted := l.of(m); counted != nil && m.key != "" {
			if err := p.compareSize(ctx, m, counted); err != nil {
				return err
			}
		}
		if m.unsure {
			return errdefs.Unavailablef("the size of container %s is not known yet: berthd has not answered a resize", m.title())
		}
	}
	return nil
}

// resized reports whether berthd counts a container with another size than the runtime. If not, the
// pod's specification gets that size, too, because its source may have only the first size.
func (m *member) resized(counted *typesv1.ContainerAllocation) bool {
	c := &typesv1.Container{Name: m.name, Resources: proto.CloneOf(counted.GetResources())}
	if m.key == m.pod.uid {
		before := proto.CloneOf(c)
		if m.writeTo(c) != nil || !proto.Equal(before, c) {
			return true
		}
		for _, c := range slices.Concat(m.pod.spec.GetSpec().GetInitContainers(), m.pod.spec.GetSpec().GetContainers()) {
			if c.GetName() == m.name && m.writeTo(c) != nil {
				return true
			}
		}
		return false
	}
	pod, err := m.apart()
	if err != nil {
		return true
	}
	has, err := declared(pod.GetSpec().GetContainers()[0])
	was, otherErr := declared(c)
	if m.free && has.cpuLimit == 0 {
		has.cpuLimit = was.cpuLimit // the runtime has no quota, whatever the limit is
	}
	return err != nil || otherErr != nil || has != was
}

// count reports a container's size to berthd, with the other containers of its pod.
func (p *Policy) count(ctx context.Context, m *member) error {
	s := m.pod
	switch {
	case m.key == "":
		return nil
	case p.bar() != nil:
		return p.bar()
	case m.key != s.uid:
		pod, err := m.apart()
		if err != nil {
			return err
		}
		return p.agreeTo(ctx, s, pod)
	case s.spec == nil || s.unfound:
		// The source may not have answered when the runtime told of the pod.
		if err := p.search(ctx, s); err != nil {
			return err
		}
		if s.spec == nil {
			return errdefs.Preconditionf("no source has the specification of pod %s, which was admitted with one", s.uid)
		}
	}
	return p.agreeWhole(ctx, m, s.spec)
}

// agreeWhole resizes a pod in berthd to a specification, with the present sizes of its containers.
func (p *Policy) agreeWhole(ctx context.Context, m *member, spec *typesv1.Pod) error {
	pod, err := p.grown(m, spec)
	if err != nil {
		return err
	}
	if err := p.agreeTo(ctx, m.pod, pod); err != nil {
		return err
	}
	m.pod.spec = pod
	return nil
}

// agreeTo resizes a pod of a sandbox in berthd. A refusal is an error too. The kubelet has
// only resizes in place, so running containers move to other NUMA nodes only if the pod allows it.
func (p *Policy) agreeTo(ctx context.Context, s *sandbox, pod *typesv1.Pod) error {
	req := berth.ResizeTo(pod)
	req.MaxMoveDisruption = s.maxMove
	answer, err := p.Client.Resize(ctx, req)
	if answer.GetMoveDisruption() != admissionv1.Disruption_DISRUPTION_UNSPECIFIED {
		runs := map[string]bool{}
		for _, m := range p.members {
			if m.pod.uid == s.uid && (p.hasProcess(m) || p.pending(m)) {
				runs[m.name] = true
			}
		}
		if movesOthers(ctx, p.Client, req, runs) {
			req.MaxMoveDisruption = admissionv1.Disruption_DISRUPTION_UNSPECIFIED
			answer, err = p.Client.Resize(ctx, req)
		}
	}
	switch {
	case err != nil:
		p.unsure(err)
		return err
	case answer.GetVerdict() != admissionv1.Verdict_VERDICT_ADMITTED:
		return errdefs.Preconditionf("%s: %s%s", answer.GetReason(), answer.GetMessage(), moveHelp(answer))
	}
	return nil
}

// movesOthers reports whether a resize without a limit is possible, and moves only containers that do not run, as one that is being
// created. The limit of a pod is for those that run, and berthd does not know which do.
func movesOthers(ctx context.Context, client *berth.Client, r *admissionv1.ResizeRequest, runs map[string]bool) bool {
	if !slices.ContainsFunc(r.GetContainers(), func(c *admissionv1.ContainerResources) bool { return !runs[c.GetContainerName()] }) {
		return false
	}
	try := proto.CloneOf(r)
	try.DryRun, try.MaxMoveDisruption = true, admissionv1.Disruption_DISRUPTION_UNSPECIFIED
	answer, err := client.Resize(ctx, try)
	return err == nil && !slices.ContainsFunc(answer.GetPlan().GetSteps(), func(step *typesv1.MoveStep) bool {
		return runs[step.GetContainerName()] || step.GetContainerName() == "" && len(runs) > 0
	})
}

// grown returns the specification of a member's pod with the present sizes of the containers.
func (p *Policy) grown(m *member, spec *typesv1.Pod) (*typesv1.Pod, error) {
	sizes := map[string]*member{}
	for _, other := range append(p.live(), m) {
		if other.pod == m.pod && other.key == m.pod.uid && (other == m || !p.isReplaced(other)) {
			sizes[other.name] = other
		}
	}
	pod := proto.CloneOf(spec)
	var errs []error
	for _, c := range slices.Concat(pod.GetSpec().GetInitContainers(), pod.GetSpec().GetContainers()) {
		if of := sizes[c.GetName()]; of != nil {
			errs = append(errs, of.writeTo(c))
		}
	}
	return pod, errors.Join(errs...)
}

// writeTo changes a specification's requests and limits to the runtime's values. Equal values
// keep their text. The runtime has no memory request. The specification's request stays if
// the limit allows it. A request that equalled the limit follows the limit.
func (m *member) writeTo(c *typesv1.Container) error {
	old, err := declared(c)
	if err != nil {
		return err
	}
	limit, err := ofPod(m.pod.spec, c)
	if err != nil {
		return err
	}
	now, next := m.requested(m.resources), old
	if limit == 0 && !sameRequest(old.cpuRequest, now.cpuRequest) {
		next.cpuRequest = max(now.cpuRequest, leastShares)
	}
	// A limit in the runtime without one in the container's specification is the pod's
	// (KEP-2837), or has no known origin.
	if now.cpuLimit > 0 && old.cpuLimit > 0 && max(old.cpuLimit, leastLimit) != now.cpuLimit {
		next.cpuLimit = now.cpuLimit
	}
	if !sameMemory(old.memoryLimit, now.memoryLimit) {
		next.memoryLimit = now.memoryLimit
		next.memoryRequest = min(old.memoryRequest, now.memoryLimit)
		if old.memoryRequest == old.memoryLimit {
			next.memoryRequest = now.memoryLimit
		}
	}
	if next == old {
		return nil
	}
	if c.Resources == nil {
		c.Resources = &typesv1.ResourceRequirements{}
	}
	r := c.Resources
	if r.Requests == nil {
		r.Requests = map[string]string{}
	}
	if r.Limits == nil {
		r.Limits = map[string]string{}
	}
	put(r.Requests, "cpu", next.cpuRequest, "m")
	put(r.Limits, "cpu", next.cpuLimit, "m")
	put(r.Requests, "memory", next.memoryRequest, "")
	put(r.Limits, "memory", next.memoryLimit, "")
	return nil
}

// agreed checks that a container about to be created matches its pod's specification. The pod may
// have been resized since: the kubelet then has the new specification, and berthd must accept the
// size. If a container is created again, the size is taken from the runtime, too. Sources other than the
// kubelet are not read again, because a pod's author may be able to write them.
func (p *Policy) agreed(ctx context.Context, m *member) error {
	s := m.pod
	spec, differs := s.spec, agree(s.spec, m.name, m.without(m.resources))
	switch {
	case differs != nil:
		var err error
		if spec, err = p.present(ctx, m, differs); err != nil {
			return err
		}
	case !m.limited(spec):
		return nil
	}
	if s.form != whole || p.ledger.unadmitted[s.uid] != nil {
		s.spec = spec // it is still to be admitted
		return nil
	}
	m.key = s.uid
	err := p.agreeWhole(ctx, m, spec)
	if berth.NeedsAdmission(err) {
		s.spec = spec
		return nil
	}
	if err != nil {
		return errors.Join(differs, err)
	}
	return nil
}

// sized has berthd count the size with which a container is created, of a pod that was admitted as a whole, and returns its allocation.
// Berthd has another size if an earlier sandbox of the pod was admitted with it, if the answer to an admission or a resize was lost, or if
// a resize was refused and the source of the specification has the size that was requested.
func (p *Policy) sized(ctx context.Context, m *member, a *allocationv1.AllocateResponse) (*allocationv1.AllocateResponse, error) {
	s := m.pod
	if m.key != s.uid || !m.resized(a.GetAllocation()) {
		return a, nil
	}
	s.form = whole
	if err := p.count(ctx, m); err != nil {
		return nil, err
	}
	return p.allocate(ctx, m, s.uid)
}

// present returns the specification of a member's pod after a resize. The one that was found first differs from the runtime's values.
func (p *Policy) present(ctx context.Context, m *member, differs error) (*typesv1.Pod, error) {
	spec, err := p.ofKubelet(ctx, m.pod)
	switch {
	case err != nil && !m.pod.hasMade(m.name):
		return nil, errors.Join(differs, err)
	case spec != nil && agree(spec, m.name, m.without(m.resources)) == nil:
		return spec, nil
	case m.pod.hasMade(m.name):
		return m.pod.spec, nil
	}
	return nil, differs
}

// limited reports whether a specification has another CPU limit than the runtime. agree does not compare it, because with pod-level
// resources (KEP-2837) and exclusive CPUs the runtime has another one.
func (m *member) limited(spec *typesv1.Pod) bool {
	for _, c := range slices.Concat(spec.GetSpec().GetInitContainers(), spec.GetSpec().GetContainers()) {
		if next := proto.CloneOf(c); c.GetName() == m.name {
			return m.writeTo(next) == nil && !proto.Equal(next, c)
		}
	}
	return false
}

package policy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"github.com/containerd/nri/pkg/api"
	"google.golang.org/protobuf/proto"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/clients/berth"
	"github.com/berthd/berth/managers/errdefs"
)

// UpdateContainer has berthd agree to another size of a container before the runtime
// carries it out: a kubelet resizes a pod in place by one such update for each of its
// containers, for cpu and for memory (KEP-1287). An error keeps the container as it
// is. Its place, and that it has no quota on CPUs of its own, are no part of a size.
//
// The event of the whole pod, UpdatePodSandbox, has sums over its containers, of which
// berthd can make nothing.
func (p *Policy) UpdateContainer(ctx context.Context, _ *api.PodSandbox, c *api.Container, r *api.LinuxResources) ([]*api.ContainerUpdate, error) {
	ctx, end := p.begin(ctx)
	defer end()
	m := p.members[c.GetId()]
	if m == nil {
		return nil, nil
	}
	// The runtime knows best what holds now: it may have failed to do what was agreed.
	now := c.GetLinux().GetResources()
	if now == nil {
		now = m.asked
	}
	wanted := changed(now, r)
	if amountsOf(wanted, m.even()) != amountsOf(m.asked, m.even()) {
		if err := p.resize(ctx, m, wanted); err != nil {
			p.logRefused(ctx, m, wanted, err)
			if !p.passes(m.pod) {
				return nil, refusal("resize container "+m.name, err)
			}
		}
		m.asked = wanted
	}
	// The runtime carries this update out after it has gone on to other events. Of CPUs that
	// change, an update could therefore be older than one that was requested since; without
	// CPUs, the container keeps those that the runtime was given last.
	u := update(m, m.own)
	if r.GetCpu().GetCpus() != "" && m.own.IsEmpty() {
		t, _ := p.tracker.Get(m.id)
		u = update(m, t.WantedCPUs)
		p.send(m, t.WantedCPUs)
	}
	if u.GetLinux() == nil {
		return nil, nil // an empty one would make the runtime change nothing
	}
	return []*api.ContainerUpdate{u}, nil
}

// logRefused logs a refused resize. A kubelet repeats it every second, so the same one with the
// same reason is a warning only once.
func (p *Policy) logRefused(ctx context.Context, m *member, wanted *api.LinuxResources, err error) {
	level, text := slog.LevelDebug, fmt.Sprint(amountsOf(wanted, m.even()), err)
	if text != m.refused {
		level, m.refused = slog.LevelWarn, text
	}
	p.Log.Log(ctx, level, "a container's resize is refused",
		"pod", m.pod.namespace+"/"+m.pod.name, "container", m.name, "let pass", p.passes(m.pod), "error", err)
}

// changed gives resources after an update, in which what is 0 stays.
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

// resize has berthd count a container with other resources. An unmanaged container's are nobody's
// to count. The caller holds mu.
func (p *Policy) resize(ctx context.Context, m *member, r *api.LinuxResources) error {
	was := m.asked
	m.asked = r
	err := p.count(ctx, m)
	if err != nil {
		m.asked = was
	}
	return err
}

// reconcileBindings has berthd count a container that runs as the runtime has it: it may have
// been resized while nobody was here. That berthd refuses is no reason to move it; that
// it has just lost the container's place is one to give places out once more.
func (p *Policy) reconcileBindings(ctx context.Context, m *member) error {
	err := p.count(ctx, m)
	if err == nil || berth.IsUnavailable(err) || berth.IsNotFound(err) || ctx.Err() != nil {
		return err
	}
	p.Log.Warn("berthd counts another size of a container than it has", "pod", m.pod.namespace+"/"+m.pod.name, "container", m.name, "error", err)
	return nil
}

// count tells berthd how big a container is, with the other containers of its pod.
func (p *Policy) count(ctx context.Context, m *member) error {
	s := m.pod
	switch {
	case m.key == "":
		return nil
	case p.barred != nil:
		return p.barred
	case m.key != s.uid:
		pod, err := m.apart()
		if err != nil {
			return err
		}
		return p.agreeTo(ctx, pod)
	case s.spec == nil:
		return errdefs.Preconditionf("the specification that pod %s was admitted with is not known any more", s.uid)
	}
	pod, err := p.grown(m)
	if err == nil {
		err = p.agreeTo(ctx, pod)
	}
	if err == nil {
		s.spec = pod
	}
	return err
}

// agreeTo asks berthd for a pod's size. That it refuses is an error too.
func (p *Policy) agreeTo(ctx context.Context, pod *typesv1.Pod) error {
	answer, err := p.Client.Resize(ctx, berth.ResizeTo(pod))
	switch {
	case berth.NeedsAdmission(err):
		p.unreconciled = true // it has lost the pod
		p.kick()
		return err
	case err != nil:
		return err
	case answer.GetVerdict() != admissionv1.Verdict_VERDICT_ADMITTED:
		return errdefs.Preconditionf("%s: %s", answer.GetReason(), answer.GetMessage())
	}
	return nil
}

// grown gives a pod's specification with the sizes that its containers have now.
func (p *Policy) grown(m *member) (*typesv1.Pod, error) {
	sizes := map[string]*member{}
	for _, other := range append(p.live(), m) {
		if other.pod == m.pod && other.key == m.pod.uid {
			sizes[other.name] = other
		}
	}
	pod := proto.Clone(m.pod.spec).(*typesv1.Pod)
	var errs []error
	for _, c := range slices.Concat(pod.GetSpec().GetInitContainers(), pod.GetSpec().GetContainers()) {
		if of := sizes[c.GetName()]; of != nil {
			errs = append(errs, of.writeTo(c))
		}
	}
	return pod, errors.Join(errs...)
}

// writeTo changes what a specification asks for to what the runtime was told. What
// agrees with it stays as it is spelt, and a memory request, of which the runtime is
// told nothing, as long as the limit allows; one that was the limit follows it.
func (m *member) writeTo(c *typesv1.Container) error {
	old, err := declared(c)
	if err != nil {
		return err
	}
	now, next := amountsOf(m.asked, m.even()), old
	if !sameRequest(old.cpuRequest, now.cpuRequest) {
		next.cpuRequest = max(now.cpuRequest, leastShares)
	}
	// A limit that the container itself has not is the pod's (KEP-2837), or nobody's.
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

// agreed sees that a container that is about to be made is the one of its pod's
// specification. One that is made again may have been resized in between: that is
// for berthd to agree to.
func (p *Policy) agreed(ctx context.Context, m *member) error {
	differs := agree(m.pod.spec, m.name, m.asked)
	if differs == nil || !m.pod.made[m.name] {
		return differs
	}
	m.key = m.pod.uid
	if err := p.count(ctx, m); err != nil {
		return errors.Join(differs, err)
	}
	return nil
}

package policy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/containerd/nri/pkg/api"
	"google.golang.org/protobuf/proto"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/clients/berth"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
)

// admit admits a pod. A rejection is an error with the reason.
func (p *Policy) admit(ctx context.Context, req *admissionv1.AdmitRequest) error {
	for again := false; ; again = true {
		answer, err := p.Client.Admit(ctx, proto.CloneOf(req))
		switch {
		case berth.IsStateUncertain(err) && !again:
		case err != nil:
			p.unsure(err)
			return err
		case answer.GetVerdict() == admissionv1.Verdict_VERDICT_ADMITTED:
			return nil
		case answer.GetVerdict() == admissionv1.Verdict_VERDICT_REJECTED:
			return errdefs.Refuse(errdefs.Reason(answer.GetReason()), "%s", rejection(answer, req.GetExternalDevices()))
		case again || answer.GetCondition().GetReason() != berth.StateUncertain:
			return errdefs.Unavailablef("deferred: %s", answer.GetMessage())
		}
		if err := p.syncPods(ctx); err != nil {
			return err
		}
	}
}

// undecided reports whether an error leaves open what berthd has done: the answer may be lost.
// Refusals and errors in the request are decided.
func undecided(err error) bool {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return true
	}
	return errors.As(err, new(*berth.Error)) && !berth.IsInvalid(err) && !berth.IsPrecondition(err) && !berth.IsNotFound(err)
}

// errUnspecified is the error of an admission while the source of a pod's specification does not
// answer.
var errUnspecified = errdefs.Unavailablef("the specification of the pod is not known yet")

// errUnprepared is the error of a container whose claim is not in berthd's ledger, as after the loss of
// the ledger. The container keeps its CPUs.
var errUnprepared = fmt.Errorf("the claim that the container uses is not in berthd's ledger; berth-dra prepares it again: %w",
	errUnspecified)

// errApart means that a pod which berthd has lost as a whole is admitted container by container.
var errApart = errors.New("the pod is admitted container by container")

// unsure makes reconcile compare the pod with the ledger, because a failed call may have changed it. If the pod ends
// before the call is repeated, nothing else would release what berthd has committed.
func (p *Policy) unsure(err error) {
	if undecided(err) || berth.NeedsAdmission(err) {
		p.unreconciled = true
		p.kick()
	}
}

// enter admits a pod as a whole, if its specification is known.
func (p *Policy) enter(ctx context.Context, s *sandbox) error {
	if s.spec == nil {
		return nil
	}
	_, kept := p.awaited[s.uid] // compare takes the pod for started
	if err := p.compare(ctx, s); err != nil || s.form != unadmitted && !kept {
		return err
	}
	if s.unfound { // the specification is of an earlier connection of the runtime
		if err := p.search(ctx, s); err != nil {
			return err
		}
	}
	err := p.admitOrReclaim(ctx, s, s.spec)
	if kept && berth.IsPrecondition(err) {
		// It has other amounts than before the boot, and nothing of it runs.
		if _, removeErr := p.Client.RemovePod(ctx, s.uid); removeErr != nil {
			return removeErr
		}
		err = p.admitOrReclaim(ctx, s, s.spec)
	}
	if err != nil {
		return err
	}
	s.admitted(p.sandboxes, whole)
	delete(p.awaited, s.uid)
	return nil
}

// admitOrReclaim admits a pod with the devices that the kubelet has given to it.
func (p *Policy) admitOrReclaim(ctx context.Context, s *sandbox, pod *typesv1.Pod) error {
	devices, err := p.devices(ctx, s, pod)
	if err != nil {
		return err
	}
	req := &admissionv1.AdmitRequest{Subject: &admissionv1.AdmitRequest_Pod{Pod: pod}, ExternalDevices: devices}
	if p.ledger.unadmitted[pod.GetMetadata().GetUid()] == nil { // else berthd knows what it has had since
		req.RunningAllocations = s.heldFor(pod)
	}
	return p.decide(ctx, s, req)
}

// heldFor returns what a container that is a pod of berthd held when its whole pod was lost, if it has still that size.
func (s *sandbox) heldFor(pod *typesv1.Pod) []*admissionv1.RunningAllocation {
	uid := pod.GetMetadata().GetUid()
	i := slices.IndexFunc(s.held.GetContainers(), func(c *typesv1.ContainerAllocation) bool {
		_, since := s.names[c.GetContainerName()]
		return s.key(c.GetContainerName()) == uid && len(c.GetClaims()) > 0 && !since
	})
	if i < 0 {
		return nil
	}
	held := s.held.GetContainers()[i]
	out := &admissionv1.RunningAllocation{ContainerName: held.GetContainerName()}
	for _, claim := range held.GetClaims() {
		if cpus := claim.GetCpu().GetCpus(); cpus != nil {
			out.Cpus = cpus
		}
		for _, b := range claim.GetMemory().GetBlocks() {
			out.Memory = append(out.Memory, &admissionv1.RunningMemory{Resource: claim.GetResource(), NumaNodes: b.GetNumaNodes(),
				Bytes: b.GetBytes()})
		}
	}
	had, err := declared(&typesv1.Container{Resources: &typesv1.ResourceRequirements{Requests: amountsHeld(held)}})
	now, otherErr := declared(pod.GetSpec().GetContainers()[0])
	whole := now.cpuRequest%milliPerCPU == 0 && now.cpuRequest == now.cpuLimit
	if err != nil || otherErr != nil || had.cpuRequest != 0 && (had.cpuRequest != now.cpuRequest || !whole) ||
		had.memoryRequest != 0 && had.memoryRequest != now.memoryRequest {
		return nil
	}
	return []*admissionv1.RunningAllocation{out}
}

// tryToAdmit admits a pod. If the node is full, or berthd has the pod with another specification, it first looks for processes that
// have ended without an event, and repeats removals that have failed. If the node is full nevertheless, it releases what is kept for a
// restart. The kubelet has counted those CPUs as free when it admitted the pod.
func (p *Policy) tryToAdmit(ctx context.Context, s *sandbox, req *admissionv1.AdmitRequest) error {
	uid := req.GetPod().GetMetadata().GetUid()
	// What runs is admitted again without waiting: two that berthd has lost would wait for each other.
	if !p.some(s, func(m *member) bool { return p.hasProcess(m) && (uid == s.uid || uid == s.key(m.name)) }) {
		if err := p.settle(ctx, uid); err != nil {
			return err
		}
	}
	if len(req.GetRunningAllocations()) > 0 {
		if err := p.admit(ctx, req); !decided(err) {
			return err
		}
		req.RunningAllocations = nil // others have them
	}
	err := p.admit(ctx, req)
	_, rejected := errdefs.ReasonOf(err)
	if !rejected && !berth.IsPrecondition(err) {
		return err
	}
	if p.sweepFor(ctx, s) {
		err = p.admit(ctx, req)
		_, rejected = errdefs.ReasonOf(err)
	}
	if rejected && p.unreconciled && p.syncPods(ctx) == nil {
		err = p.admit(ctx, req) // a removal had failed
		_, rejected = errdefs.ReasonOf(err)
	}
	if rejected && p.releaseKept(ctx, s) {
		err = p.admit(ctx, req)
	}
	// A container by itself that starts again may have another size than the one before it.
	starts := uid != s.uid && !p.some(s, func(m *member) bool { return s.key(m.name) == uid && p.occupies(m) })
	if held := p.ledger.unadmitted[uid]; held != nil && berth.IsPrecondition(err) && !starts {
		req = proto.CloneOf(req)
		asHeld(req.GetPod(), held)
		err = p.admit(ctx, req)
	}
	if ending := p.ending(); err != nil && len(ending) > 0 {
		err = fmt.Errorf("%w; %s", err, strings.Join(ending, "; "))
	}
	return err
}

// asHeld changes a specification to the amounts that berthd knows of a pod that it has lost. The specification may have others: of a
// resize that berthd has refused, or that the runtime has not carried out. The sizes are compared after the admission.
func asHeld(pod *typesv1.Pod, held *typesv1.PodAllocation) {
	amounts := map[string]map[string]string{} // by container and resource
	for _, c := range held.GetContainers() {
		amounts[c.GetContainerName()] = amountsHeld(c)
	}
	spec := pod.GetSpec()
	for _, c := range slices.Concat(spec.GetInitContainers(), spec.GetContainers()) {
		for resource, amount := range amounts[c.GetName()] {
			for _, of := range []map[string]string{c.GetResources().GetRequests(), c.GetResources().GetLimits()} {
				if of != nil {
					of[resource] = amount
				}
			}
		}
	}
}

// amountsHeld returns the amounts of the claims of a container, by resource.
func amountsHeld(c *typesv1.ContainerAllocation) map[string]string {
	amounts := map[string]string{}
	for _, claim := range c.GetClaims() {
		if cpus, err := cpuset.Parse(claim.GetCpu().GetCpus().GetList()); err == nil && !cpus.IsEmpty() {
			amounts[claim.GetResource()] = strconv.Itoa(cpus.Len())
		}
		var bytes uint64
		for _, block := range claim.GetMemory().GetBlocks() {
			bytes += block.GetBytes()
		}
		if bytes > 0 {
			amounts[claim.GetResource()] = strconv.FormatUint(bytes, 10)
		}
	}
	return amounts
}

// releaseKept releases allocations of ended containers in other pods, which are kept for a restart only. An earlier sandbox of a pod
// may be leaving, with processes on them, while the present one has them.
func (p *Policy) releaseKept(ctx context.Context, s *sandbox) (released bool) {
	for _, other := range p.sandboxes {
		if other.uid == s.uid {
			continue
		}
		released = p.release(ctx, other, func(name string, state part) bool {
			ended := state == kept
			for _, m := range p.members {
				if m.pod.uid != other.uid || m.name != name {
					continue
				}
				if p.may(m) {
					return false
				}
				ended = ended || m.pod == other && m.pid != 0
			}
			return ended
		}) || released
	}
	return released
}

// sweepFor is sweep while a pod starts, which may have no process yet.
func (p *Policy) sweepFor(ctx context.Context, s *sandbox) (found bool) {
	found = p.sweep(ctx)
	p.sandboxes[s.id], s.leaving = s, false
	return found
}

// ending describes stopped members whose processes still run on exclusive CPUs.
func (p *Policy) ending() (out []string) {
	for _, m := range p.all() {
		if m.life.over() && !m.own.IsEmpty() && p.may(m) {
			out = append(out, fmt.Sprintf("CPUs %s are held by container %s, which is ending", m.own, m.title()))
		}
	}
	return out
}

// allocateOrAdmit returns a container's allocation, and admits the container if necessary. A
// repeated call for the same container returns the same allocation.
func (p *Policy) allocateOrAdmit(ctx context.Context, m *member) (*allocationv1.AllocateResponse, error) {
	s := m.pod
	if err := p.compare(ctx, s); err != nil {
		return nil, err
	}
	if s.form == whole || s.lists(m.name) && s.form != apart {
		a, err := p.allocateWhole(ctx, m)
		if !berth.IsNotFound(err) && !errors.Is(err, errApart) {
			return a, err
		}
		// A container that the specification does not have: one for debugging.
	}
	if s.spec == nil && s.unfound && s.form != apart { // also if berthd has lost the pod
		return nil, errUnspecified
	}
	m.ofPod = p.sharesPod(m)
	pod, err := m.apart()
	if err != nil {
		return nil, err
	}
	p.release(ctx, s, func(_ string, state part) bool {
		_, known := s.names[m.name]
		return state != inUse && !known && p.members[m.id] == nil // it is being created
	})
	key := s.key(m.name)
	err = p.admitOrReclaim(ctx, s, pod)
	if berth.IsPrecondition(err) && s.names[m.name] != inUse {
		// An earlier container of this name had other requests.
		if _, removeErr := p.Client.RemovePod(ctx, key); removeErr != nil {
			return nil, removeErr
		}
		err = p.admitOrReclaim(ctx, s, pod)
	}
	if err != nil {
		return nil, err
	}
	s.admittedApart(p.sandboxes, m.name)
	return p.allocate(ctx, m, key)
}

// allocateWhole returns a container's part of the pod's allocation.
func (p *Policy) allocateWhole(ctx context.Context, m *member) (*allocationv1.AllocateResponse, error) {
	s := m.pod
	if s.spec != nil {
		if err := p.agreed(ctx, m); err != nil {
			return nil, err
		}
	}
	a, err := p.allocate(ctx, m, s.uid)
	switch {
	case !berth.NeedsAdmission(err):
	case s.lists(m.name):
		s.form = unadmitted // berthd has lost the pod
		if err = p.enter(ctx, s); err == nil {
			a, err = p.allocate(ctx, m, s.uid)
		}
	case s.spec == nil:
		l, failed := p.list(ctx)
		if failed != nil {
			return nil, failed
		}
		switch lost := l.unadmitted[s.uid]; {
		case lost != nil && (s.unfound || p.some(s, p.occupies)): // it is admitted as a whole, as soon as its specification is known
			s.unfound = true
			err = errUnspecified
		case lost != nil: // nothing of it runs, and no source has its specification
			p.remove(ctx, s, s.uid)
			s.form, s.held, err = unadmitted, lost, errApart
		case l.pods[s.uid] == nil:
			s.form = unadmitted // it is admitted container by container from now on
		}
	}
	return a, err
}

func (p *Policy) allocate(ctx context.Context, m *member, key string) (*allocationv1.AllocateResponse, error) {
	a, err := p.Client.Allocate(ctx, key, m.name)
	if err != nil {
		return nil, err
	}
	was := p.ownOf(m)
	m.key, m.own, m.free = key, cpuset.Set{}, false
	if a.GetAllocation().GetExclusiveCpus() {
		m.free = a.GetResources().GetCpuQuotaMicroseconds() < 0
		if m.own, err = cpuset.Parse(a.GetResources().GetCpusetCpus().GetList()); err != nil {
			return nil, errdefs.Internalf("CPUs of container %s: %w", m.name, err)
		}
		m.former = m.former.Union(was)
	}
	return a, nil
}

// bind reports the container's id to berthd, which calls PreStartContainer of its device plugins.
func (m *member) bind(ctx context.Context, client *berth.Client) error {
	if m.key == "" || m.bound {
		return nil
	}
	answer, err := client.PreStartContainer(ctx, m.key, m.name, m.id, 0)
	if err != nil {
		return err
	}
	m.bindTo(answer)
	return nil
}

// unbind reports to berthd that a container has exited.
func (p *Policy) unbind(ctx context.Context, m *member) {
	if m.life.over() {
		return
	}
	m.life, m.ended = m.life.after(finish), p.Now()
	p.room.Add(1)
	p.assign(m, cpuset.Set{}, cpuset.Set{}) // its CPUs may belong to another container now
	p.end(m)
	s := m.pod
	again := p.some(s, func(o *member) bool { return o.name == m.name && !o.life.over() })
	if _, apart := s.names[m.name]; apart && m.key != s.uid && !again {
		s.names[m.name] = kept
	}
	p.unbindID(ctx, m)
}

// release removes the separately admitted containers that chosen selects. A removal that fails is
// repeated by the next list of living pods.
func (p *Policy) release(ctx context.Context, s *sandbox, chosen func(name string, state part) bool) (some bool) {
	for name, state := range s.names {
		if chosen(name, state) {
			p.remove(ctx, s, s.key(name))
			delete(s.names, name)
			some = true
		}
	}
	return some
}

func (p *Policy) remove(ctx context.Context, s *sandbox, key string) {
	if _, err := p.Client.RemovePod(ctx, key); err != nil {
		p.Log.Warn("release an allocation failed", "pod", s.namespace+"/"+s.name, "uid", key, "error", err)
		p.removalFailed(key)
		p.unreconciled = true
		p.kick()
	}
}

// inherit moves berthd's allocations from another sandbox of the same pod, whose containers have
// ended.
func (s *sandbox) inherit(from *sandbox) {
	for name := range from.names {
		if _, known := s.names[name]; !known {
			s.names[name] = kept
		}
	}
	if s.form == unadmitted {
		s.form = from.form
	}
	from.form, s.unread = unadmitted, s.unread || from.unread
	if s.spec == nil {
		s.found = from.found
	}
	from.names = map[string]part{}
}

// leave deletes a sandbox, and releases its pod's allocations, unless the pod has another one. While processes of
// the pod still run, or the start of one may be in progress, nothing is released, and sweep calls leave again.
func (p *Policy) leave(ctx context.Context, s *sandbox) {
	for _, m := range p.all() {
		if m.pod == s && !p.pending(m) {
			p.unbind(ctx, m)
		}
	}
	if p.some(s, func(m *member) bool { return p.hasProcess(m) || p.pending(m) }) {
		s.leaving = true
		return
	}
	p.Log.Debug("a pod has ended", "pod", s.namespace+"/"+s.name)
	s.leaving = false
	p.drop(s)
	for _, other := range p.sandboxes {
		if other.uid == s.uid {
			other.inherit(s)
			return
		}
	}
	p.release(ctx, s, func(string, part) bool { return true })
	if s.form == whole {
		p.remove(ctx, s, s.uid)
	}
	s.form = unadmitted
}

// gone reports whether err means that the process has ended, before its file was opened or while
// it was read. Other errors leave the state of the process open.
func gone(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) }

// all returns the members in the order of their ids, including stopped ones.
func (p *Policy) all() []*member {
	return slices.SortedFunc(maps.Values(p.members), func(a, b *member) int { return cmp.Compare(a.id, b.id) })
}

func (p *Policy) live() []*member {
	return slices.DeleteFunc(p.all(), func(m *member) bool { return m.life.over() })
}

// update returns an update of a member's CPUs, if there are any, and its memory nodes. A
// member without a quota on its own CPUs loses the one that it may have. Any other member gets the quota
// that an earlier berth-nri has removed.
func update(m *member, cpus cpuset.Set) *api.ContainerUpdate {
	u := updateCPUs(m, cpus)
	if m.mems != "" {
		u.SetLinuxCPUSetMems(m.mems)
	}
	return u
}

// updateCPUs is update without the memory nodes.
func updateCPUs(m *member, cpus cpuset.Set) *api.ContainerUpdate {
	u := &api.ContainerUpdate{}
	u.SetContainerId(m.id)
	if !cpus.IsEmpty() {
		u.SetLinuxCPUSetCPUs(cpus.String())
	}
	if m.free {
		u.SetLinuxCPUQuota(-1)
	} else {
		setQuota(u, m.lostQuota())
	}
	return u
}

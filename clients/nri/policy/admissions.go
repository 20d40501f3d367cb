package policy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/clients/berth"
	"github.com/berthd/berth/clients/nri/amounts"
	"github.com/berthd/berth/clients/nri/refusal"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
)

// admissions admits pods in berthd: as a whole, or container by container.
type admissions struct {
	*common
	tracks   *tracks
	view     *view
	awaited  *awaitedPods
	finder   *finder
	devices  *devices
	refusals *refusals
	ends     *ends
	sizes    *sizes
}

// enter admits a pod as a whole, if its specification is known.
func (ad *admissions) enter(ctx context.Context, s *sandbox) error {
	if s.spec == nil {
		return nil
	}
	_, kept := ad.awaited.pods[s.uid] // compare takes the pod for started
	if err := ad.view.compare(ctx, s); err != nil || s.form != unadmitted && !kept {
		return err
	}
	if s.unfound { // the specification is of an earlier connection of the runtime
		if err := ad.finder.search(ctx, s); err != nil {
			return err
		}
	}
	err := ad.admitOrReclaim(ctx, s, s.spec)
	if kept && berth.IsPrecondition(err) {
		// It has other amounts than before the boot, and nothing of it runs.
		if _, removeErr := ad.client.RemovePod(ctx, s.uid); removeErr != nil {
			return removeErr
		}
		err = ad.admitOrReclaim(ctx, s, s.spec)
	}
	if err != nil {
		return err
	}
	s.admitted(ad.node.sandboxes, whole)
	delete(ad.awaited.pods, s.uid)
	return nil
}

// allocateOrAdmit returns a container's allocation, and admits the container if necessary. A
// repeated call for the same container returns the same allocation.
func (ad *admissions) allocateOrAdmit(ctx context.Context, m *member) (*allocationv1.AllocateResponse, error) {
	s := m.pod
	if err := ad.view.compare(ctx, s); err != nil {
		return nil, err
	}
	if s.form == whole || s.lists(m.name) && s.form != apart {
		a, err := ad.allocateWhole(ctx, m)
		if !berth.IsNotFound(err) && !errors.Is(err, errApart) {
			return a, err
		}
		// A container that the specification does not have: one for debugging.
	}
	if s.spec == nil && s.unfound && s.form != apart { // also if berthd has lost the pod
		return nil, errUnspecified
	}
	m.ofPod = ad.tracks.sharesPod(m)
	pod, err := m.apart()
	if err != nil {
		return nil, err
	}
	ad.ends.release(ctx, s, func(_ string, state part) bool {
		_, known := s.names[m.name]
		return state != inUse && !known && ad.node.members[m.id] == nil // it is being created
	})
	key := s.key(m.name)
	err = ad.admitOrReclaim(ctx, s, pod)
	if berth.IsPrecondition(err) && s.names[m.name] != inUse {
		// An earlier container of this name had other requests.
		if _, removeErr := ad.client.RemovePod(ctx, key); removeErr != nil {
			return nil, removeErr
		}
		err = ad.admitOrReclaim(ctx, s, pod)
	}
	if err != nil {
		return nil, err
	}
	s.admittedApart(ad.node.sandboxes, m.name)
	return ad.view.allocate(ctx, m, key)
}

// allocateWhole returns a container's part of the pod's allocation.
func (ad *admissions) allocateWhole(ctx context.Context, m *member) (*allocationv1.AllocateResponse, error) {
	s := m.pod
	if s.spec != nil {
		if err := ad.sizes.agreed(ctx, m); err != nil {
			return nil, err
		}
	}
	a, err := ad.view.allocate(ctx, m, s.uid)
	switch {
	case !berth.NeedsAdmission(err):
	case s.lists(m.name):
		s.form = unadmitted // berthd has lost the pod
		if err = ad.enter(ctx, s); err == nil {
			a, err = ad.view.allocate(ctx, m, s.uid)
		}
	case s.spec == nil:
		l, failed := ad.view.list(ctx)
		if failed != nil {
			return nil, failed
		}
		switch lost := l.unadmitted[s.uid]; {
		case lost != nil && (s.unfound || ad.node.some(s, ad.tracks.occupies)):
			s.unfound = true // it is admitted as a whole, as soon as its specification is known
			err = errUnspecified
		case lost != nil: // nothing of it runs, and no source has its specification
			ad.ends.remove(ctx, s, s.uid)
			s.form, s.held, err = unadmitted, lost, errApart
		case l.pods[s.uid] == nil:
			s.form = unadmitted // it is admitted container by container from now on
		}
	}
	return a, err
}

// admitOrReclaim admits a pod with the devices that the kubelet has given to it.
func (ad *admissions) admitOrReclaim(ctx context.Context, s *sandbox, pod *typesv1.Pod) error {
	devices, err := ad.devices.of(ctx, s, pod)
	if err != nil {
		return err
	}
	req := &admissionv1.AdmitRequest{Subject: &admissionv1.AdmitRequest_Pod{Pod: pod}, ExternalDevices: devices}
	if ad.view.ledger.unadmitted[pod.GetMetadata().GetUid()] == nil { // else berthd knows what it has had since
		req.RunningAllocations = s.heldFor(pod)
	}
	return ad.decide(ctx, s, req)
}

// admit admits a pod. A rejection is an error with the reason.
func (ad *admissions) admit(ctx context.Context, req *admissionv1.AdmitRequest) error {
	for again := false; ; again = true {
		answer, err := ad.client.Admit(ctx, proto.CloneOf(req))
		switch {
		case berth.IsStateUncertain(err) && !again:
		case err != nil:
			ad.agenda.unsure(err)
			return err
		case answer.GetVerdict() == admissionv1.Verdict_VERDICT_ADMITTED:
			return nil
		case answer.GetVerdict() == admissionv1.Verdict_VERDICT_REJECTED:
			return errdefs.Refuse(errdefs.Reason(answer.GetReason()), "%s", refusal.Rejection(answer, req.GetExternalDevices()))
		case again || answer.GetCondition().GetReason() != berth.StateUncertain:
			return errdefs.Unavailablef("deferred: %s", answer.GetMessage())
		}
		if err := ad.view.syncPods(ctx); err != nil {
			return err
		}
	}
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
	had, err := amounts.Declared(&typesv1.Container{Resources: &typesv1.ResourceRequirements{Requests: amountsHeld(held)}})
	now, otherErr := amounts.Declared(pod.GetSpec().GetContainers()[0])
	whole := now.CPURequest%amounts.MilliPerCPU == 0 && now.CPURequest == now.CPULimit
	if err != nil || otherErr != nil || had.CPURequest != 0 && (had.CPURequest != now.CPURequest || !whole) ||
		had.MemoryRequest != 0 && had.MemoryRequest != now.MemoryRequest {
		return nil
	}
	return []*admissionv1.RunningAllocation{out}
}

// tryToAdmit admits a pod. If the node is full, or berthd has the pod with another specification, it first looks for processes that
// have ended without an event, and repeats removals that have failed. If the node is full nevertheless, it releases what is kept for a
// restart. The kubelet has counted those CPUs as free when it admitted the pod.
func (ad *admissions) tryToAdmit(ctx context.Context, s *sandbox, req *admissionv1.AdmitRequest) error {
	uid := req.GetPod().GetMetadata().GetUid()
	// What runs is admitted again without waiting: two that berthd has lost would wait for each other.
	if !ad.node.some(s, func(m *member) bool { return ad.tracks.hasProcess(m) && (uid == s.uid || uid == s.key(m.name)) }) {
		if err := ad.sizes.settle(ctx, uid); err != nil {
			return err
		}
	}
	if len(req.GetRunningAllocations()) > 0 {
		if err := ad.admit(ctx, req); !decided(err) {
			return err
		}
		req.RunningAllocations = nil // others have them
	}
	err := ad.admit(ctx, req)
	_, rejected := errdefs.ReasonOf(err)
	if !rejected && !berth.IsPrecondition(err) {
		return err
	}
	if ad.sweepFor(ctx, s) {
		err = ad.admit(ctx, req)
		_, rejected = errdefs.ReasonOf(err)
	}
	if rejected && ad.agenda.unreconciled && ad.view.syncPods(ctx) == nil {
		err = ad.admit(ctx, req) // a removal had failed
		_, rejected = errdefs.ReasonOf(err)
	}
	if rejected && ad.releaseKept(ctx, s) {
		err = ad.admit(ctx, req)
	}
	// A container by itself that starts again may have another size than the one before it.
	starts := uid != s.uid && !ad.node.some(s, func(m *member) bool { return s.key(m.name) == uid && ad.tracks.occupies(m) })
	if held := ad.view.ledger.unadmitted[uid]; held != nil && berth.IsPrecondition(err) && !starts {
		req = proto.CloneOf(req)
		asHeld(req.GetPod(), held)
		err = ad.admit(ctx, req)
	}
	if ending := ad.ends.ending(); err != nil && len(ending) > 0 {
		err = fmt.Errorf("%w; %s", err, strings.Join(ending, "; "))
	}
	return err
}

// asHeld changes a specification to the amounts that berthd knows of a pod that it has lost. The specification may have others: of a
// resize that berthd has refused, or that the runtime has not carried out. The sizes are compared after the admission.
func asHeld(pod *typesv1.Pod, held *typesv1.PodAllocation) {
	sums := map[string]map[string]string{} // by container and resource
	for _, c := range held.GetContainers() {
		sums[c.GetContainerName()] = amountsHeld(c)
	}
	spec := pod.GetSpec()
	for _, c := range slices.Concat(spec.GetInitContainers(), spec.GetContainers()) {
		for resource, amount := range sums[c.GetName()] {
			for _, of := range []map[string]string{c.GetResources().GetRequests(), c.GetResources().GetLimits()} {
				if of != nil {
					of[resource] = amount
				}
			}
		}
	}
}

// amountsHeld returns the sums of the claims of a container, by resource.
func amountsHeld(c *typesv1.ContainerAllocation) map[string]string {
	sums := map[string]string{}
	for _, claim := range c.GetClaims() {
		if cpus, err := cpuset.Parse(claim.GetCpu().GetCpus().GetList()); err == nil && !cpus.IsEmpty() {
			sums[claim.GetResource()] = strconv.Itoa(cpus.Len())
		}
		var bytes uint64
		for _, block := range claim.GetMemory().GetBlocks() {
			bytes += block.GetBytes()
		}
		if bytes > 0 {
			sums[claim.GetResource()] = strconv.FormatUint(bytes, 10)
		}
	}
	return sums
}

// releaseKept releases allocations of ended containers in other pods, which are kept for a restart only. An earlier sandbox of a pod
// may be leaving, with processes on them, while the present one has them.
func (ad *admissions) releaseKept(ctx context.Context, s *sandbox) (released bool) {
	for _, other := range ad.node.sandboxes {
		if other.uid == s.uid {
			continue
		}
		released = ad.ends.release(ctx, other, func(name string, state part) bool {
			ended := state == kept
			for _, m := range ad.node.members {
				if m.pod.uid != other.uid || m.name != name {
					continue
				}
				if ad.tracks.may(m) {
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
func (ad *admissions) sweepFor(ctx context.Context, s *sandbox) (found bool) {
	found = ad.ends.sweep(ctx)
	ad.node.sandboxes[s.id], s.leaving = s, false
	return found
}

// decide admits a pod, unless the same pod was refused and nothing has become free since. A
// process that has ended without an event frees its CPUs, so processes are checked first. The
// caller holds mu.
func (ad *admissions) decide(ctx context.Context, s *sandbox, req *admissionv1.AdmitRequest) error {
	uid, now := req.GetPod().GetMetadata().GetUid(), ad.now()
	request, err := digest(req)
	if err != nil {
		return err
	}
	if last, ok := ad.refusals.stored[uid]; ok && last.request == request && now.Before(last.until) {
		ad.sweepFor(ctx, s)
		if last.room == ad.agenda.room.Load() {
			ad.refusals.tell("", true)
			return repeatedError{last.err}
		}
	}
	room := ad.agenda.room.Load()
	err = ad.tryToAdmit(ctx, s, req)
	ad.refusals.note(uid, refused{request, room, now.Add(held), err})
	return err
}

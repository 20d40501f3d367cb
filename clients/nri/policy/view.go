package policy

import (
	"cmp"
	"context"
	"maps"
	"slices"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
)

// view is berthd's ledger as this policy has read it last, with what berthd does not have: living pods, and CPUs that it has lost.
type view struct {
	*common
	tracks  *tracks
	kernel  *kernel
	claims  *claims
	awaited *awaitedPods
	Scheduler
	ledger    listing    // berthd's last list
	shared    cpuset.Set // the last known value; before the first one, see estimateShared
	forgotten cpuset.Set // of prepared claims and running members that berthd has lost
}

// listing is the content of berthd's ledger at one moment.
type listing struct {
	revision   uint64
	pods       map[string]*typesv1.PodAllocation       // by uid
	containers map[string]*typesv1.ContainerAllocation // by uid/name
	loose      map[string]bool                         // uids of pods with allocations that no sandbox had then
	// unadmitted are the pods that berthd has lost, and of which it knows something that they hold; by uid.
	unadmitted map[string]*typesv1.PodAllocation
}

// known returns the pods that berthd has, and those that it has lost and of which it knows something that they hold.
func (l listing) known() map[string]*typesv1.PodAllocation {
	known := maps.Clone(l.unadmitted)
	maps.Copy(known, l.pods)
	return known
}

// has reports whether berthd has a pod, or has lost it and knows something that it holds.
func (l listing) has(uid string) bool { return l.pods[uid] != nil || l.unadmitted[uid] != nil }

// of returns a member's allocation; nil if berthd has none.
func (l listing) of(m *member) *typesv1.ContainerAllocation { return l.containers[m.key+"/"+m.name] }

// place returns the allocation with a member's CPUs and memory: those of its claims, or that of its pod. It
// is nil if one is not in the ledger.
func (l listing) place(m *member) *typesv1.ContainerAllocation {
	if len(m.claims) == 0 {
		return l.of(m)
	}
	var parts []*typesv1.ContainerAllocation
	for _, part := range m.claims {
		c := l.containers[part.uid+"/"+part.container]
		if c == nil {
			return nil
		}
		parts = append(parts, c)
	}
	return combined(parts)
}

func byUID(pods []*typesv1.PodAllocation) map[string]*typesv1.PodAllocation {
	out := make(map[string]*typesv1.PodAllocation, len(pods))
	for _, pod := range pods {
		out[pod.GetUid()] = pod
	}
	return out
}

// holdsNothing reports whether berthd knows of nothing that a pod has.
func holdsNothing(pod *typesv1.PodAllocation) bool {
	return len(pod.GetContainers())+len(pod.GetClaims()) == 0
}

// list reads the ledger, and the shared CPUs. If the ledger has a pod that is not alive, an answer was
// lost, and berthd needs the list of living pods again.
func (v *view) list(ctx context.Context) (l listing, err error) {
	answer, err := v.client.Allocation().List(ctx, &allocationv1.ListRequest{})
	if err != nil {
		return l, err
	}
	if v.shared, err = cpuset.Parse(answer.GetSharedCpus().GetList()); err != nil {
		return l, errdefs.Internalf("shared CPUs: %w", err)
	}
	unadmitted := slices.DeleteFunc(answer.GetUnadmittedPods(), holdsNothing)
	l = listing{revision: answer.GetRevision(), pods: byUID(answer.GetPods()), unadmitted: byUID(unadmitted),
		containers: map[string]*typesv1.ContainerAllocation{}, loose: map[string]bool{}}
	for _, pod := range answer.GetPods() {
		for _, c := range pod.GetContainers() {
			l.containers[pod.GetUid()+"/"+c.GetContainerName()] = c
		}
	}
	known := l.known()
	v.adopt(known)
	living, missing, err := v.living(known)
	for _, uid := range missing {
		l.loose[podOf(uid)] = true
		if _, lives := slices.BinarySearch(living, uid); err == nil && !lives {
			v.agenda.unreconciled = true
			v.agenda.later()
		}
	}
	// berthd shares the CPUs of claims and members that it has lost, until they are admitted again.
	v.forgotten = v.claims.prepared(func(uid string) bool { return l.pods[uid] != nil }).Union(v.withheld(l))
	v.shared = v.shared.Minus(v.forgotten)
	v.ledger = l
	return l, nil
}

func (v *view) allocate(ctx context.Context, m *member, key string) (*allocationv1.AllocateResponse, error) {
	a, err := v.client.Allocate(ctx, key, m.name)
	if err != nil {
		return nil, err
	}
	was := v.tracks.ownOf(m)
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

// compare reads from berthd's ledger how a pod was admitted, if it may have been before this policy was told of it. Before any
// admission of the pod, so that the pod is not admitted in the other form as well.
func (v *view) compare(ctx context.Context, s *sandbox) error {
	if !s.unread {
		return nil
	}
	_, err := v.list(ctx)
	return err
}

// adopt takes the forms of pods that were not compared with the ledger yet from berthd's list. A container whose part of the ledger
// has no process has ended, and its allocation is kept for its restart.
func (v *view) adopt(known map[string]*typesv1.PodAllocation) {
	var parts map[string][]*typesv1.PodAllocation
	for _, s := range v.node.sandboxes {
		if !s.unread {
			continue
		}
		if parts == nil {
			parts = v.partsOfPods(known)
		}
		v.adoptPod(s, known[s.uid], parts[s.uid])
	}
}

// partsOfPods returns the containers of a list that were admitted apart, by the uids of their pods.
func (v *view) partsOfPods(known map[string]*typesv1.PodAllocation) map[string][]*typesv1.PodAllocation {
	parts := map[string][]*typesv1.PodAllocation{}
	for _, pod := range known {
		if uid := podOf(pod.GetUid()); uid != pod.GetUid() && len(pod.GetContainers()) == 1 && v.owns(pod) {
			parts[uid] = append(parts[uid], pod)
		}
	}
	return parts
}

// adoptPod takes the form of a pod. all is its allocation as a whole, nil if there is none, and parts are those of its containers. If a
// container is in both, as after a fault, only what a running container holds counts. Berthd releases the rest, which does not live.
func (v *view) adoptPod(s *sandbox, all *typesv1.PodAllocation, parts []*typesv1.PodAllocation) {
	s.unread = false
	twice := func(part *typesv1.PodAllocation) bool {
		return slices.ContainsFunc(all.GetContainers(), func(c *typesv1.ContainerAllocation) bool {
			return c.GetContainerName() == part.GetContainers()[0].GetContainerName()
		})
	}
	heldTwice := func(part *typesv1.PodAllocation) bool { return twice(part) && v.node.holds(s, part) }
	if !v.node.holds(s, all) && slices.ContainsFunc(parts, heldTwice) {
		all = nil
	}
	parts = slices.DeleteFunc(parts, func(part *typesv1.PodAllocation) bool { return twice(part) && !v.node.holds(s, part) })
	for _, part := range parts {
		name := part.GetContainers()[0].GetContainerName()
		if s.names[name] = keptBefore; v.node.some(s, func(m *member) bool { return m.name == name && !m.life.over() }) {
			s.names[name] = inUse
		}
	}
	switch {
	case all != nil:
		s.form = whole
	case len(parts) > 0:
		s.form = apart
	}
}

// keyOf returns the uid under which berthd has a member, or is to have it.
func (v *view) keyOf(m *member) string {
	s := m.pod
	has := func(uid string) bool {
		return slices.Contains(v.ledger.containers[uid+"/"+m.name].GetContainerIds(), m.id)
	}
	if own := s.key(m.name); has(own) || s.form != whole && !has(s.uid) {
		return own
	}
	return s.uid
}

// syncPods sends the list of living pods, and what the scheduler counts as allocatable. The caller
// holds mu.
func (v *view) syncPods(ctx context.Context) error {
	living := func(ctx context.Context) ([]string, error) {
		l, err := v.list(ctx)
		if err != nil {
			return nil, err
		}
		uids, _, err := v.living(l.known())
		return uids, err
	}
	answer, err := v.client.SyncPods(ctx, living, func(req *admissionv1.SyncPodsRequest) {
		if v.Allocatable != nil {
			req.SchedulerAllocatable = v.Allocatable()
		}
	})
	if err == nil && v.Excess != nil {
		v.Excess(answer.GetSchedulerExcess())
	}
	return err
}

// living returns the uids of the living pods: the runtime's pods, and the pods of berthd's ledger that the
// kubelet may still start. missing are all pods of the ledger that the runtime does not have. It fails until the runtime has
// listed the running pods, because an empty list would remove all pods. The caller holds mu.
func (v *view) living(known map[string]*typesv1.PodAllocation) (uids, missing []string, err error) {
	if !v.node.synchronized {
		return nil, nil, errdefs.Unavailablef("the runtime has not listed its pods yet")
	}
	started := map[string]bool{}
	for _, s := range v.node.sandboxes {
		if started[s.uid] = true; s.form != apart {
			uids = append(uids, s.uid)
		}
		for name := range s.names {
			uids = append(uids, s.key(name))
		}
	}
	// Berthd admits no pod of a uid that no kubelet gives, and would refuse the whole list.
	uids = slices.DeleteFunc(uids, func(uid string) bool { return len(convert.UIDs("uid", []string{uid})) > 0 })
	slices.Sort(uids)
	uids = slices.Compact(uids)
	for uid, pod := range known {
		if _, lives := slices.BinarySearch(uids, uid); !lives && v.owns(pod) {
			missing = append(missing, uid)
		}
	}
	slices.Sort(missing)
	waiting := slices.DeleteFunc(slices.Clone(missing), func(uid string) bool { return started[podOf(uid)] })
	uids = append(uids, v.awaited.restarting(waiting)...)
	slices.Sort(uids)
	return uids, missing, nil
}

// owns reports whether a pod of berthd's ledger was admitted by this policy.
func (v *view) owns(pod *typesv1.PodAllocation) bool {
	return pod.GetOwner() == cmp.Or(v.client.Owner(), ledger.DefaultOwner)
}

// estimateShared finds shared CPUs for containers that are let pass before berthd has answered. An earlier
// berth-nri has moved the sandboxes' processes to the shared CPUs. Not all runtimes have such processes: without them, all CPUs of the
// node are shared. CPUs that members may have for themselves, and those of prepared claims, are not. If no CPUs are left, the shared CPUs
// stay unknown.
func (v *view) estimateShared() {
	if !v.shared.IsEmpty() {
		return
	}
	// berthd does not say which claims it has.
	own := v.claims.prepared(func(string) bool { return false })
	var some, every cpuset.Set
	for _, m := range v.node.all() {
		own = own.Union(v.tracks.ownOf(m))
	}
	for _, s := range v.node.sandboxes {
		if s.pid == 0 {
			continue
		}
		cpus, err := v.kernel.cpusOf(&s.process)
		if err != nil {
			continue
		}
		if some.IsEmpty() {
			every = cpus
		}
		some, every = some.Union(cpus), every.Intersect(cpus)
	}
	if v.shared = every.Minus(own); v.shared.IsEmpty() {
		v.shared = some.Minus(own)
	}
	if v.shared.IsEmpty() && v.kernel.online != nil {
		all, err := v.kernel.online()
		if err != nil {
			v.log.Warn("the CPUs of the node cannot be read", "error", err)
		}
		v.shared = all.Minus(own)
	}
}

// spare returns the CPUs for a container that is let pass: the shared ones. Members of which no list has told may have some of those that
// were estimated.
func (v *view) spare() cpuset.Set {
	var own cpuset.Set
	for _, m := range v.node.all() {
		own = own.Union(v.tracks.ownOf(m))
	}
	return cmp.Or(v.shared.Minus(own), v.shared)
}

// withheld returns the CPUs that members may have for themselves, whatever a list of the ledger has. So it is after berthd has lost its
// ledger, until a member is admitted again, and until it has left its CPUs if it has got others, even if berthd has given and taken them
// in between. Berthd shares these CPUs meanwhile.
func (v *view) withheld(l listing) (cpus cpuset.Set) {
	for _, m := range v.node.all() {
		if c := l.place(m); c == nil {
			cpus = cpus.Union(v.tracks.ownOf(m))
		} else if c.GetExclusiveCpus() {
			m.former = m.former.Union(v.tracks.ownOf(m)).Union(v.tracks.alone(m, v.shared))
		}
		if t, _ := v.tracks.state(m); !v.tracks.may(m) {
			m.former = cpuset.Set{}
		} else if !t.Anywhere {
			m.former = m.former.Intersect(t.PossibleCPUs) // it has left the others
		}
		cpus = cpus.Union(m.former)
	}
	return cpus
}

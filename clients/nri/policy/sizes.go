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
	"github.com/berthd/berth/clients/nri/amounts"
	"github.com/berthd/berth/managers/errdefs"
)

// sizes has berthd count the sizes that the runtime has, and the runtime carry out those that berthd accepts.
type sizes struct {
	*common
	gate       *gate
	tracks     *tracks
	view       *view
	finder     *finder
	confirming *time.Timer // kicks when a resize was to be confirmed
}

// moveHelp names what would allow the move without which a resize was refused; empty if there is none.
func moveHelp(answer *admissionv1.ResizeResponse) string {
	for text, d := range moveLimits {
		if d == answer.GetMoveDisruption() {
			return fmt.Sprintf("; it would move with the annotation %s: %s, which is read when a pod starts", movesAnnotation, text)
		}
	}
	return ""
}

// compare reports a running container's size to berthd, if berthd counts another one. If berthd
// refuses the size, the container keeps its CPUs until resources have become free. An error means that
// berthd does not answer.
func (z *sizes) compare(ctx context.Context, m *member, counted *typesv1.ContainerAllocation) error {
	if counted == nil || z.tracks.isReplaced(m) || !m.resized(counted) {
		m.match, m.unsure = compared, m.unsure && counted == nil // want detects a pod that berthd has lost
		return nil
	}
	within, cancel := halfOf(ctx)
	defer cancel()
	room := z.agenda.room.Load()
	err := z.count(within, m)
	switch {
	case err == nil:
		m.match, m.unsure = compared, false
		return nil
	case ctx.Err() != nil, unanswered(err):
		return err
	case decided(err), m.pod.unfound: // searchAgain finds the specification
		m.match, m.room, m.unsure = denied, room, false
	}
	m.logOnce(ctx, z.log, "berthd has other resources for a container than the runtime", err)
	return nil
}

// askTime is the time in which a runtime confirms a resize that it carries out: the kubelet waits as long for an answer.
const askTime = 2 * time.Minute

// ask notes a resize until the runtime confirms it. Of one that fails no event tells, and the kubelet may take it back without another one.
func (z *sizes) ask(m *member, before *api.LinuxResources) {
	if m.asked = nil; m.requested(m.resources) == m.requested(before) {
		return
	}
	m.asked = &asked{before.Copy(), z.now()}
	z.agenda.in(&z.confirming, askTime)
}

// resizedTo compares a member with berthd that the runtime has with another size.
func (z *sizes) resizedTo(m *member, r *api.LinuxResources) {
	m.resources = r
	z.agenda.compareAgain(m)
	z.agenda.kick()
}

// takeBack compares the sizes of containers with berthd's whose resize the runtime has not confirmed: they have the size
// from before. Berthd counts the other one until then, whichever is more.
func (z *sizes) takeBack() {
	for _, m := range z.node.live() {
		if m.asked == nil {
			continue
		}
		if left := askTime - z.now().Sub(m.asked.at); left > 0 {
			z.agenda.in(&z.confirming, left)
			continue
		}
		z.log.Warn("the runtime has not confirmed a container's resize", "pod", m.pod.namespace+"/"+m.pod.name, "container", m.name)
		z.resizedTo(m, m.asked.before)
		m.asked = nil
	}
}

// logRefused logs a refused resize. A kubelet repeats it every second, so the same one with the
// same reason is a warning only once.
func (z *sizes) logRefused(ctx context.Context, m *member, wanted *api.LinuxResources, err error) {
	level, text := slog.LevelDebug, fmt.Sprint(m.requested(wanted), err)
	if text != m.refused {
		level, m.refused = slog.LevelWarn, text
	}
	z.log.Log(ctx, level, "a container's resize is refused",
		"pod", m.pod.namespace+"/"+m.pod.name, "container", m.name, "let pass", z.gate.passes(m.pod), "error", err)
}

// settle compares the sizes of members with berthd whose resize may have been carried out without an answer: others must not get the CPUs
// that berthd has taken from them meanwhile. An error means that it is still not known. waiting is berthd's pod that may change: its own
// sizes do not matter.
func (z *sizes) settle(ctx context.Context, waiting string) error {
	for _, m := range z.node.live() {
		if !m.unsure || z.tracks.crashed(m) || m.key == "" && m.match != unplaced || cmp.Or(m.key, z.view.keyOf(m)) == waiting {
			continue
		}
		l, err := z.view.list(ctx)
		if err != nil {
			return err
		}
		if counted := l.of(m); counted != nil && m.key != "" {
			if err := z.compare(ctx, m, counted); err != nil {
				return err
			}
		}
		if m.unsure {
			return errdefs.Unavailablef("the size of container %s is not known yet: berthd has not answered a resize", m.title())
		}
	}
	return nil
}

// count reports a container's size to berthd, with the other containers of its pod.
func (z *sizes) count(ctx context.Context, m *member) error {
	s := m.pod
	switch {
	case m.key == "":
		return nil
	case z.gate.bar() != nil:
		return z.gate.bar()
	case m.key != s.uid:
		pod, err := m.apart()
		if err != nil {
			return err
		}
		return z.agreeTo(ctx, s, pod)
	case s.spec == nil || s.unfound:
		// The source may not have answered when the runtime told of the pod.
		if err := z.finder.search(ctx, s); err != nil {
			return err
		}
		if s.spec == nil {
			return errdefs.Preconditionf("no source has the specification of pod %s, which was admitted with one", s.uid)
		}
	}
	return z.agreeWhole(ctx, m, s.spec)
}

// agreeWhole resizes a pod in berthd to a specification, with the present sizes of its containers.
func (z *sizes) agreeWhole(ctx context.Context, m *member, spec *typesv1.Pod) error {
	pod, err := z.grown(m, spec)
	if err != nil {
		return err
	}
	if err := z.agreeTo(ctx, m.pod, pod); err != nil {
		return err
	}
	m.pod.spec = pod
	return nil
}

// agreeTo resizes a pod of a sandbox in berthd. A refusal is an error too. The kubelet has
// only resizes in place, so running containers move to other NUMA nodes only if the pod allows it.
func (z *sizes) agreeTo(ctx context.Context, s *sandbox, pod *typesv1.Pod) error {
	req := berth.ResizeTo(pod)
	req.MaxMoveDisruption = s.maxMove
	answer, err := z.client.Resize(ctx, req)
	if answer.GetMoveDisruption() != admissionv1.Disruption_DISRUPTION_UNSPECIFIED {
		runs := map[string]bool{}
		for _, m := range z.node.members {
			if m.pod.uid == s.uid && (z.tracks.hasProcess(m) || z.tracks.pending(m)) {
				runs[m.name] = true
			}
		}
		if movesOthers(ctx, z.client, req, runs) {
			req.MaxMoveDisruption = admissionv1.Disruption_DISRUPTION_UNSPECIFIED
			answer, err = z.client.Resize(ctx, req)
		}
	}
	switch {
	case err != nil:
		z.agenda.unsure(err)
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
func (z *sizes) grown(m *member, spec *typesv1.Pod) (*typesv1.Pod, error) {
	sizes := map[string]*member{}
	for _, other := range append(z.node.live(), m) {
		if other.pod == m.pod && other.key == m.pod.uid && (other == m || !z.tracks.isReplaced(other)) {
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

// agreed checks that a container about to be created matches its pod's specification. The pod may
// have been resized since: the kubelet then has the new specification, and berthd must accept the
// size. If a container is created again, the size is taken from the runtime, too. Sources other than the
// kubelet are not read again, because a pod's author may be able to write them.
func (z *sizes) agreed(ctx context.Context, m *member) error {
	s := m.pod
	spec, differs := s.spec, amounts.Agree(s.spec, m.name, m.without(m.resources))
	switch {
	case differs != nil:
		var err error
		if spec, err = z.present(ctx, m, differs); err != nil {
			return err
		}
	case !m.limited(spec):
		return nil
	}
	if s.form != whole || z.view.ledger.unadmitted[s.uid] != nil {
		s.spec = spec // it is still to be admitted
		return nil
	}
	m.key = s.uid
	err := z.agreeWhole(ctx, m, spec)
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
func (z *sizes) sized(ctx context.Context, m *member, a *allocationv1.AllocateResponse) (*allocationv1.AllocateResponse, error) {
	s := m.pod
	if m.key != s.uid || !m.resized(a.GetAllocation()) {
		return a, nil
	}
	s.form = whole
	if err := z.count(ctx, m); err != nil {
		return nil, err
	}
	return z.view.allocate(ctx, m, s.uid)
}

// present returns the specification of a member's pod after a resize. The one that was found first differs from the runtime's values.
func (z *sizes) present(ctx context.Context, m *member, differs error) (*typesv1.Pod, error) {
	spec, err := z.finder.ofKubelet(ctx, m.pod)
	switch {
	case err != nil && !m.pod.hasMade(m.name):
		return nil, errors.Join(differs, err)
	case spec != nil && amounts.Agree(spec, m.name, m.without(m.resources)) == nil:
		return spec, nil
	case m.pod.hasMade(m.name):
		return m.pod.spec, nil
	}
	return nil, differs
}

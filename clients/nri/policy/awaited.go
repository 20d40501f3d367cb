package policy

import (
	"context"
	"slices"
	"sync"
	"time"

	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	"github.com/berthd/berth/clients/berth"
	"github.com/berthd/berth/managers/errdefs"
)

// awaitedPods are berthd's pods without a sandbox, which the kubelet may still start.
type awaitedPods struct {
	*common
	mu         *sync.Mutex // Policy.mu
	kubelet    Source
	pods       map[string]awaited // by their uids
	connecting *hearing           // during Synchronize: the kubelet's pods
	unheard    bool               // it is in the log that the kubelet does not list its pods
	askAt      time.Time          // when the kubelet may be called again
}

// awaited is a pod of berthd without a sandbox, which the kubelet may still start.
type awaited struct {
	// ended means that the kubelet does not start it any more, or that its removal has failed after its end.
	ended bool
	// unheard is since when the kubelet does not answer; zero if it does, or was not called yet.
	unheard time.Time
}

// hearing is an answer of the kubelet.
type hearing struct {
	active []string
	err    error
}

// unheardTime is how long pods without a sandbox are kept for a kubelet that does not answer.
const unheardTime = 5 * time.Minute

// restarting returns the pods without a sandbox that the kubelet may still start. After a boot these are all pods:
// released, their CPUs could go to a newer pod, and the scheduler has counted them. The kubelet is not called here, because
// mu is held. Until call returns, pods are kept. A kubelet that has just started answers later.
func (p *awaitedPods) restarting(uids []string) (out []string) {
	before := p.pods
	p.pods = map[string]awaited{}
	if p.kubelet == nil || len(uids) == 0 {
		p.unheard = false
		return nil
	}
	for _, uid := range uids {
		a, known := before[uid]
		if p.pods[uid] = a; !known {
			p.agenda.kick() // the next pass calls the kubelet
		}
	}
	if p.connecting != nil {
		p.heard(uids, *p.connecting)
	}
	for _, uid := range uids {
		if p.keeps(uid) {
			out = append(out, uid)
		}
	}
	return out
}

// hear calls the kubelet for its pods; nil if there is none.
func (p *awaitedPods) hear(ctx context.Context) *hearing {
	if p.kubelet == nil {
		return nil
	}
	active, err := p.kubelet.Active(ctx)
	return &hearing{active, err}
}

// lacks reports whether the kubelet, which was called at the connection, does not have a pod.
func (p *awaitedPods) lacks(uid string) bool {
	return p.connecting != nil && p.connecting.err == nil && !slices.Contains(p.connecting.active, uid)
}

// removalFailed makes the next list of living pods repeat the removal of an allocation.
func (p *awaitedPods) removalFailed(uid string) { p.pods[uid] = awaited{ended: true} }

// keeps reports whether a pod without a sandbox may still be started.
func (p *awaitedPods) keeps(uid string) bool {
	a := p.pods[uid]
	return !a.ended && (a.unheard.IsZero() || p.now().Sub(a.unheard) < unheardTime)
}

// heard stores an answer about pods without a sandbox. The caller holds mu.
func (p *awaitedPods) heard(uids []string, h hearing) {
	if len(uids) == 0 {
		return
	}
	if h.err != nil && !p.unheard {
		p.log.Warn("the kubelet does not list its pods: berthd keeps those that do not run for now", "pods", len(uids), "for",
			unheardTime, "error", h.err)
	}
	p.unheard = h.err != nil
	for _, uid := range uids {
		a, ok := p.pods[uid]
		switch {
		case !ok: // the pod was started meanwhile
			continue
		case h.err == nil:
			a = awaited{ended: !slices.Contains(h.active, podOf(uid))}
			p.agenda.unreconciled = p.agenda.unreconciled || a.ended
		case a.unheard.IsZero():
			a.unheard = p.now()
		}
		p.pods[uid] = a
	}
}

// call reads which pods without a sandbox the kubelet has. mu is free meanwhile, because the kubelet may not answer. A kubelet that
// has not answered for unheardTime is not called about them again.
func (p *awaitedPods) call(ctx context.Context) {
	uids := p.open()
	if len(uids) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	active, err := p.kubelet.Active(ctx)
	var ended []string
	if errdefs.ClassOf(err) == errdefs.Unsupported {
		// A kubelet that ends removes its socket, too. It has the API if a specification is from it.
		ended = slices.DeleteFunc(slices.Clone(uids), func(uid string) bool { return fromKubelet(ctx, p.client, uid) })
		uids = slices.DeleteFunc(uids, func(uid string) bool { return slices.Contains(ended, uid) })
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.askAt = p.now().Add(sweeping)
	p.heard(ended, hearing{})
	p.heard(uids, hearing{active, err})
}

// open returns the pods without a sandbox that the kubelet is to be called about now.
func (p *awaitedPods) open() (uids []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.now().Before(p.askAt) {
		return nil
	}
	for uid := range p.pods {
		if p.keeps(uid) {
			uids = append(uids, uid)
		}
	}
	return uids
}

// fromKubelet reports whether the specification of a pod of berthd is, or may be, from the kubelet.
func fromKubelet(ctx context.Context, client *berth.Client, uid string) bool {
	pod, err := client.Allocation().Get(ctx, &allocationv1.GetRequest{Subject: &allocationv1.GetRequest_PodUid{PodUid: uid}})
	from := pod.GetSpec().GetMetadata().GetAnnotations()[specificationAnnotation]
	return err != nil || from == FromKubelet || from == FromKubeletServer
}

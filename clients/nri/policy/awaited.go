package policy

import (
	"context"
	"slices"
	"time"

	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	"github.com/berthd/berth/clients/berth"
	"github.com/berthd/berth/managers/errdefs"
)

// unheardTime is how long pods without a sandbox are kept for a kubelet that does not answer.
const unheardTime = 5 * time.Minute

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

// restarting returns the pods without a sandbox that the kubelet may still start. After a boot these are all pods:
// released, their CPUs could go to a newer pod, and the scheduler has counted them. The kubelet is not called here, because
// mu is held. Until callKubelet returns, pods are kept. A kubelet that has just started answers later.
func (p *Policy) restarting(uids []string) (out []string) {
	before := p.awaited
	p.awaited = map[string]awaited{}
	if p.Kubelet == nil || len(uids) == 0 {
		p.unheard = false
		return nil
	}
	for _, uid := range uids {
		a, known := before[uid]
		if p.awaited[uid] = a; !known {
			p.kick() // the next pass calls the kubelet
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

// lacks reports whether the kubelet, which was called at the connection, does not have a pod.
func (p *Policy) lacks(uid string) bool {
	return p.connecting != nil && p.connecting.err == nil && !slices.Contains(p.connecting.active, uid)
}

// removalFailed makes the next list of living pods repeat the removal of an allocation.
func (p *Policy) removalFailed(uid string) { p.awaited[uid] = awaited{ended: true} }

// keeps reports whether a pod without a sandbox may still be started.
func (p *Policy) keeps(uid string) bool {
	a := p.awaited[uid]
	return !a.ended && (a.unheard.IsZero() || p.Now().Sub(a.unheard) < unheardTime)
}

// heard stores an answer about pods without a sandbox. The caller holds mu.
func (p *Policy) heard(uids []string, h hearing) {
	if len(uids) == 0 {
		return
	}
	if h.err != nil && !p.unheard {
		p.Log.Warn("the kubelet does not list its pods: berthd keeps those that do not run for now", "pods", len(uids), "for",
			unheardTime, "error", h.err)
	}
	p.unheard = h.err != nil
	for _, uid := range uids {
		a, ok := p.awaited[uid]
		switch {
		case !ok: // the pod was started meanwhile
			continue
		case h.err == nil:
			a = awaited{ended: !slices.Contains(h.active, podOf(uid))}
			p.unreconciled = p.unreconciled || a.ended
		case a.unheard.IsZero():
			a.unheard = p.Now()
		}
		p.awaited[uid] = a
	}
}

// callKubelet reads which pods without a sandbox the kubelet has. mu is free meanwhile, because the kubelet may not answer. A kubelet that
// has not answered for unheardTime is not called about them again.
func (p *Policy) callKubelet(ctx context.Context) {
	uids := p.open()
	if len(uids) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	active, err := p.Kubelet.Active(ctx)
	var ended []string
	if errdefs.ClassOf(err) == errdefs.Unsupported {
		// A kubelet that ends removes its socket, too. It has the API if a specification is from it.
		ended = slices.DeleteFunc(slices.Clone(uids), func(uid string) bool { return fromKubelet(ctx, p.Client, uid) })
		uids = slices.DeleteFunc(uids, func(uid string) bool { return slices.Contains(ended, uid) })
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.askAt = p.Now().Add(sweeping)
	p.heard(ended, hearing{})
	p.heard(uids, hearing{active, err})
}

// open returns the pods without a sandbox that the kubelet is to be called about now.
func (p *Policy) open() (uids []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.Now().Before(p.askAt) {
		return nil
	}
	for uid := range p.awaited {
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

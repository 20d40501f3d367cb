package driver

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/managers/cpuset"
)

const (
	// grace is how long a claim has been forgotten before it is released. A kubelet ends the containers of pods that the API server
	// does not have any more, and gives their claims back, in less.
	grace = 10 * time.Minute
	// round is the time between two comparisons.
	round = 5 * time.Minute
)

// forget releases claims that the kubelet will not unprepare, because it has lost its own state of claims: the API server does not
// have them any more or has not allocated them on this node, or not as they were prepared, and no container uses them.
// Only claims without users are looked up, so nearly no call is made. The kubelet must be ready for the whole time, as it
// ends the containers of pods that do not exist any more.
func (d *Driver) forget(ctx context.Context, now time.Time) error {
	unused, err := d.unused(ctx)
	if err != nil {
		return err
	}
	ready := false
	if len(unused) > 0 {
		limited, cancel := context.WithTimeout(ctx, d.limit)
		status, err := d.NodeStatus(limited)
		cancel()
		if err != nil {
			return fmt.Errorf("read node %s: %w", d.NodeName, err)
		}
		ready = slices.ContainsFunc(status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
		})
	}
	forgotten := map[string]string{} // why, by uid
	for _, uid := range slices.Sorted(maps.Keys(unused)) {
		if !ready {
			break
		}
		limited, cancel := context.WithTimeout(ctx, d.limit)
		c, err := d.ReadClaim(limited, unused[uid].Namespace, unused[uid].Name)
		cancel()
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("read claim %s/%s, which no container uses: %w", unused[uid].Namespace, unused[uid].Name, err)
		}
		if why := d.gone(unused[uid], c, err); why != "" {
			forgotten[uid] = why
		}
	}
	for _, uid := range d.due(forgotten, now) {
		if released, err := d.giveBack(ctx, uid); err != nil {
			return fmt.Errorf("release claim %s/%s: %w", unused[uid].Namespace, unused[uid].Name, err)
		} else if released {
			d.Log.Warn("releasing a claim that the kubelet has not unprepared",
				"claim", unused[uid].Namespace+"/"+unused[uid].Name, "uid", uid, "reason", forgotten[uid])
		}
	}
	return nil
}

// unused returns the claims in berthd and in CDI files that no container uses.
func (d *Driver) unused(ctx context.Context) (map[string]*claim, error) {
	ctx, cancel := context.WithTimeout(ctx, d.limit)
	defer cancel()
	list, err := d.Client.Allocation().List(ctx, &allocationv1.ListRequest{})
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	out := maps.Clone(d.prepared)
	d.mu.Unlock()
	for _, p := range slices.Concat(list.GetPods(), list.GetUnadmittedPods()) {
		if p.GetOwner() == Owner && p.GetResourceClaimNodes() != nil {
			out[p.GetUid()] = admitted(p)
		}
	}
	for _, p := range list.GetPods() {
		for _, c := range p.GetContainers() {
			for _, device := range c.GetExternalDevices() {
				if uid, _, _ := strings.Cut(device.GetId(), ":"); device.GetResource() == Kind {
					delete(out, uid)
				}
			}
		}
	}
	return out, nil
}

// admitted is a claim as berthd has it.
func admitted(p *typesv1.PodAllocation) *claim {
	out := &claim{UID: p.GetUid(), Namespace: p.GetNamespace(), Name: p.GetName()}
	for _, c := range p.GetContainers() {
		one := &part{Name: c.GetContainerName(), CPUs: c.GetCpus().GetList(), Resources: map[string]string{}}
		if cpus, err := cpuset.Parse(one.CPUs); err == nil {
			one.Resources[capacityCPU] = strconv.Itoa(cpus.Len())
		}
		for _, m := range c.GetNodeMemory() {
			one.Node, one.Resources[m.GetResource()] = m.GetNumaNode(), strconv.FormatUint(m.GetBytes(), 10)
		}
		out.Parts = append(out.Parts, one)
	}
	return out
}

// gone returns why a claim is not of this node any more, or not as it was prepared, from the API server's answer; empty if it is.
func (d *Driver) gone(have *claim, c *resourceapi.ResourceClaim, err error) string {
	switch {
	case err != nil:
		return "it does not exist at the API server any more"
	case string(c.UID) != have.UID:
		return fmt.Sprintf("the API server has another claim of this name, with the uid %s", c.UID)
	case c.Status.Allocation == nil:
		return "it is not allocated any more"
	case !slices.ContainsFunc(c.Status.Allocation.Devices.Results, func(r resourceapi.DeviceRequestAllocationResult) bool {
		return r.Driver == Name && r.Pool == d.NodeName
	}):
		return "it is allocated on another node"
	}
	d.mu.Lock()
	differs := d.differs[have.UID]
	d.mu.Unlock()
	if now, err := read(c, d.NodeName); differs || err == nil && !now.same(have) {
		return "it is allocated on this node again, with other amounts, NUMA nodes or parameters"
	}
	return ""
}

// due replaces the claims that are forgotten, and returns those that have been so for long enough.
func (d *Driver) due(forgotten map[string]string, now time.Time) (due []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	since := map[string]time.Time{}
	for _, uid := range slices.Sorted(maps.Keys(forgotten)) {
		began, known := d.forgotten[uid]
		if !known {
			began = now
		}
		since[uid] = began
		if now.Sub(began) >= grace {
			due = append(due, uid)
		}
	}
	d.forgotten = since
	return due
}

// giveBack gives a claim back, unless it was prepared again meanwhile.
func (d *Driver) giveBack(ctx context.Context, uid string) (released bool, err error) {
	if err := d.enter(ctx); err != nil {
		return false, err
	}
	defer d.leave()
	ctx, cancel := context.WithTimeout(ctx, d.limit)
	defer cancel()
	d.mu.Lock()
	_, still := d.forgotten[uid]
	d.mu.Unlock()
	if !still {
		return false, nil
	}
	return true, d.remove(ctx, uid)
}

// compareClaims calls forget and prepareLost from time to time, soon after an error, and when berthd has answered again, until the context
// ends.
func (d *Driver) compareClaims(ctx context.Context) {
	pauses, logged := retries(), ""
	for {
		next := round
		switch err := errors.Join(d.forget(ctx, time.Now()), d.prepareLost(ctx)); {
		case ctx.Err() != nil:
			return
		case err == nil:
			pauses, logged = retries(), ""
		default:
			next = pauses.Step()
			if text := err.Error(); text != logged {
				logged = text
				d.Log.Warn("claims are not compared with those at the API server", "error", err)
			}
		}
		timer := time.NewTimer(next)
		select {
		case <-timer.C:
		case <-d.answered:
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

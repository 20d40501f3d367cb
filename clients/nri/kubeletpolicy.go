package main

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/berthd/berth/managers/errdefs"
)

const (
	// managersEvery is the interval of looks at the kubelet's managers: they are others when it was started with another configuration.
	managersEvery = 10 * time.Second
	// managersTimeout bounds one look.
	managersTimeout = 2 * time.Second
)

// managers returns why the kubelet assigns CPUs or memory itself, as an error of class Precondition; nil if it does not. known is
// false if the kubelet does not say. A kubelet has allocatable CPUs and memory in its PodResources API only if these managers have
// the policy static, and have started. The API serves before that, and lists pods after that.
func (r *podResources) managers(ctx context.Context) (reason error, known bool) {
	if r == nil {
		return nil, false
	}
	if _, err := os.Stat(r.path); errors.Is(err, fs.ErrNotExist) {
		return nil, false // no kubelet, or not yet
	}
	ctx, cancel := context.WithTimeout(ctx, managersTimeout)
	defer cancel()
	started := r.off.Load() || r.listsPods(ctx) // before the amounts are read
	all, err := r.lister.GetAllocatableResources(ctx, &podresourcesv1.AllocatableResourcesRequest{}, grpc.MaxCallRecvMsgSize(maxResources))
	if err != nil {
		return nil, false
	}
	var on, off []string
	if len(all.GetCpuIds()) > 0 {
		on, off = append(on, "CPU manager has the policy static"), append(off, "cpuManagerPolicy: none")
	}
	if len(all.GetMemory()) > 0 {
		on, off = append(on, "memory manager has the policy Static"), append(off, "memoryManagerPolicy: None")
	}
	r.off.Store(started && len(on) == 0)
	if len(on) == 0 {
		return nil, started
	}
	return errdefs.Preconditionf("the kubelet's %s, so the kubelet and berthd would both assign the same resources: set %s in the kubelet's configuration, stop the kubelet, remove its cpu_manager_state and memory_manager_state, and start it",
		strings.Join(on, ", and its "), strings.Join(off, " and ")), true
}

// listsPods reports whether the kubelet lists any pod.
func (r *podResources) listsPods(ctx context.Context) bool {
	list, err := r.lister.List(ctx, &podresourcesv1.ListPodResourcesRequest{}, grpc.MaxCallRecvMsgSize(maxResources))
	return err == nil && len(list.GetPodResources()) > 0
}

// watchManagers reports the kubelet's managers to changed until the context ends. While the kubelet does not answer, it is as it was.
func (r *podResources) watchManagers(ctx context.Context, changed func(error)) {
	tick := time.NewTicker(managersEvery)
	defer tick.Stop()
	for {
		if reason, known := r.managers(ctx); known {
			changed(reason)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

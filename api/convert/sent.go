package convert

import (
	"fmt"
	"maps"
	"slices"
	"strconv"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/workload"
)

// Pod returns the message form of a pod.
func Pod(p *workload.Pod) *typesv1.Pod {
	m := &typesv1.Pod{
		Metadata: &typesv1.PodMetadata{
			Name: p.Name, Namespace: p.Namespace, Uid: p.UID,
			Labels: p.Labels, Annotations: p.Annotations,
		},
		Spec: &typesv1.PodSpec{
			Overhead: amounts(p.Overhead, excessOf(p.Excess).Overhead),
			Priority: p.Priority, PriorityClassName: p.PriorityClassName,
			RestartPolicy: p.RestartPolicy, HostNetwork: p.HostNetwork,
		},
		Status: &typesv1.PodStatus{QosClass: string(p.QoS)},
	}
	if p.Resources != nil {
		m.Spec.Resources = Requirements(p.Resources.Requests, p.Resources.Limits, p.Excess)
	}
	for _, c := range p.Walk() {
		out := &typesv1.Container{Name: c.Name, Resources: Requirements(c.Requests, c.Limits, c.Excess)}
		for _, r := range slices.Sorted(maps.Keys(c.ResizePolicy)) {
			out.ResizePolicy = append(out.ResizePolicy, &typesv1.ResizePolicy{ResourceName: string(r), RestartPolicy: c.ResizePolicy[r]})
		}
		switch c.Role {
		case workload.App:
			m.Spec.Containers = append(m.Spec.Containers, out)
			continue
		case workload.Sidecar:
			out.RestartPolicy = restartAlways
		}
		m.Spec.InitContainers = append(m.Spec.InitContainers, out)
	}
	return m
}

// SentPod reads a pod that berthd itself has written: its amounts must be
// readable, everything else was checked when the pod came in. Errors are of class
// Invalid.
func SentPod(m *typesv1.Pod) (workload.Pod, error) {
	var vs errdefs.Violations
	if m.GetMetadata().GetUid() == "" {
		vs.Addf("pod.metadata.uid", "is required")
	}
	p := readPod(m, &vs)
	p.Namespace = m.GetMetadata().GetNamespace()
	return p, vs.Err("pod")
}

// Requirements returns the message form of requests and limits. Equal ones, as those of every Guaranteed pod, are one map.
func Requirements(requests, limits workload.Quantities, x *workload.Excess) *typesv1.ResourceRequirements {
	out := &typesv1.ResourceRequirements{Requests: amounts(requests, excessOf(x).Requests)}
	if requests != nil && x == nil && maps.Equal(requests, limits) {
		out.Limits = out.Requests
	} else {
		out.Limits = amounts(limits, excessOf(x).Limits)
	}
	return out
}

func excessOf(x *workload.Excess) workload.Excess {
	if x == nil {
		return workload.Excess{}
	}
	return *x
}

// amounts writes quantities exactly: what rounding up put on them is taken off
// again. Whole CPUs are as Kubernetes writes them ("2"), bytes are plain numbers.
func amounts(q, excess workload.Quantities) map[string]string {
	if q == nil {
		return nil
	}
	out := make(map[string]string, len(q))
	for r, n := range q {
		text := strconv.FormatInt(n, 10)
		over := excess[r]
		if over != 0 {
			text = fmt.Sprintf("%d.%09d", n-1, 1_000_000_000-over)
		}
		switch {
		case r == workload.CPU && over == 0:
			text = r.Text(n)
		case r == workload.CPU:
			text += "m"
		}
		out[string(r)] = text
	}
	return out
}

package policy

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/nri/pkg/api"
	"k8s.io/apimachinery/pkg/api/resource"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/workload"
)

// period is the period of a CPU quota in microseconds, as the kubelet sets it.
const period = 100_000

const (
	// leastShares is the kernel's least value of cpu.shares: the kubelet writes it
	// for requests of 0 to 2 milli-CPU.
	leastShares  = 2
	sharesPerCPU = 1024
	milliPerCPU  = 1000
	// leastLimit replaces smaller limits in the kubelet, in milli-CPU.
	leastLimit    = 10
	memoryIsNoCap = 1 << 60 // what kernels of version 1 call unlimited is above this
)

// amounts has a container's requests and limits in milli-CPU and bytes; 0 for none.
type amounts struct{ cpuRequest, cpuLimit, memoryRequest, memoryLimit int64 }

// amountsOf computes the amounts from cgroup values. An even container, whose limits equal its
// requests, may have no quota.
func amountsOf(r *api.LinuxResources, even bool) amounts {
	a := amounts{cpuRequest: milliRequest(r), cpuLimit: milliLimit(r)}
	if a.cpuLimit > 0 {
		a.cpuRequest = min(a.cpuRequest, a.cpuLimit)
	}
	if even {
		a.cpuLimit = a.cpuRequest
	}
	if limit := r.GetMemory().GetLimit().GetValue(); limit > 0 && limit < memoryIsNoCap {
		a.memoryRequest, a.memoryLimit = limit, limit
	}
	return a
}

// rebuilt computes a container's requests and limits from cgroup values, as far as those
// determine them.
func rebuilt(r *api.LinuxResources, even bool) (*typesv1.ResourceRequirements, error) {
	out, a := &typesv1.ResourceRequirements{Requests: map[string]string{}, Limits: map[string]string{}}, amountsOf(r, even)
	put(out.Requests, "cpu", a.cpuRequest, "m")
	put(out.Limits, "cpu", a.cpuLimit, "m")
	put(out.Limits, "memory", a.memoryLimit, "")
	for _, h := range r.GetHugepageLimits() {
		size, err := pageSize(h.GetPageSize())
		if err != nil {
			return nil, err
		}
		if h.GetLimit() < memoryIsNoCap {
			put(out.Limits, string(workload.HugePagesOf(size)), int64(h.GetLimit()), "")
		}
	}
	return out, nil
}

func put(to map[string]string, name string, amount int64, unit string) {
	if amount > 0 {
		to[name] = strconv.FormatInt(amount, 10) + unit
	}
}

// milliRequest inverts the kubelet's shares = milli * 1024 / 1000, rounded down.
func milliRequest(r *api.LinuxResources) int64 {
	shares := int64(min(r.GetCpu().GetShares().GetValue(), memoryIsNoCap/milliPerCPU))
	if shares <= leastShares {
		return 0
	}
	return (shares*milliPerCPU + sharesPerCPU - 1) / sharesPerCPU
}

// milliLimit inverts quota = milli * period / 1000.
func milliLimit(r *api.LinuxResources) int64 {
	quota, period := r.GetCpu().GetQuota().GetValue(), int64(r.GetCpu().GetPeriod().GetValue())
	if quota <= 0 || period <= 0 || quota > memoryIsNoCap/milliPerCPU {
		return 0
	}
	return (quota*milliPerCPU + period - 1) / period
}

// pageSize parses a size in the names of the kernel's hugetlb files: 2MB, 1GB.
func pageSize(text string) (int64, error) {
	for unit, size := range map[string]int64{"KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30} {
		if number, ok := strings.CutSuffix(text, unit); ok {
			n, err := strconv.ParseInt(number, 10, 32)
			if err == nil && n > 0 {
				return n * size, nil
			}
		}
	}
	return 0, errdefs.Invalidf("huge page size %q: expected a number and KB, MB or GB", text)
}

// declared parses the requests and limits of a container in a specification.
func declared(c *typesv1.Container) (a amounts, err error) {
	requests, limits := c.GetResources().GetRequests(), c.GetResources().GetLimits()
	for _, f := range []struct {
		to   *int64
		from map[string]string
		name string
	}{
		{&a.cpuRequest, requests, "cpu"}, {&a.cpuLimit, limits, "cpu"},
		{&a.memoryRequest, requests, "memory"}, {&a.memoryLimit, limits, "memory"},
	} {
		text := f.from[f.name]
		if text == "" {
			continue
		}
		q, err := resource.ParseQuantity(text)
		if err != nil {
			return a, errdefs.Invalidf("container %s: %s %q: %w", c.GetName(), f.name, text, err)
		}
		if *f.to = q.Value(); f.name == "cpu" {
			*f.to = q.MilliValue()
		}
	}
	if requests["cpu"] == "" {
		a.cpuRequest = a.cpuLimit
	}
	if requests["memory"] == "" {
		a.memoryRequest = a.memoryLimit
	}
	return a, nil
}

// agree compares a container's specification with the values that the kubelet sent to the runtime. It
// refuses the specification of another pod, or a forged one.
func agree(spec *typesv1.Pod, name string, r *api.LinuxResources) error {
	if r.GetCpu().GetShares().GetValue() == 0 {
		return nil // the event has no values to compare
	}
	for _, listed := range slices.Concat(spec.GetSpec().GetInitContainers(), spec.GetSpec().GetContainers()) {
		if listed.GetName() != name {
			continue
		}
		requested, err := declared(listed)
		if err != nil {
			return err
		}
		limit, err := ofPod(spec, listed)
		if err != nil {
			return err
		}
		if request := milliRequest(r); !sameRequest(cmp.Or(requested.cpuRequest, limit), request) && !(limit > 0 && request == 0) {
			return errdefs.Preconditionf("container %s: the pod's specification requests %dm of cpu, and the runtime was given %dm", name,
				requested.cpuRequest, request)
		}
		if limit := amountsOf(r, false).memoryLimit; !sameMemory(requested.memoryLimit, limit) {
			return errdefs.Preconditionf("container %s: the pod's specification limits memory to %d, and the runtime was given %d", name,
				requested.memoryLimit, limit)
		}
	}
	return nil
}

// ofPod returns the CPU limit of a pod in milli-CPU, if the kubelet gives a container the weight for it: so it does for a container
// without a request or a limit of its own in a pod with a limit at the pod level (KEP-2837). Otherwise it is 0. A kubelet without
// pod-level resources gives such a container the least weight.
func ofPod(spec *typesv1.Pod, c *typesv1.Container) (milli int64, err error) {
	own, err := declared(c)
	if err != nil || own.cpuLimit > 0 || c.GetResources().GetRequests()["cpu"] != "" {
		return 0, err
	}
	pod, err := declared(&typesv1.Container{Name: "(pod level)", Resources: spec.GetSpec().GetResources()})
	return pod.cpuLimit, err
}

// sameRequest reports whether given can be the runtime's value of the request requested. The smallest
// requests have the same shares as no request.
func sameRequest(requested, given int64) bool {
	return requested == given || given == 0 && requested <= leastShares
}

// sameMemory reports whether given can be the runtime's value of the limit requested. A container
// without a limit may have the pod's (KEP-2837).
func sameMemory(requested, given int64) bool {
	return requested == given || requested == 0 || given == 0
}

// Package amounts converts between the requests and limits of a container in its specification, and the values of its cgroup that a
// kubelet gives the runtime.
package amounts

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

// Period is the period of a CPU quota in microseconds, as the kubelet sets it.
const Period = 100_000

const (
	// LeastShares is the kernel's least value of cpu.shares: the kubelet writes it
	// for requests of 0 to 2 milli-CPU.
	LeastShares  = 2
	sharesPerCPU = 1024
	// MilliPerCPU is how many milli-CPU a CPU has.
	MilliPerCPU = 1000
	// LeastLimit replaces smaller limits in the kubelet, in milli-CPU.
	LeastLimit = 10
	// NoCap is below what kernels of version 1 call unlimited.
	NoCap = 1 << 60
)

// Amounts has a container's requests and limits in milli-CPU and bytes; 0 for none.
type Amounts struct{ CPURequest, CPULimit, MemoryRequest, MemoryLimit int64 }

// Of computes the amounts from cgroup values. An even container, whose limits equal its
// requests, may have no quota.
func Of(r *api.LinuxResources, even bool) Amounts {
	a := Amounts{CPURequest: Request(r), CPULimit: milliLimit(r)}
	if a.CPULimit > 0 {
		a.CPURequest = min(a.CPURequest, a.CPULimit)
	}
	if even {
		a.CPULimit = a.CPURequest
	}
	if limit := r.GetMemory().GetLimit().GetValue(); limit > 0 && limit < NoCap {
		a.MemoryRequest, a.MemoryLimit = limit, limit
	}
	return a
}

// Rebuilt computes a container's requests and limits from cgroup values, as far as those
// determine them.
func Rebuilt(r *api.LinuxResources, even bool) (*typesv1.ResourceRequirements, error) {
	out, a := &typesv1.ResourceRequirements{Requests: map[string]string{}, Limits: map[string]string{}}, Of(r, even)
	Put(out.Requests, "cpu", a.CPURequest, "m")
	Put(out.Limits, "cpu", a.CPULimit, "m")
	Put(out.Limits, "memory", a.MemoryLimit, "")
	for _, h := range r.GetHugepageLimits() {
		size, err := PageSize(h.GetPageSize())
		if err != nil {
			return nil, err
		}
		if h.GetLimit() < NoCap {
			Put(out.Limits, string(workload.HugePagesOf(size)), int64(h.GetLimit()), "")
		}
	}
	return out, nil
}

// Put adds an amount with its unit to requests or limits, unless it is 0.
func Put(to map[string]string, name string, amount int64, unit string) {
	if amount > 0 {
		to[name] = strconv.FormatInt(amount, 10) + unit
	}
}

// Request inverts the kubelet's shares = milli * 1024 / 1000, rounded down.
func Request(r *api.LinuxResources) int64 {
	shares := int64(min(r.GetCpu().GetShares().GetValue(), NoCap/MilliPerCPU))
	if shares <= LeastShares {
		return 0
	}
	return (shares*MilliPerCPU + sharesPerCPU - 1) / sharesPerCPU
}

// milliLimit inverts quota = milli * period / 1000.
func milliLimit(r *api.LinuxResources) int64 {
	quota, period := r.GetCpu().GetQuota().GetValue(), int64(r.GetCpu().GetPeriod().GetValue())
	if quota <= 0 || period <= 0 || quota > NoCap/MilliPerCPU {
		return 0
	}
	return (quota*MilliPerCPU + period - 1) / period
}

// PageSize parses a size in the names of the kernel's hugetlb files: 2MB, 1GB.
func PageSize(text string) (int64, error) {
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

// Declared parses the requests and limits of a container in a specification.
func Declared(c *typesv1.Container) (a Amounts, err error) {
	requests, limits := c.GetResources().GetRequests(), c.GetResources().GetLimits()
	for _, f := range []struct {
		to   *int64
		from map[string]string
		name string
	}{
		{&a.CPURequest, requests, "cpu"}, {&a.CPULimit, limits, "cpu"},
		{&a.MemoryRequest, requests, "memory"}, {&a.MemoryLimit, limits, "memory"},
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
		a.CPURequest = a.CPULimit
	}
	if requests["memory"] == "" {
		a.MemoryRequest = a.MemoryLimit
	}
	return a, nil
}

// Agree compares a container's specification with the values that the kubelet sent to the runtime. It
// refuses the specification of another pod, or a forged one.
func Agree(spec *typesv1.Pod, name string, r *api.LinuxResources) error {
	if r.GetCpu().GetShares().GetValue() == 0 {
		return nil // the event has no values to compare
	}
	for _, listed := range slices.Concat(spec.GetSpec().GetInitContainers(), spec.GetSpec().GetContainers()) {
		if listed.GetName() != name {
			continue
		}
		requested, err := Declared(listed)
		if err != nil {
			return err
		}
		limit, err := OfPod(spec, listed)
		if err != nil {
			return err
		}
		if request := Request(r); !SameRequest(cmp.Or(requested.CPURequest, limit), request) && !(limit > 0 && request == 0) {
			return errdefs.Preconditionf("container %s: the pod's specification requests %dm of cpu, and the runtime was given %dm", name,
				requested.CPURequest, request)
		}
		if limit := Of(r, false).MemoryLimit; !SameMemory(requested.MemoryLimit, limit) {
			return errdefs.Preconditionf("container %s: the pod's specification limits memory to %d, and the runtime was given %d", name,
				requested.MemoryLimit, limit)
		}
	}
	return nil
}

// OfPod returns the CPU limit of a pod in milli-CPU, if the kubelet gives a container the weight for it: so it does for a container
// without a request or a limit of its own in a pod with a limit at the pod level (KEP-2837). Otherwise it is 0. A kubelet without
// pod-level resources gives such a container the least weight.
func OfPod(spec *typesv1.Pod, c *typesv1.Container) (milli int64, err error) {
	own, err := Declared(c)
	if err != nil || own.CPULimit > 0 || c.GetResources().GetRequests()["cpu"] != "" {
		return 0, err
	}
	pod, err := Declared(&typesv1.Container{Name: "(pod level)", Resources: spec.GetSpec().GetResources()})
	return pod.CPULimit, err
}

// SameRequest reports whether given can be the runtime's value of the request requested. The smallest
// requests have the same shares as no request.
func SameRequest(requested, given int64) bool {
	return requested == given || given == 0 && requested <= LeastShares
}

// SameMemory reports whether given can be the runtime's value of the limit requested. A container
// without a limit may have the pod's (KEP-2837).
func SameMemory(requested, given int64) bool {
	return requested == given || requested == 0 || given == 0
}

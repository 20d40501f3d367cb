package policy

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/nri/pkg/api"
	"k8s.io/apimachinery/pkg/api/resource"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/managers/fault"
	"github.com/berthd/berth/managers/workload"
)

const (
	// leastShares is the kernel's least value of cpu.shares: the kubelet writes it
	// for requests of 0 to 2 milli-CPU.
	leastShares   = 2
	sharesPerCPU  = 1024
	milliPerCPU   = 1000
	memoryIsNoCap = 1 << 60 // what kernels of version 1 call unlimited is above this
)

// qosOf reads the QoS class from the name that the kubelet gives a pod's cgroup:
// kubepods/burstable/podUID, or kubepods-burstable-podUID.slice. It is empty for
// cgroups that are not a kubelet's.
func qosOf(cgroupParent string) string {
	base := path.Base(cgroupParent)
	tier := path.Base(path.Dir(cgroupParent))
	names := func(class string) bool { return tier == class || strings.Contains(base, "-"+class+"-pod") }
	switch {
	case !strings.Contains(cgroupParent, "kubepods"):
		return ""
	case names("burstable"):
		return string(workload.Burstable)
	case names("besteffort"):
		return string(workload.BestEffort)
	default:
		return string(workload.Guaranteed)
	}
}

// rebuilt gives what a container asked for, as far as its cgroup's values tell.
func rebuilt(r *api.LinuxResources, qos string) (*typesv1.ResourceRequirements, error) {
	out := &typesv1.ResourceRequirements{Requests: map[string]string{}, Limits: map[string]string{}}
	request, limit := milliRequest(r), milliLimit(r)
	if limit > 0 {
		request = min(request, limit)
	}
	if qos == string(workload.Guaranteed) {
		limit = request // also where the kubelet sets no quotas
	}
	put(out.Requests, "cpu", request, "m")
	put(out.Limits, "cpu", limit, "m")
	if limit := r.GetMemory().GetLimit().GetValue(); limit < memoryIsNoCap {
		put(out.Limits, "memory", limit, "")
	}
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

// pageSize reads a size as the kernel spells it in the names of hugetlb's files:
// 2MB, 1GB.
func pageSize(text string) (int64, error) {
	for unit, size := range map[string]int64{"KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30} {
		if number, ok := strings.CutSuffix(text, unit); ok {
			n, err := strconv.ParseInt(number, 10, 32)
			if err == nil && n > 0 {
				return n * size, nil
			}
		}
	}
	return 0, fault.Invalidf("huge page size %q: expected a number and KB, MB or GB", text)
}

// apart describes a container as a pod of its own.
func (s *sandbox) apart(c *api.Container) (*typesv1.Pod, error) {
	resources, err := rebuilt(c.GetLinux().GetResources(), s.qos)
	if err != nil {
		return nil, fmt.Errorf("rebuild the requests of container %s: %w", c.GetName(), err)
	}
	return &typesv1.Pod{
		Metadata: &typesv1.PodMetadata{Name: s.name + "." + c.GetName(), Namespace: s.namespace, Uid: s.key(c.GetName())},
		Spec:     &typesv1.PodSpec{Containers: []*typesv1.Container{{Name: c.GetName(), Resources: resources}}},
		Status:   &typesv1.PodStatus{QosClass: s.qos},
	}, nil
}

// agree holds a container's part of a specification against what the runtime was
// told: a specification of another pod, or one that somebody made up, is refused.
func agree(spec *typesv1.Pod, c *api.Container) error {
	shares := c.GetLinux().GetResources().GetCpu().GetShares().GetValue()
	if shares == 0 {
		return nil // the runtime was told nothing
	}
	for _, listed := range slices.Concat(spec.GetSpec().GetInitContainers(), spec.GetSpec().GetContainers()) {
		if listed.GetName() != c.GetName() {
			continue
		}
		text := listed.GetResources().GetRequests()["cpu"]
		if text == "" {
			text = listed.GetResources().GetLimits()["cpu"]
		}
		declared := int64(0)
		if text != "" {
			q, err := resource.ParseQuantity(text)
			if err != nil {
				return fault.Invalidf("container %s: cpu %q: %w", c.GetName(), text, err)
			}
			declared = q.MilliValue()
		}
		if told := milliRequest(c.GetLinux().GetResources()); told != declared && (told != 0 || declared > leastShares) {
			return fault.Preconditionf("container %s: the pod's specification requests %dm of cpu, and the runtime was told of %dm", c.GetName(), declared, told)
		}
	}
	return nil
}

package driver

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	nodev1 "github.com/berthd/berth/api/berth/node/v1"
	"github.com/berthd/berth/managers/errdefs"
	nodemanager "github.com/berthd/berth/managers/node"
	"github.com/berthd/berth/managers/workload"
)

// gate is the feature gate with which the scheduler counts claims in the node's allocatable amounts, and the
// kubelet adds the huge pages of claims to the limits of pods and containers.
const gate = "DRANodeAllocatableResources"

// mapped adds huge pages to a device, and how the scheduler counts its capacities in the node's allocatable amounts.
func mapped(device *resourceapi.Device, amounts map[string]string) error {
	one := resource.MustParse("1")
	device.NodeAllocatableResources = map[corev1.ResourceName]resourceapi.NodeAllocatableResource{}
	count := func(name resourceapi.QualifiedName, as corev1.ResourceName) {
		device.NodeAllocatableResources[as] = resourceapi.NodeAllocatableResource{
			Mapping: &resourceapi.NodeAllocatableMapping{CapacityKey: &name, CapacityMultiplier: &one},
		}
	}
	count(capacityCPU, corev1.ResourceCPU)
	count(capacityMemory, corev1.ResourceMemory)
	for name, text := range amounts {
		r := workload.Resource(name)
		if !r.IsHugePages() {
			continue
		}
		size, err := workload.HugePageSize(r)
		if err != nil {
			return err
		}
		q, err := resource.ParseQuantity(text)
		if err != nil {
			return errdefs.Internalf("%s of %s: %w", name, device.Name, err)
		}
		if bytes := q.Value() / size * size; bytes > 0 {
			of := capacityOf(r)
			device.Capacity[of] = capacity(bytes, 0, size, 0, resource.BinarySI)
			count(of, corev1.ResourceName(name))
		}
	}
	return nil
}

// capacityOf returns the name of the capacity of huge pages: names of capacities have no hyphen.
func capacityOf(r workload.Resource) resourceapi.QualifiedName {
	return resourceapi.QualifiedName(strings.Replace(string(r), "hugepages-", "hugepages", 1))
}

// pagesOf returns the huge pages of a capacity.
func pagesOf(capacity string) (r workload.Resource, size int64, ok bool) {
	of, ok := strings.CutPrefix(capacity, "hugepages")
	if !ok {
		return "", 0, false
	}
	r = workload.Resource("hugepages-" + of)
	size, err := workload.HugePageSize(r)
	return r, size, err == nil
}

// compareOnePool returns why the scheduler would give amounts to pods that claims have: the kubelet or the API server
// does not have the feature gate, or the kubelet's allocatable amounts are more than berthd has.
func (d *Driver) compareOnePool(ctx context.Context, status corev1.NodeStatus, allocatable *nodev1.GetAllocatableResponse,
	devices []resourceapi.Device) ([]string, error) {
	if without := d.withoutGate(status); without != "" {
		return []string{without}, nil
	}
	if len(devices) > 0 {
		stored, err := d.Accepted(ctx, &resourceapi.ResourceSlice{
			ObjectMeta: metav1.ObjectMeta{GenerateName: d.NodeName + "-"},
			Spec: resourceapi.ResourceSliceSpec{
				Driver: Name, NodeName: &d.NodeName, Devices: devices[:1],
				Pool: resourceapi.ResourcePool{Name: d.NodeName, Generation: 1, ResourceSliceCount: 1},
			},
		})
		if err != nil {
			return nil, fmt.Errorf("ask the API server whether it stores nodeAllocatableResources of devices: %w", err)
		}
		if len(stored.Spec.Devices) != 1 ||
			len(stored.Spec.Devices[0].NodeAllocatableResources) != len(devices[0].NodeAllocatableResources) {
			return []string{needs +
				", and the API server drops nodeAllocatableResources of devices: switch it on in kube-apiserver (--feature-gates)"}, nil
		}
	}
	has := workload.Quantities{}
	for name, text := range allocatable.GetAllocatable() {
		q, err := resource.ParseQuantity(text)
		if err != nil {
			return nil, errdefs.Internalf("allocatable %s: %w", name, err)
		}
		has[workload.Resource(name)] = amountOf(name, q)
	}
	return nodemanager.ExcessOfPool(has, quantities(status.Allocatable)), nil
}

// needs begins the texts about the feature gate.
const needs = "dra.from: allocatable of berthd needs the feature gate " + gate + " in kube-apiserver, kube-scheduler and the kubelet"

// withoutGate returns that the kubelet does not have the feature gate; empty if it has.
func (d *Driver) withoutGate(status corev1.NodeStatus) string {
	if slices.Contains(status.DeclaredFeatures, gate) {
		return ""
	}
	return fmt.Sprintf("%s, and node %s does not declare it (status.declaredFeatures): switch it on in the kubelet's featureGates", needs,
		d.NodeName)
}

// counted returns an error unless the scheduler has counted the claim in the amounts of its pod, and the kubelet has the
// feature gate: it then adds the claim's huge pages to the limits.
func (d *Driver) counted(ctx context.Context, c *resourceapi.ResourceClaim, wanted *claim) error {
	if len(c.Status.ReservedFor) != 1 || c.Status.ReservedFor[0].Resource != "pods" || c.Status.ReservedFor[0].APIGroup != "" {
		return errdefs.Unsupportedf("the claim is reserved for %d users, expected one pod: several pods cannot share a claim with dra.from: allocatable", len(c.Status.ReservedFor))
	}
	status, err := d.NodeStatus(ctx)
	if err != nil {
		return fmt.Errorf("read node %s, whose kubelet has to count the claim: %w", d.NodeName, err)
	}
	if without := d.withoutGate(status); without != "" {
		return errdefs.Preconditionf("%s", without)
	}
	user := c.Status.ReservedFor[0]
	pod, err := d.Pod(ctx, c.Namespace, user.Name)
	if err != nil {
		return fmt.Errorf("read pod %s, whose status has the amounts of claims: %w", user.Name, err)
	}
	if pod.UID != user.UID {
		return errdefs.Unavailablef("pod %s has the uid %s, and the claim is reserved for %s", user.Name, pod.UID, user.UID)
	}
	want := workload.Quantities{}
	for _, p := range wanted.Parts {
		for name, text := range p.Resources {
			q, err := resource.ParseQuantity(text)
			if err != nil {
				return errdefs.Invalidf("%s of request %s: %w", name, p.request, err)
			}
			want[workload.Resource(name)] += amountOf(name, q)
		}
	}
	for _, s := range pod.Status.NodeAllocatableResourceClaimStatuses {
		if s.ResourceClaimName != c.Name {
			continue
		}
		for _, m := range s.Mapping {
			if m.Quantity != nil {
				want[workload.Resource(m.Name)] -= amountOf(string(m.Name), *m.Quantity)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if left := want[name]; left > 0 {
			return errdefs.Preconditionf("the scheduler has not counted %s of %s of the claim in pod %s (status.nodeAllocatableResourceClaimStatuses): "+
				"switch on the feature gate %s in kube-scheduler, and create the pod again", name.Text(left), name, user.Name, gate)
		}
	}
	return nil
}

package policy

import (
	"cmp"
	"fmt"
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/api"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/clients/nri/amounts"
)

// amountsFor are the requests and limits of a pod or of a container; 0 for none.
type amountsFor struct{ cpu, cpuLimit, memory, memoryLimit int64 }

func (a amountsFor) of() *typesv1.ResourceRequirements {
	if a == (amountsFor{}) {
		return nil
	}
	r := &typesv1.ResourceRequirements{Requests: map[string]string{}, Limits: map[string]string{}}
	amounts.Put(r.Requests, "cpu", a.cpu, "m")
	amounts.Put(r.Limits, "cpu", a.cpuLimit, "m")
	amounts.Put(r.Requests, "memory", a.memory, "")
	amounts.Put(r.Limits, "memory", a.memoryLimit, "")
	return r
}

// given is what a kubelet with pod-level resources gives the runtime for a container: the container's limit, or else the pod's, and the
// weight for its request, or else for that limit.
func (a amountsFor) given(pod amountsFor) *api.LinuxResources {
	limit, memory := cmp.Or(a.cpuLimit, pod.cpuLimit), cmp.Or(a.memoryLimit, pod.memoryLimit)
	r := &api.LinuxResources{
		Cpu: &api.LinuxCPU{Shares: api.UInt64(uint64(max(2, cmp.Or(a.cpu, limit)*1024/1000))), Quota: api.Int64(limit * 100),
			Period: api.UInt64(uint64(100_000))},
		Memory: &api.LinuxMemory{},
	}
	if memory > 0 {
		r.Memory.Limit = api.Int64(memory)
	}
	return r
}

const mib = 1 << 20

// podLevels are pods with resources at the pod level. alone has the containers that have all amounts of their pod, so that without the
// specification it looks like the only container of a pod without pod-level resources.
var podLevels = []struct {
	name       string
	qos        string
	pod        amountsFor
	containers map[string]amountsFor // in the order of their names: init containers have names with "init", sidecars with "side"
	alone      string
}{
	{"requests only", "burstable", amountsFor{cpu: 100, memory: 32 * mib}, map[string]amountsFor{"a": {}, "b": {}}, ""},
	{"limits only", "guaranteed", amountsFor{1000, 1000, 64 * mib, 64 * mib}, map[string]amountsFor{"a": {}, "b": {}}, "a"},
	{"limits only, a fraction", "guaranteed", amountsFor{500, 500, 64 * mib, 64 * mib}, map[string]amountsFor{"a": {}, "b": {}}, ""},
	{"requests and limits", "burstable", amountsFor{100, 500, 32 * mib, 64 * mib}, map[string]amountsFor{"a": {}, "b": {}}, ""},
	{"whole CPUs, burstable", "burstable", amountsFor{1000, 2000, 32 * mib, 64 * mib}, map[string]amountsFor{"a": {}, "b": {}}, ""},
	{"some containers", "burstable", amountsFor{100, 500, 32 * mib, 64 * mib},
		map[string]amountsFor{"a": {cpu: 50, memory: 16 * mib}, "b": {}}, ""},
	{"a limit of a container", "burstable", amountsFor{100, 500, 32 * mib, 64 * mib},
		map[string]amountsFor{"a": {50, 200, 16 * mib, 32 * mib}, "b": {}}, ""},
	{"memory only", "burstable", amountsFor{memory: 64 * mib, memoryLimit: 64 * mib}, map[string]amountsFor{"a": {}, "b": {cpu: 50}}, ""},
	{"cpu only", "burstable", amountsFor{cpu: 500, cpuLimit: 500}, map[string]amountsFor{"a": {}, "b": {}}, ""},
	{"a sidecar", "burstable", amountsFor{100, 500, 32 * mib, 64 * mib}, map[string]amountsFor{"0-side": {}, "a": {cpu: 50}}, ""},
	{"an init container", "burstable", amountsFor{100, 500, 32 * mib, 64 * mib}, map[string]amountsFor{"0-init": {}, "a": {}}, ""},
	{"guaranteed, with a sidecar and an init container", "guaranteed", amountsFor{1000, 1000, 64 * mib, 64 * mib},
		map[string]amountsFor{"0-init": {}, "1-side": {}, "a": {}}, "0-init 1-side"},
}

// TestPodLevelForms: a pod with resources at the pod level starts as without berth: its containers share CPUs, and keep the weights and
// quotas of the kubelet. So it does with a kubelet that has the specification, and without it; there, the first container that has
// all amounts of its pod looks like a pod of its own, and may have CPUs for itself.
func TestPodLevelForms(t *testing.T) {
	t.Parallel()
	for _, row := range podLevels {
		for _, known := range []bool{true, false} {
			for _, old := range []bool{false, true} { // the kubelet has no pod-level resources
				if old && row.qos == "guaranteed" {
					continue
				}
				t.Run(fmt.Sprintf("%s, known %v, old kubelet %v", row.name, known, old), func(t *testing.T) {
					t.Parallel()
					d := startBerthd(t)
					spec := specOf("p", "1")
					spec.Spec.Resources, spec.Spec.Containers = row.pod.of(), nil
					var containers []*api.Container
					p := pod("p", row.qos)
					p.Linux.PodResources = row.pod.given(row.pod)
					for _, name := range []string{"0-init", "0-side", "1-side", "a", "b"} {
						amounts, has := row.containers[name]
						if !has {
							continue
						}
						c := &typesv1.Container{Name: name, Resources: amounts.of()}
						switch {
						case name == "0-init":
							spec.Spec.InitContainers = append(spec.Spec.InitContainers, c)
						case name[1:] == "-side":
							c.RestartPolicy = "Always"
							spec.Spec.InitContainers = append(spec.Spec.InitContainers, c)
						default:
							spec.Spec.Containers = append(spec.Spec.Containers, c)
						}
						at := container(p, name, "p-"+name, 0, 0)
						if at.Linux.Resources = amounts.given(row.pod); old {
							at.Linux.Resources = amounts.given(amountsFor{})
						}
						containers = append(containers, at)
					}
					kubelet := &knows{active: []string{"p-uid"}}
					if known {
						kubelet.pods = map[string]*typesv1.Pod{"p-uid": spec}
					}
					e := newEngine(t, Config{Client: d.Client, Kubelet: kubelet})
					if err := e.policy.RunPodSandbox(t.Context(), p); err != nil {
						t.Fatal(err)
					}
					for _, c := range containers {
						adjust, err := e.create(p, c)
						if err != nil {
							t.Fatalf("container %s: %v", c.GetName(), err)
						}
						alone := !known && strings.Contains(row.alone, c.GetName())
						if cpu := adjust.GetLinux().GetResources().GetCpu(); !alone &&
							(cpu.GetShares() != nil || cpu.GetQuota() != nil || set(t, cpu.GetCpus()).Len() < 7) {
							t.Errorf("container %s is adjusted: %v", c.GetName(), cpu)
						}
						for i := 0; e.start(p, c) != nil && i < 3; i++ {
							e.pushes(1)
						}
						if c.GetName() == "0-init" {
							e.stop(p, c)
						}
					}
					e.pushes(2)
					if err := restarted(e, p, containers); err != nil {
						t.Error(err)
					}
				})
			}
		}
	}
}

// restarted creates the last container of a pod again, before and after a connection of the runtime.
func restarted(e *engine, p *api.PodSandbox, containers []*api.Container) error {
	last := containers[len(containers)-1]
	for i := range 2 {
		e.stop(p, last)
		again := container(p, last.GetName(), fmt.Sprint(last.GetId(), "-", i), 0, 0)
		again.Linux.Resources = last.Linux.Resources
		if _, err := e.create(p, again); err != nil {
			return fmt.Errorf("container %s starts again: %w", last.GetName(), err)
		}
		if err := e.start(p, again); err != nil {
			return fmt.Errorf("container %s starts again: %w", last.GetName(), err)
		}
		last = again
		if _, err := e.policy.Synchronize(e.t.Context(), []*api.PodSandbox{p}, append(containers[:len(containers)-1], last)); err != nil {
			return err
		}
		before := e.policy.node.members[last.GetId()]
		if before.match != compared {
			return fmt.Errorf("container %s does not agree with berthd: %d %s", last.GetName(), before.match, before.refused)
		}
	}
	return nil
}

// TestPodLevelResize: the kubelet resizes a pod at the pod level, and gives a container the weight of the new limit. The container's own
// requests in berthd stay as they are.
func TestPodLevelResize(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	spec := specOf("p", "1")
	before, after := amountsFor{100, 500, 32 * mib, 64 * mib}, amountsFor{100, 700, 32 * mib, 96 * mib}
	spec.Spec.Resources, spec.Spec.Containers[0].Resources = before.of(), nil
	e := newEngine(t, Config{Client: d.Client, Kubelet: &knows{pods: map[string]*typesv1.Pod{"p-uid": spec}}})
	p := pod("p", "burstable")
	if err := e.policy.RunPodSandbox(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	c := container(p, "main", "p-1", 0, 0)
	c.Linux.Resources = amountsFor{}.given(before)
	e.run(p, c)
	if _, err := e.resize(p, c, amountsFor{}.given(after)); err != nil {
		t.Fatal(err)
	}
	e.policy.Recount()
	e.pushes(2)
	if m := e.policy.node.members["p-1"]; m.match != compared || len(m.pod.spec.GetSpec().GetContainers()[0].GetResources().GetRequests()) > 0 {
		t.Errorf("match %d, %s; the specification has %v", m.match, m.refused, m.pod.spec.GetSpec().GetContainers()[0])
	}
	again := container(p, "main", "p-2", 0, 0)
	again.Linux.Resources = amountsFor{}.given(after)
	e.stop(p, c)
	if _, err := e.create(p, again); err != nil {
		t.Errorf("the container starts again: %v", err)
	}
}

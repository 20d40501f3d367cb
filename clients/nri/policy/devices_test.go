package policy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/api"

	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	inspectv1 "github.com/berthd/berth/api/berth/inspect/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/api/protocol"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/topology"
	"github.com/berthd/berth/managers/workload"
)

// has is a kubelet's devices by the name of the pod, each for the container main, and its error.
type has struct {
	devices map[string][]*typesv1.ExternalDevice
	err     error
}

func (h *has) Devices(_ context.Context, _, name string) (map[string][]*typesv1.ExternalDevice, error) {
	return map[string][]*typesv1.ExternalDevice{"main": h.devices[name]}, h.err
}

func gpu(id string, node uint32) *typesv1.ExternalDevice {
	return &typesv1.ExternalDevice{Resource: "example.com/gpu", Id: id, NumaNodes: &typesv1.NUMANodeSet{Ids: []uint32{node}}}
}

// TestCPUsAreNearDevices: the CPUs of a pod are on the NUMA node of the device that the kubelet has
// given to it, whether the pod is admitted as a whole or container by container. A pod that cannot be
// aligned with its device is refused, and the explanation names the device.
func TestCPUsAreNearDevices(t *testing.T) {
	t.Parallel()
	d := startBerthdWith(t, func(c *config.Config) { c.Topology.Policy = topology.SingleNUMANode })
	kubelet := &knows{pods: map[string]*typesv1.Pod{}}
	for _, name := range []string{"near", "wide"} {
		kubelet.pods[name+"-uid"] = specOf(name, map[string]string{"near": "1", "wide": "4"}[name])
		kubelet.pods[name+"-uid"].Spec.Containers[0].Resources.Limits["example.com/gpu"] = "1"
	}
	devices := &has{devices: map[string][]*typesv1.ExternalDevice{"near": {gpu("gpu-1", 1)}, "apart": {gpu("gpu-2", 1)},
		"wide": {gpu("gpu-0", 0)}}}
	e := newEngine(t, Config{Client: d.Client, Kubelet: kubelet, Devices: devices})

	for name, key := range map[string]string{"near": "near-uid", "apart": "apart-uid.main"} {
		p := pod(name, "guaranteed")
		if err := e.policy.RunPodSandbox(t.Context(), p); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if _, err := e.create(p, container(p, "main", name+"-1", 1000, gib)); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		got, err := d.Allocation().Get(t.Context(), &allocationv1.GetRequest{Subject: &allocationv1.GetRequest_PodUid{PodUid: key}})
		if err != nil {
			t.Fatal(err)
		}
		c := got.GetPod().GetContainers()[0]
		if list := c.GetCpus().GetList(); !strings.Contains("4 5 6 7", list) {
			t.Errorf("%s has CPUs %s, expected one of node 1", name, list)
		}
		if ext := c.GetExternalDevices(); len(ext) != 1 || ext[0].GetNumaNodes().GetIds()[0] != 1 {
			t.Errorf("%s has the external devices %v", name, ext)
		}
	}

	err := e.policy.RunPodSandbox(t.Context(), pod("wide", "guaranteed"))
	for _, text := range []string{"berth: admit the pod: TopologyAffinityError: ", "; example.com/gpu gpu-0 is on NUMA node 0",
		"; cpu on NUMA node 0: 4 needed, 3 free", "; it would fit "} {
		if err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("4 CPUs beside a device of node 0, which has 3 to give: %v, without %q", err, text)
		}
	}
	trace, err := d.Inspect().GetTrace(t.Context(),
		&inspectv1.GetTraceRequest{Subject: &inspectv1.GetTraceRequest_PodUid{PodUid: "wide-uid"}})
	if err != nil || !strings.Contains(trace.String(), "another program has allocated gpu-0 on node 0") {
		t.Errorf("the explanation does not name the device: %v, %v", trace, err)
	}

	kubelet.pods["claims-uid"] = specOf("claims", "1")
	kubelet.pods["claims-uid"].Spec.ResourceClaims = []*typesv1.PodResourceClaim{{Name: "gpu"}}
	devices.devices["claims"] = []*typesv1.ExternalDevice{{Resource: "gpu.example.com/dra", Id: "n1/gpu-0",
		NumaNodes: &typesv1.NUMANodeSet{Ids: []uint32{1}}}}
	if err := e.policy.RunPodSandbox(t.Context(), pod("claims", "guaranteed")); err != nil {
		t.Fatal(err)
	}
	got, err := d.Allocation().Get(t.Context(), &allocationv1.GetRequest{Subject: &allocationv1.GetRequest_PodUid{PodUid: "claims-uid"}})
	if err != nil || !strings.Contains("4 5 6 7", got.GetPod().GetContainers()[0].GetCpus().GetList()) {
		t.Errorf("a pod with a device of a claim on node 1: %v, %v", got, err)
	}

	devices.err = errors.New("away")
	if err := e.policy.RunPodSandbox(t.Context(), pod("later", "guaranteed")); err != nil {
		t.Errorf("a pod that nobody knows starts its sandbox: %v", err)
	}
	kubelet.pods["plain-uid"] = specOf("plain", "1")
	if err := e.policy.RunPodSandbox(t.Context(), pod("plain", "guaranteed")); err != nil {
		t.Errorf("a pod that requests no device: %v", err)
	}
	kubelet.pods["later-uid"] = specOf("later", "1")
	kubelet.pods["later-uid"].Spec.Containers[0].Resources.Limits["example.com/gpu"] = "1"
	if err := e.policy.RunPodSandbox(t.Context(), pod("later", "guaranteed")); err == nil ||
		!strings.Contains(err.Error(), "read the devices of pod default/later") {
		t.Errorf("the devices of a pod are not known: %v", err)
	}
	devices.err, devices.devices["later"] = nil, []*typesv1.ExternalDevice{gpu("gpu-3", 1)}
	if err := e.policy.RunPodSandbox(t.Context(), pod("later", "guaranteed")); err != nil {
		t.Errorf("when the kubelet is back: %v", err)
	}
}

// TestManyDevices: a container with more devices than berthd takes starts, and is aligned with them.
func TestManyDevices(t *testing.T) {
	t.Parallel()
	d := startBerthdWith(t, func(c *config.Config) { c.Topology.Policy = topology.SingleNUMANode })
	devices := &has{devices: map[string][]*typesv1.ExternalDevice{}}
	for name, n := range map[string]int{"few": maxDevices, "many": 20_000} {
		for i := range n {
			devices.devices[name] = append(devices.devices[name], gpu(fmt.Sprintf("gpu-%05d", n-i), 1))
		}
	}
	devices.devices["many"] = append(devices.devices["many"], &typesv1.ExternalDevice{Resource: "example.com/nic", Id: "nic"})
	byClaim := func(cdi string) *typesv1.ExternalDevice {
		return &typesv1.ExternalDevice{Resource: "gpu.example.com/dra", Id: "n1/" + cdi[:5],
			NumaNodes: &typesv1.NUMANodeSet{Ids: []uint32{1}}, Claim: &typesv1.ExternalClaim{
				Name: "claim", Driver: "gpu.example.com", Pool: "n1", Device: cdi[:5], CdiDevices: []string{cdi},
			}}
	}
	devices.devices["many"] = append(devices.devices["many"], byClaim("gpu-0"), byClaim("gpu-1"+strings.Repeat("x", maxClaim)))
	devices.devices["long"] = []*typesv1.ExternalDevice{gpu(strings.Repeat("ü", maxDeviceID), 1)}
	e := newEngine(t, Config{Client: d.Client, Devices: devices})
	for name, want := range map[string][]string{"few": nil, "long": {strings.Repeat("ü", 200)},
		"many": {"n1/gpu-0", "gpu-00001 and 19999 more", "nic", "n1/gpu-1"}} {
		p := pod(name, "guaranteed")
		c := container(p, "main", name+"-1", 1000, gib)
		if cpus := e.run(p, c); !strings.Contains("4 5 6 7", cpus) {
			t.Errorf("%s has CPUs %s, expected one of node 1", name, cpus)
		}
		got, err := d.Allocation().Get(t.Context(), &allocationv1.GetRequest{Subject: &allocationv1.GetRequest_PodUid{PodUid: name +
			"-uid.main"}})
		if err != nil {
			t.Fatal(err)
		}
		list := got.GetPod().GetContainers()[0].GetExternalDevices()
		if want == nil && len(list) == maxDevices {
			continue
		}
		var ids []string
		for _, d := range list {
			ids = append(ids, d.GetId())
			if wanted := d.GetId() != "nic" && d.GetId() != "n1/gpu-0"; d.GetUnlisted() != wanted ||
				(d.GetClaim() != nil) != (d.GetId() == "n1/gpu-0") {
				t.Errorf("%s: %v, want unlisted %t", name, d, wanted)
			}
		}
		if !slices.Equal(ids, want) {
			t.Errorf("%s: %d devices, %.10q", name, len(ids), ids)
		}
	}
}

// TestClaimsAmongManyDevices: berthd has each claim that a container uses, however many devices the container has. Too many parts of
// claims are combined as devices are.
func TestClaimsAmongManyDevices(t *testing.T) {
	t.Parallel()
	part := func(i int) *typesv1.ExternalDevice {
		return &typesv1.ExternalDevice{Resource: protocol.ClaimResource, Id: fmt.Sprintf("claim-%04d:place", i)}
	}
	var list []*typesv1.ExternalDevice
	for i := range 2 * maxDevices {
		list = append(list, gpu(fmt.Sprintf("gpu-%04d", i), 1))
	}
	list = append(list, part(0), part(1))
	var ids []string
	for _, d := range grouped(list) {
		ids = append(ids, d.GetId())
	}
	if want := []string{"claim-0000:place", "claim-0001:place", "gpu-0000 and 511 more"}; !slices.Equal(ids, want) {
		t.Errorf("%v, want %v", ids, want)
	}
	for i := range 1024 {
		list = append(list, part(i))
	}
	if n := len(grouped(list)); n > maxDevices {
		t.Errorf("%d devices", n)
	}
}

// TestDevicesOfAnotherUID: the kubelet's API has devices by the names of pods. The devices of a pod are not taken for
// those of an earlier pod of its name, also after a new connection of the runtime.
func TestDevicesOfAnotherUID(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	e := newEngine(t, Config{Client: d.Client, Devices: &has{devices: map[string][]*typesv1.ExternalDevice{"job": {gpu("gpu-1", 1)}}}})
	before, after := pod("job", "guaranteed"), pod("job", "guaranteed")
	after.Id, after.Uid = "job-again", "job-again-uid"
	devicesOf := func(p *api.PodSandbox) error {
		e.policy.mu.Lock()
		defer e.policy.mu.Unlock()
		_, err := e.policy.placer.admissions.devices.list(t.Context(), e.policy.sandbox(p))
		return err
	}
	if err := devicesOf(before); err != nil {
		t.Errorf("the only pod of the name: %v", err)
	}
	for range 2 {
		if err := devicesOf(after); err != nil {
			t.Errorf("the newest pod of the name: %v", err)
		}
		if err := devicesOf(before); errdefs.ClassOf(err) != errdefs.Unavailable || !strings.Contains(err.Error(), "job-again-uid") {
			t.Errorf("an earlier pod of the name: %v", err)
		}
		if _, err := e.policy.Synchronize(t.Context(), []*api.PodSandbox{before, after}, nil); err != nil {
			t.Fatal(err)
		}
	}
	// A berth-nri that starts does not know which one is newer, without more.
	e.renew(e.settings)
	if _, err := e.policy.Synchronize(t.Context(), []*api.PodSandbox{before, after}, nil); err != nil {
		t.Fatal(err)
	}
	for _, p := range []*api.PodSandbox{before, after} {
		if err := devicesOf(p); errdefs.ClassOf(err) != errdefs.Unavailable {
			t.Errorf("one of two pods of the name: %v", err)
		}
	}
	// When the kubelet has first seen them says it.
	seen := func(p *api.PodSandbox, at string) {
		p.Annotations = map[string]string{workload.SeenAnnotation: at}
	}
	seen(before, "2026-01-02T23:30:00.5+09:00")
	seen(after, "2026-01-02T15:00:00.25Z")
	e.renew(e.settings)
	if _, err := e.policy.Synchronize(t.Context(), []*api.PodSandbox{after, before}, nil); err != nil {
		t.Fatal(err)
	}
	if err := devicesOf(after); err != nil {
		t.Errorf("the pod that the kubelet has seen last: %v", err)
	}
	if err := devicesOf(before); errdefs.ClassOf(err) != errdefs.Unavailable {
		t.Errorf("the pod that the kubelet has seen first: %v", err)
	}
	if err := e.policy.RemovePodSandbox(t.Context(), before); err != nil {
		t.Fatal(err)
	}
	if err := devicesOf(after); err != nil {
		t.Errorf("the only pod that is left: %v", err)
	}
}

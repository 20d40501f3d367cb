package driver

import (
	"slices"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
)

// reported is what the kubelet stores of the driver's answer for some devices of a claim, and lists for a container that uses them.
func reported(name string, devices ...kubeletplugin.Device) *podresourcesv1.DynamicResource {
	out := &podresourcesv1.DynamicResource{ClaimName: name, ClaimNamespace: "default"}
	for _, d := range devices {
		r := &podresourcesv1.ClaimResource{DriverName: Name, PoolName: d.PoolName, DeviceName: d.DeviceName, ShareId: (*string)(d.ShareID)}
		for _, id := range d.CDIDeviceIDs {
			r.CdiDevices = append(r.CdiDevices, &podresourcesv1.CDIDevice{Name: id})
		}
		out.ClaimResources = append(out.ClaimResources, r)
	}
	return out
}

// sent is what berth-nri makes of it.
func sent(container string, list ...*podresourcesv1.DynamicResource) *admissionv1.ExternalDevices {
	out := &admissionv1.ExternalDevices{ContainerName: container}
	for _, claim := range list {
		for _, r := range claim.GetClaimResources() {
			cdi := r.GetCdiDevices()[0].GetName()
			out.Devices = append(out.Devices, &typesv1.ExternalDevice{Resource: Kind, Id: cdi[len(Kind)+1:], Claim: &typesv1.ExternalClaim{
				Name: claim.GetClaimName(), Driver: r.GetDriverName(), Pool: r.GetPoolName(), Device: r.GetDeviceName(),
				ShareId: r.GetShareId(), CdiDevices: []string{cdi},
			}})
		}
	}
	return out
}

// TestReaders: an unmodified client of the PodResources API reads from berthd beside a kubelet what each container has: its CPUs and
// memory, the devices of the kubelet's plugins, and its claims. Containers and pods share a claim, and no CPU is counted twice.
func TestReaders(t *testing.T) {
	t.Parallel()
	p := newPlace(t, "")
	wide, share := with(under("left", allocated("wide", 0, 2, "1Gi")), under("right", allocated("wide", 1, 2, "1Gi"))), types.UID("share-1")
	wide.Status.Allocation.Devices.Results[2].ShareID = &share
	both, shared := p.prepared(wide), p.prepared(allocated("shared", 0, 1, "1Gi"))
	if both.Err != nil || shared.Err != nil || len(both.Devices) != 2 || len(shared.Devices) != 1 {
		t.Fatalf("%+v, %+v", both, shared)
	}
	lists := map[string][]*podresourcesv1.DynamicResource{
		"main":  {reported("claim-shared", shared.Devices...), reported("claim-wide", both.Devices...)},
		"right": {reported("claim-wide", both.Devices[1])},
	}
	amounts := func(cpu string) *typesv1.ResourceRequirements {
		requests := map[string]string{"cpu": cpu, "memory": "1Gi"}
		return &typesv1.ResourceRequirements{Requests: requests, Limits: requests}
	}
	p.admitPod("first", []*admissionv1.ExternalDevices{
		sent("main", lists["main"]...), sent("right", lists["right"]...),
		{ContainerName: "own", Devices: []*typesv1.ExternalDevice{{Resource: "example.com/gpu", Id: "gpu-1",
			NumaNodes: &typesv1.NUMANodeSet{Ids: []uint32{1}}}}},
	}, &typesv1.Container{Name: "main", Resources: amounts("100m")}, &typesv1.Container{Name: "right", Resources: amounts("100m")},
		&typesv1.Container{Name: "own", Resources: amounts("1")})
	p.admitPod("second", []*admissionv1.ExternalDevices{sent("main", lists["main"][0])}, &typesv1.Container{Name: "main"})

	conn, err := grpc.NewClient("unix:"+p.root+"/pod-resources/kubelet.sock", grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	reader := podresourcesv1.NewPodResourcesListerClient(conn)
	got, err := reader.List(t.Context(), &podresourcesv1.ListPodResourcesRequest{})
	if err != nil || len(got.GetPodResources()) != 2 {
		t.Fatalf("%v, %v; want two pods, and no claims", got, err)
	}
	allocatable, err := reader.GetAllocatableResources(t.Context(), &podresourcesv1.AllocatableResourcesRequest{})
	if err != nil || !slices.Equal(allocatable.GetCpuIds(), []int64{7, 15}) {
		t.Errorf("allocatable are CPUs %v, %v; want those that are not for claims", allocatable.GetCpuIds(), err)
	}
	p.stop()
	p.startBerthd("") // the ledger has everything
	if again, err := reader.List(t.Context(), &podresourcesv1.ListPodResourcesRequest{}, grpc.WaitForReady(true)); err != nil ||
		!proto.Equal(again, got) {
		t.Errorf("after a restart of berthd: %v, %v; before: %v", again, err, got)
	}
	first, second := got.GetPodResources()[0].GetContainers(), got.GetPodResources()[1].GetContainers()
	for _, row := range []struct {
		what    string
		has     *podresourcesv1.ContainerResources
		dynamic []*podresourcesv1.DynamicResource
		cpus    int
		devices string
	}{
		{what: "two claims", has: first[0], dynamic: lists["main"]},
		{what: "one request of a claim", has: first[1], dynamic: lists["right"]},
		{what: "no claim", has: first[2], cpus: 1, devices: "example.com/gpu"},
		{what: "a claim of another pod", has: second[0], dynamic: lists["main"][:1]},
	} {
		want := &podresourcesv1.ContainerResources{DynamicResources: row.dynamic}
		if !proto.Equal(&podresourcesv1.ContainerResources{DynamicResources: row.has.GetDynamicResources()}, want) {
			t.Errorf("%s: got %v, want %v", row.what, row.has, want)
		}
		resource := ""
		for _, d := range row.has.GetDevices() {
			resource += d.GetResourceName()
		}
		if len(row.has.GetCpuIds()) != row.cpus || resource != row.devices || (len(row.has.GetMemory()) > 0) != (row.has != second[0]) {
			t.Errorf("%s: %v, want %d CPUs and devices of %q", row.what, row.has, row.cpus, row.devices)
		}
		for _, cpu := range row.has.GetCpuIds() {
			if !slices.Contains(allocatable.GetCpuIds(), cpu) {
				t.Errorf("%s: CPU %d is not allocatable", row.what, cpu)
			}
		}
	}
}

// admitPod admits a pod as berth-nri does.
func (p *place) admitPod(name string, external []*admissionv1.ExternalDevices, containers ...*typesv1.Container) {
	p.t.Helper()
	answer, err := p.Client.Admission().Admit(p.t.Context(), &admissionv1.AdmitRequest{
		Owner: "kubernetes", ExternalDevices: external,
		Subject: &admissionv1.AdmitRequest_Pod{Pod: &typesv1.Pod{
			Metadata: &typesv1.PodMetadata{Uid: name, Namespace: "default", Name: name}, Spec: &typesv1.PodSpec{Containers: containers},
		}},
	})
	if err != nil || answer.GetVerdict() != admissionv1.Verdict_VERDICT_ADMITTED {
		p.t.Fatal(answer, err)
	}
}

package app_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// answers are those of a kubelet's podresources socket.
type answers struct {
	List, GetAllocatableResources json.RawMessage
}

// listing is the podresources answer for a container, or of all that can be allocated, in
// one order.
type listing struct {
	CPUs            []int64
	Memory, Devices []string
}

// comparePodresources holds List, Get and GetAllocatableResources against the kubelet's. A
// kubelet also lists pods that were rejected, or have ended, with nothing.
func (p *replay) comparePodresources(s step) {
	p.t.Helper()
	if s.Podresources == nil {
		return
	}
	conn, err := grpc.NewClient("unix://"+filepath.Join(p.daemon.podResources, "kubelet.sock"),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		p.t.Fatal(err)
	}
	defer conn.Close()
	client := podresources.NewPodResourcesListerClient(conn)
	list, err := client.List(p.t.Context(), &podresources.ListPodResourcesRequest{})
	if err != nil {
		p.t.Fatal(err)
	}
	for _, pod := range list.GetPodResources() {
		one, err := client.Get(p.t.Context(), &podresources.GetPodResourcesRequest{PodName: pod.GetName(),
			PodNamespace: pod.GetNamespace()})
		if err != nil || !proto.Equal(one.GetPodResources(), pod) {
			p.t.Errorf("%s: Get of %s answers %v, %v, List %v", s.Label, pod.GetName(), one, err, pod)
		}
	}
	all, err := client.GetAllocatableResources(p.t.Context(), &podresources.AllocatableResourcesRequest{})
	if err != nil {
		p.t.Fatal(err)
	}
	var wantList podresources.ListPodResourcesResponse
	var wantAll podresources.AllocatableResourcesResponse
	read := protojson.UnmarshalOptions{DiscardUnknown: true}
	if err := read.Unmarshal(s.Podresources.List, &wantList); err != nil {
		p.t.Fatal(err)
	}
	if err := read.Unmarshal(s.Podresources.GetAllocatableResources, &wantAll); err != nil {
		p.t.Fatal(err)
	}
	got, want := p.listed(list), p.listed(&wantList)
	for key, h := range got {
		p.decisions.listed++
		if w, ok := want[key]; !ok || !reflect.DeepEqual(h, w) {
			p.t.Errorf("%s: %s is listed with %+v, by the kubelet (%t) with %+v", s.Label, key, h, ok, w)
		}
		delete(want, key)
	}
	for key, h := range want {
		if !reflect.DeepEqual(h, listing{}) {
			p.t.Errorf("%s: %s is not listed, by the kubelet with %+v", s.Label, key, h)
		}
	}
	gotAll := inOneOrderOf(all.GetCpuIds(), all.GetMemory(), all.GetDevices(), nil)
	if w := inOneOrderOf(wantAll.GetCpuIds(), wantAll.GetMemory(), wantAll.GetDevices(), nil); !reflect.DeepEqual(gotAll, w) {
		p.t.Errorf("%s: allocatable are %+v, the kubelet's %+v", s.Label, gotAll, w)
	}
}

// listed gives what is listed by the recorded pods' names and containers. The kubelet's
// static pods have the node's name behind theirs.
func (p *replay) listed(list *podresources.ListPodResourcesResponse) map[string]listing {
	out := map[string]listing{}
	for _, pod := range list.GetPodResources() {
		// What berth lists of the pod as a whole is what a kubelet 1.36 lists of each
		// container that shares it (difference R4).
		shared := slices.DeleteFunc(slices.Clone(pod.GetCpuIds()), func(id int64) bool {
			return slices.ContainsFunc(pod.GetContainers(),
				func(c *podresources.ContainerResources) bool { return slices.Contains(c.GetCpuIds(), id) })
		})
		name := pod.GetName()
		if _, ok := p.Pods[name]; !ok {
			name = name[:max(strings.LastIndex(name, "-"), 0)]
		}
		for _, c := range pod.GetContainers() {
			cpus := c.GetCpuIds()
			if len(cpus) == 0 {
				cpus = shared
			}
			out[name+"/"+c.GetName()] = inOneOrderOf(cpus, c.GetMemory(), c.GetDevices(), p.Plugins)
		}
	}
	return out
}

// inOneOrderOf sorts what is listed. Of devices whose plugin prefers none only the number
// counts: of those that are as good a kubelet takes any.
func inOneOrderOf(cpus []int64, memory []*podresources.ContainerMemory, devices []*podresources.ContainerDevices,
	plugins []plugin) (h listing) {
	h.CPUs = append(h.CPUs, cpus...)
	slices.Sort(h.CPUs)
	for _, m := range memory {
		h.Memory = append(h.Memory, fmt.Sprintf("%s %d of %v", m.GetMemoryType(), m.GetSize(), nodes(m.GetTopology())))
	}
	slices.Sort(h.Memory)
	for _, d := range devices {
		any := slices.ContainsFunc(plugins, func(o plugin) bool { return o.Resource == d.GetResourceName() && !o.Preferred })
		for _, id := range d.GetDeviceIds() {
			if any {
				id = "any"
			}
			text := fmt.Sprintf("%s %s", d.GetResourceName(), id)
			if !any {
				text += fmt.Sprintf(" of %v", nodes(d.GetTopology()))
			}
			h.Devices = append(h.Devices, text)
		}
	}
	slices.Sort(h.Devices)
	return h
}

func nodes(t *podresources.TopologyInfo) []int64 {
	var ids []int64
	for _, n := range t.GetNodes() {
		ids = append(ids, n.GetID())
	}
	slices.SortFunc(ids, cmp.Compare)
	return ids
}

package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// kubeletsPart is what a kubelet whose managers are off lists of a pod, in berthd's order: devices and claims. The kubelet lists the CDI
// names of a driver's earlier devices of a claim with each later one.
func kubeletsPart(pod *podresourcesv1.PodResources) *podresourcesv1.PodResources {
	out := &podresourcesv1.PodResources{Name: pod.GetName(), Namespace: pod.GetNamespace()}
	for _, c := range pod.GetContainers() {
		own := &podresourcesv1.ContainerResources{Name: c.GetName(), Devices: c.GetDevices()}
		slices.SortFunc(own.Devices, func(a, b *podresourcesv1.ContainerDevices) int {
			return cmp.Compare(fmt.Sprint(a.GetResourceName(), a.GetTopology(), a.GetDeviceIds()),
				fmt.Sprint(b.GetResourceName(), b.GetTopology(), b.GetDeviceIds()))
		})
		for _, claim := range c.GetDynamicResources() {
			one := &podresourcesv1.DynamicResource{ClaimName: claim.GetClaimName(), ClaimNamespace: claim.GetClaimNamespace()}
			before := map[string][]*podresourcesv1.CDIDevice{}
			for _, d := range claim.GetClaimResources() {
				device := &podresourcesv1.ClaimResource{DriverName: d.GetDriverName(), PoolName: d.GetPoolName(),
					DeviceName: d.GetDeviceName(), ShareId: d.ShareId}
				for _, name := range ownNames(before[d.GetDriverName()], d.GetCdiDevices()) {
					device.CdiDevices = append(device.CdiDevices, &podresourcesv1.CDIDevice{Name: name})
				}
				before[d.GetDriverName()] = d.GetCdiDevices()
				one.ClaimResources = append(one.ClaimResources, device)
			}
			slices.SortFunc(one.ClaimResources, func(a, b *podresourcesv1.ClaimResource) int {
				return cmp.Or(cmp.Compare(a.GetDriverName(), b.GetDriverName()), cmp.Compare(a.GetPoolName(), b.GetPoolName()),
					cmp.Compare(a.GetDeviceName(), b.GetDeviceName()), cmp.Compare(a.GetShareId(), b.GetShareId()))
			})
			own.DynamicResources = append(own.DynamicResources, one)
		}
		slices.SortFunc(own.DynamicResources, func(a, b *podresourcesv1.DynamicResource) int {
			return cmp.Compare(a.GetClaimName(),
				b.GetClaimName())
		})
		out.Containers = append(out.Containers, own)
	}
	return out
}

// readersAgree waits until berthd's PodResources API lists the devices and claims of a pod as the kubelet's does, and checks that there
// are some. berthd also lists CPUs and memory, which the kubelet does not have.
func (k *kubernetes) readersAgree(pod string) {
	k.t.Helper()
	read := func(socket string) *podresourcesv1.PodResources {
		conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			k.t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		ctx, cancel := context.WithTimeout(k.t.Context(), 5*time.Second)
		defer cancel()
		got, err := podresourcesv1.NewPodResourcesListerClient(conn).Get(ctx,
			&podresourcesv1.GetPodResourcesRequest{PodNamespace: "default", PodName: pod})
		if err != nil {
			k.t.Logf("%s: %v", socket, err)
		}
		return got.GetPodResources()
	}
	var kubelet, berthd *podresourcesv1.PodResources
	defer func() {
		if k.t.Failed() {
			k.t.Logf("the kubelet lists\n\t%v\nand berthd\n\t%v", kubelet, berthd)
		}
	}()
	k.Eventually("berthd lists the devices and claims of "+pod+" as the kubelet does", func() bool {
		kubelet, berthd = kubeletsPart(read(k.Path("var", "lib", "kubelet", "pod-resources", "kubelet.sock"))),
			read(k.Path("berthd", "pod-resources", "kubelet.sock"))
		without, some := proto.CloneOf(berthd), false
		for _, c := range without.GetContainers() {
			c.CpuIds, c.Memory = nil, nil
			some = some || len(c.GetDevices()) > 0 || len(c.GetDynamicResources()) > 0
		}
		return some && proto.Equal(kubelet, without)
	})
}

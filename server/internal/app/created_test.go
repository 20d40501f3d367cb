package app_test

import (
	"cmp"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/managers/cgroup"
)

// created is what a kubelet sent to the runtime (CRI) to create a container: its
// resources, and what device plugins added.
type created struct {
	Container string
	Linux     linux
	Devices   []edit
	Mounts    []edit
	Envs      []env

	Annotations map[string]string
}

type linux struct {
	Period     int64             `json:"cpu_period"`
	Quota      int64             `json:"cpu_quota"`
	Shares     int64             `json:"cpu_shares"`
	Memory     int64             `json:"memory_limit_in_bytes"`
	MemorySwap int64             `json:"memory_swap_limit_in_bytes"`
	OOM        int64             `json:"oom_score_adj"`
	CPUs       string            `json:"cpuset_cpus"`
	Mems       string            `json:"cpuset_mems"`
	HugePages  []hugePages       `json:"hugepage_limits"`
	Unified    map[string]string `json:"unified"`
}

type hugePages struct {
	Size  string `json:"page_size"`
	Limit uint64 `json:"limit"`
}

// edit is a device or a mount.
type edit struct {
	Container   string `json:"container_path"`
	Host        string `json:"host_path"`
	Permissions string `json:"permissions"`
	ReadOnly    bool   `json:"readonly"`
}

type env struct{ Key, Value string }

// captured makes a plugin answer as those that were captured did: one file and one mount
// of the plugin, whatever the devices.
func captured(plugin string) func(*pluginapi.ContainerAllocateResponse) {
	return func(r *pluginapi.ContainerAllocateResponse) {
		r.Devices = []*pluginapi.DeviceSpec{{ContainerPath: "/dev/dp-" + plugin, HostPath: "/dev/null", Permissions: "rw"}}
		r.Mounts = []*pluginapi.Mount{{ContainerPath: "/dp-" + plugin, HostPath: "/tmp", ReadOnly: true}}
	}
}

// createdOf is the answer to Allocate in that form.
func createdOf(name string, resp *allocationv1.AllocateResponse) created {
	l := resp.GetResources()
	c := created{Container: name, Annotations: resp.GetEdits().GetAnnotations(), Linux: linux{
		Period: int64(l.GetCpuPeriodMicroseconds()), Quota: l.GetCpuQuotaMicroseconds(), Shares: int64(l.GetCpuShares()),
		Memory:     l.GetMemoryLimitBytes(),
		MemorySwap: l.GetMemorySwapLimitBytes(), OOM: int64(l.GetOomScoreAdj()), CPUs: l.GetCpusetCpus().GetList(),
		Mems:    convert.Nodes(l.GetCpusetMems()).Commas(),
		Unified: l.GetUnified(),
	}}
	for _, h := range l.GetHugepageLimits() {
		c.Linux.HugePages = append(c.Linux.HugePages, hugePages{Size: cgroup.HugePageLabel(int64(h.GetPageSizeBytes())),
			Limit: uint64(h.GetLimitBytes())})
	}
	for _, d := range resp.GetEdits().GetDevices() {
		c.Devices = append(c.Devices, edit{Container: d.GetContainerPath(), Host: d.GetHostPath(), Permissions: d.GetPermissions()})
	}
	for _, m := range resp.GetEdits().GetMounts() {
		c.Mounts = append(c.Mounts, edit{Container: m.GetContainerPath(), Host: m.GetHostPath(), ReadOnly: m.GetReadOnly()})
	}
	for _, name := range slices.Sorted(maps.Keys(resp.GetEdits().GetEnvs())) {
		c.Envs = append(c.Envs, env{Key: name, Value: resp.GetEdits().GetEnvs()[name]})
	}
	return c
}

// inOneOrder sorts what has no order.
func (c created) inOneOrder() created {
	slices.SortFunc(c.Linux.HugePages, func(a, b hugePages) int { return cmp.Compare(a.Size, b.Size) })
	slices.SortFunc(c.Devices, func(a, b edit) int { return cmp.Compare(a.Container, b.Container) })
	slices.SortFunc(c.Mounts, func(a, b edit) int { return cmp.Compare(a.Container, b.Container) })
	slices.SortFunc(c.Envs, func(a, b env) int { return cmp.Compare(a.Key, b.Key) })
	if len(c.Annotations) == 0 {
		c.Annotations = nil
	}
	c.Annotations, c.Linux.Unified = maps.Clone(c.Annotations), maps.Clone(c.Linux.Unified)
	// Kubelets before 1.37, which were captured, do not write it without memory QoS, and never for a container
	// without a request and a limit.
	if c.Linux.Unified["memory.high"] == "max" || c.Linux.Memory == 0 && c.Linux.OOM >= 999 {
		delete(c.Linux.Unified, "memory.high")
	}
	if len(c.Linux.Unified) == 0 {
		c.Linux.Unified = nil
	}
	return c
}

// compareCreated holds what a container is to be created with against what the kubelet
// sent.
func (p *replay) compareCreated(s step, container string) {
	p.t.Helper()
	i := slices.IndexFunc(s.Created, func(c created) bool { return c.Container == container })
	if i < 0 {
		return
	}
	resp, err := allocationv1.NewAllocationServiceClient(p.daemon.conn).Allocate(p.t.Context(), &allocationv1.AllocateRequest{
		Subject: &allocationv1.AllocateRequest_PodUid{PodUid: p.pod(s.Pod).GetMetadata().GetUid()}, ContainerName: container,
	})
	if err != nil {
		p.t.Fatalf("allocate %s/%s: %v", s.Pod, container, err)
	}
	p.decisions.created++
	p.decisions.edits += len(s.Created[i].Devices) + len(s.Created[i].Mounts) + len(s.Created[i].Envs) + len(s.Created[i].Annotations)
	got, want := p.anyDevice(createdOf(container, resp).inOneOrder()), p.anyDevice(s.Created[i].inOneOrder())
	if !reflect.DeepEqual(got, want) {
		p.t.Errorf("%s/%s is created with\n %+v, by the kubelet with\n %+v", s.Pod, container, got, want)
	}
}

// anyDevice leaves of devices whose plugin prefers none only how many there are: of
// those that are as good a kubelet takes any, by chance.
func (p *replay) anyDevice(c created) created {
	c.Envs = slices.Clone(c.Envs)
	for _, plugin := range p.Plugins {
		if plugin.Preferred {
			continue
		}
		if ids, ok := c.Annotations[plugin.Resource]; ok {
			c.Annotations[plugin.Resource] = strconv.Itoa(len(strings.Split(ids, ",")))
		}
		name := strings.ToUpper(strings.NewReplacer(".", "_", "/", "_").Replace(plugin.Resource))
		for i, e := range c.Envs {
			if e.Key == name {
				c.Envs[i].Value = strconv.Itoa(len(strings.Split(e.Value, ",")))
			}
		}
	}
	return c
}

package policy

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	"pgregory.net/rapid"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/placement"
)

// strangePods are what no runtime says of a pod.
func strangePods() []*api.PodSandbox {
	long := strings.Repeat("x", 1<<16)
	out := []*api.PodSandbox{
		nil, {}, {Id: "a-sandbox"}, pod("a", "burstable"), pod("b", "guaranteed"), pod("../../etc", "burstable"),
		{Id: "c", Uid: "c-uid", Name: "c\nc", Namespace: "\x00", Linux: &api.LinuxPodSandbox{CgroupParent: "/../../.."}, Pid: 1},
		{Id: "d", Uid: "a-uid", Name: "a", Namespace: "default", Linux: &api.LinuxPodSandbox{}, Pid: math.MaxUint32}, // another's uid
		{Id: "e", Uid: long, Name: long, Namespace: long, Annotations: map[string]string{"spec": "{" + long, long: long}},
		{Id: "f", Uid: "f-uid", Name: "f", Namespace: "default", Annotations: map[string]string{
			"spec": `{"spec":` + strings.Repeat(`{"a":`, 5000),
		}},
		{Id: "g", Uid: "g-uid", Name: "g", Namespace: "default", Annotations: map[string]string{
			"spec": `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"h","namespace":"other","uid":"h-uid"},"spec":{"containers":[{"name":"main"}]}}`,
		}},
	}
	return out
}

// strangeContainers are what no runtime says of a container.
func strangeContainers() []*api.Container {
	out := []*api.Container{
		nil, {}, {Id: "a-1", Name: "main", PodSandboxId: "nowhere"},
		{Id: "a-1", Name: strings.Repeat("n", 1<<12), PodSandboxId: "a-sandbox", State: api.ContainerState(77)},
		{Id: "a-1", Name: "../x", PodSandboxId: "a-sandbox", Linux: &api.LinuxContainer{Resources: &api.LinuxResources{
			Cpu: &api.LinuxCPU{Cpus: "0-99999999999", Mems: "x", Shares: api.UInt64(uint64(math.MaxUint64)),
				Quota: api.Int64(int64(math.MinInt64)), Period: api.UInt64(uint64(0))},
			Memory:         &api.LinuxMemory{Limit: api.Int64(int64(math.MinInt64))},
			HugepageLimits: []*api.HugepageLimit{{PageSize: "-1", Limit: math.MaxUint64}},
		}}, Pid: 1},
	}
	for i := range 4 {
		out = append(out, container(pod("a", "burstable"), "main", fmt.Sprint("a-", i), math.MaxInt64/1000, math.MaxInt64),
			container(pod("b", "guaranteed"), "main", fmt.Sprint("b-", i), 2000, gib))
	}
	return out
}

// TestHostileStream: whatever a runtime says, in whatever order, the policy continues, and
// berthd has nothing of it any more when an honest list says that nothing runs.
func TestHostileStream(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	rapid.Check(t, func(rt *rapid.T) {
		var late time.Duration
		e := newEngine(t, Config{Client: d.Client, Annotation: "spec",
			Host: Host{Move: func(int, string, string, cpuset.Set) error { return nil }},
			Now:  func() time.Time { return time.Now().Add(late) }})
		pods, containers := rapid.SampledFrom(strangePods()), rapid.SampledFrom(strangeContainers())
		ctx := t.Context()
		for range rapid.IntRange(1, 30).Draw(rt, "events") {
			p, c := pods.Draw(rt, "pod"), containers.Draw(rt, "container")
			switch rapid.IntRange(0, 11).Draw(rt, "event") {
			case 0:
				_, _ = e.policy.Synchronize(ctx, []*api.PodSandbox{p, pods.Draw(rt, "other")},
					[]*api.Container{c, containers.Draw(rt, "one more")})
			case 1, 2:
				_ = e.policy.RunPodSandbox(ctx, p)
			case 3:
				_ = e.policy.StopPodSandbox(ctx, p)
			case 4:
				_ = e.policy.RemovePodSandbox(ctx, p)
			case 5, 6:
				_, _, _ = e.policy.CreateContainer(ctx, p, c)
			case 7:
				_ = e.policy.PostCreateContainer(ctx, p, c)
			case 8:
				_ = e.policy.StartContainer(ctx, p, c)
			case 9:
				_ = e.policy.PostStartContainer(ctx, p, c)
			case 10:
				_, _ = e.policy.UpdateContainer(ctx, p, c, c.GetLinux().GetResources())
			default:
				_, _ = e.policy.StopContainer(ctx, p, c)
				_ = e.policy.RemoveContainer(ctx, p, c)
			}
		}
		e.ended = true
		if _, err := e.policy.Synchronize(ctx, nil, nil); err != nil {
			rt.Fatal(err)
		}
		e.policy.sweepNow(ctx)
		late = placement.StartTime // a start that was permitted may be in progress until then
		e.policy.sweepNow(ctx)
		if left := d.uids(); len(left) > 0 {
			rt.Fatalf("berthd still has %v", left)
		}
	})
}

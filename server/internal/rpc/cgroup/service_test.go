package cgroup_test

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	cgroupv1 "github.com/berthd/berth/api/berth/cgroup/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/cgroup/memtree"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/qos"
	"github.com/berthd/berth/managers/workload"
	"github.com/berthd/berth/server/internal/cgroupapi"
	"github.com/berthd/berth/server/internal/reconcile"
	handler "github.com/berthd/berth/server/internal/rpc/cgroup"
	"github.com/berthd/berth/server/internal/rpc/rpctest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// served is both services over a tree in memory with one Burstable pod, a.
type served struct {
	cgroupv1.CgroupServiceClient
	pods cgroupv1.PodCgroupServiceClient
	tree *memtree.Tree
	loop *reconcile.Loop
}

func serve(t *testing.T) served {
	t.Helper()
	facts := memtree.V2()
	layout, err := cgroup.NewLayout("/", facts.Driver)
	if err != nil {
		t.Fatal(err)
	}
	l := ledgertest.New(t, ledger.Rules{Machine: machinetest.Build("4c")})
	p := ledgertest.Pod("a", "c")
	p.QoS, p.Pod.QoS = workload.Burstable, workload.Burstable
	p.Pod.Containers[0].Requests = workload.Quantities{workload.CPU: 500}
	if _, err := l.Update(t.Context(), func(d *ledger.Draft) error { d.PutPod(p); return nil }); err != nil {
		t.Fatal(err)
	}
	s := served{tree: memtree.New(facts, cpuset.Range(0, 3), numa.Of(0))}
	s.loop = reconcile.New(reconcile.Config{
		Tree: s.tree, Layout: layout, Limits: reconcile.Limits{QoS: qos.Config{Cgroup: cgroup.DefaultConfig(facts)}},
		View: l.View, Log: slog.New(slog.DiscardHandler),
	})
	if err := s.loop.Pass(t.Context()); err != nil {
		t.Fatal(err)
	}
	alone := func(ctx context.Context, _ string, do func(context.Context, *ledger.View) error) error {
		return do(ctx, l.View())
	}
	byHand := &cgroupapi.Cgroups{Loop: s.loop, Alone: alone}
	pods := &cgroupapi.Pods{Cgroups: byHand}
	conn := rpctest.Serve(t, func(r grpc.ServiceRegistrar) {
		cgroupv1.RegisterCgroupServiceServer(r, handler.New(byHand, byHand, layout, facts))
		cgroupv1.RegisterPodCgroupServiceServer(r, handler.NewPods(pods, pods))
	})
	s.CgroupServiceClient, s.pods = cgroupv1.NewCgroupServiceClient(conn), cgroupv1.NewPodCgroupServiceClient(conn)
	return s
}

func ptr[T any](v T) *T { return &v }

func TestOneCgroup(t *testing.T) {
	t.Parallel()
	s := serve(t)
	const name = "/kubepods/extra"
	created, err := s.Create(t.Context(), &cgroupv1.CreateRequest{Name: name, Resources: &typesv1.LinuxResources{
		CpuShares: ptr(uint64(1024)), CpuQuotaMicroseconds: ptr(int64(50000)), CpuPeriodMicroseconds: ptr(uint64(100000)),
		MemoryLimitBytes: ptr(int64(1 << 20)),
	}})
	if err != nil || len(created.GetWrites()) == 0 || !created.GetWrites()[0].GetCreate() {
		t.Fatalf("create: %v, %v", created, err)
	}
	updated, err := s.Update(t.Context(), &cgroupv1.UpdateRequest{Name: name,
		Resources: &typesv1.LinuxResources{MemoryLimitBytes: ptr(int64(2 << 20))}})
	want := &cgroupv1.Write{Cgroup: name, File: "memory.max", OldValue: "1048576", NewValue: "2097152"}
	if err != nil || len(updated.GetWrites()) != 1 || !proto.Equal(updated.GetWrites()[0], want) {
		t.Errorf("update: %v, %v", updated, err)
	}
	planned, err := s.Plan(t.Context(), &cgroupv1.PlanRequest{Name: name, Resources: &typesv1.LinuxResources{PidsLimit: ptr(int64(7))}})
	if err != nil || len(planned.GetWrites()) != 1 || planned.GetWrites()[0].GetNewValue() != "7" {
		t.Errorf("plan: %v, %v", planned, err)
	}
	set, err := s.SetConfig(t.Context(), &cgroupv1.SetConfigRequest{Name: name,
		Resources: &typesv1.LinuxResources{MemoryLimitBytes: ptr(int64(2 << 20))}})
	if err != nil || len(set.GetWrites()) != 0 {
		t.Errorf("the same again: %v, %v", set, err)
	}
	cpu, err := s.GetConfig(t.Context(), &cgroupv1.GetConfigRequest{Name: name, Resource: "cpu"})
	if err != nil || cpu.GetMilliCpuRequest() != 975 || cpu.GetMilliCpuLimit() != 500 || cpu.GetResources().MemoryLimitBytes != nil {
		t.Errorf("cpu: %v, %v", cpu, err)
	}
	all, err := s.GetConfig(t.Context(), &cgroupv1.GetConfigRequest{Name: name})
	if err != nil || all.GetResources().GetMemoryLimitBytes() != 2<<20 || all.GetResources().PidsLimit == nil {
		t.Errorf("all: %v, %v", all, err)
	}
	s.tree.UseMemory(cgroup.ParseCgroupfs(name), 4096)
	used, err := s.GetMemoryUsage(t.Context(), &cgroupv1.GetMemoryUsageRequest{Name: name})
	if err != nil || used.GetBytes() != 4096 {
		t.Errorf("usage: %v, %v", used, err)
	}
	pid := s.tree.Spawn(memtree.Mortal)
	if err := s.tree.Move(t.Context(), cgroup.ParseCgroupfs(name), pid); err != nil {
		t.Fatal(err)
	}
	pids, err := s.ListProcesses(t.Context(), &cgroupv1.ListProcessesRequest{Name: name})
	if err != nil || !slices.Equal(pids.GetPids(), []int32{int32(pid)}) {
		t.Errorf("pids: %v, %v", pids, err)
	}
	if _, err := s.ReduceCPULimits(t.Context(), &cgroupv1.ReduceCPULimitsRequest{Name: name}); err != nil {
		t.Errorf("reduce: %v", err)
	}
	s.tree.Break(cgroup.ParseCgroupfs(name), "lacks cpu")
	state, err := s.Exists(t.Context(), &cgroupv1.ExistsRequest{Name: name})
	if err != nil || state.GetState() != cgroupv1.State_STATE_INVALID || state.GetReason() != "lacks cpu" {
		t.Errorf("exists: %v, %v", state, err)
	}
	if _, err := s.Validate(t.Context(), &cgroupv1.ValidateRequest{Name: name}); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("validate: %v", err)
	}
	if _, err := s.Destroy(t.Context(), &cgroupv1.DestroyRequest{Name: name}); err != nil {
		t.Errorf("destroy: %v", err)
	}
	if _, err := s.GetMemoryUsage(t.Context(), &cgroupv1.GetMemoryUsageRequest{Name: name}); status.Code(err) != codes.NotFound {
		t.Errorf("usage of an absent cgroup: %v", err)
	}
	if _, err := s.GetConfig(t.Context(), &cgroupv1.GetConfigRequest{Name: "/kubepods",
		Resource: "pids"}); status.Code(err) != codes.Unimplemented {
		t.Errorf("config of another resource: %v", err)
	}
	if _, err := s.Validate(t.Context(), &cgroupv1.ValidateRequest{Name: "/kubepods"}); err != nil {
		t.Errorf("validate a valid one: %v", err)
	}
}

// Every method refuses a request that names no cgroup.
func TestNamesAreNeeded(t *testing.T) {
	t.Parallel()
	s := serve(t)
	ctx := t.Context()
	calls := map[string]func() error{
		"Create":          func() error { _, err := s.Create(ctx, &cgroupv1.CreateRequest{}); return err },
		"Update":          func() error { _, err := s.Update(ctx, &cgroupv1.UpdateRequest{}); return err },
		"SetConfig":       func() error { _, err := s.SetConfig(ctx, &cgroupv1.SetConfigRequest{}); return err },
		"Destroy":         func() error { _, err := s.Destroy(ctx, &cgroupv1.DestroyRequest{}); return err },
		"Exists":          func() error { _, err := s.Exists(ctx, &cgroupv1.ExistsRequest{}); return err },
		"Validate":        func() error { _, err := s.Validate(ctx, &cgroupv1.ValidateRequest{}); return err },
		"GetConfig":       func() error { _, err := s.GetConfig(ctx, &cgroupv1.GetConfigRequest{}); return err },
		"ListProcesses":   func() error { _, err := s.ListProcesses(ctx, &cgroupv1.ListProcessesRequest{}); return err },
		"GetMemoryUsage":  func() error { _, err := s.GetMemoryUsage(ctx, &cgroupv1.GetMemoryUsageRequest{}); return err },
		"ReduceCPULimits": func() error { _, err := s.ReduceCPULimits(ctx, &cgroupv1.ReduceCPULimitsRequest{}); return err },
		"Name":            func() error { _, err := s.Name(ctx, &cgroupv1.NameRequest{}); return err },
		"Name, driver": func() error {
			_, err := s.Name(ctx, &cgroupv1.NameRequest{Subject: &cgroupv1.NameRequest_Name{Name: "/a"}, Driver: "upstart"})
			return err
		},
		"Name, dots": func() error {
			_, err := s.Name(ctx, &cgroupv1.NameRequest{Subject: &cgroupv1.NameRequest_Name{Name: "/a/.."}})
			return err
		},
		"Plan":               func() error { _, err := s.Plan(ctx, &cgroupv1.PlanRequest{Name: "/a/"}); return err },
		"pod Exists":         func() error { _, err := s.pods.Exists(ctx, &cgroupv1.PodCgroupServiceExistsRequest{}); return err },
		"pod EnsureExists":   func() error { _, err := s.pods.EnsureExists(ctx, &cgroupv1.EnsureExistsRequest{}); return err },
		"pod GetName":        func() error { _, err := s.pods.GetName(ctx, &cgroupv1.GetNameRequest{}); return err },
		"pod GetName, class": func() error { _, err := s.pods.GetName(ctx, &cgroupv1.GetNameRequest{PodUid: "x"}); return err },
		"pod Destroy":        func() error { _, err := s.pods.Destroy(ctx, &cgroupv1.PodCgroupServiceDestroyRequest{}); return err },
		"pod ReduceCPULimits": func() error {
			_, err := s.pods.ReduceCPULimits(ctx, &cgroupv1.PodCgroupServiceReduceCPULimitsRequest{})
			return err
		},
	}
	for method, call := range calls {
		if err := call(); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v", method, err)
		}
	}
}

func TestName(t *testing.T) {
	t.Parallel()
	s := serve(t)
	tests := []struct{ name, literal, driver, wantName, wantLiteral string }{
		{"/a/b-c", "", "", "/a/b-c", "/a/b-c"},
		{"/a/b-c", "", "systemd", "/a/b-c", "/a.slice/a-b_c.slice"},
		{"", "/a.slice/a-b_c.slice", "systemd", "/a/b-c", "/a.slice/a-b_c.slice"},
		{"", "/kubepods/poda", "", "/kubepods/poda", "/kubepods/poda"},
	}
	for _, tt := range tests {
		req := &cgroupv1.NameRequest{Subject: &cgroupv1.NameRequest_Name{Name: tt.name}, Driver: tt.driver}
		if tt.name == "" {
			req.Subject = &cgroupv1.NameRequest_Literal{Literal: tt.literal}
		}
		got, err := s.Name(t.Context(), req)
		if err != nil || got.GetName() != tt.wantName || got.GetLiteral() != tt.wantLiteral || len(got.GetComponents()) != 2 {
			t.Errorf("%+v: %v, %v", tt, got, err)
		}
	}
}

func TestList(t *testing.T) {
	t.Parallel()
	s := serve(t)
	lighter := cgroup.Node{Name: cgroup.ParseCgroupfs("/kubepods/burstable/poda"), Values: cgroup.Lightest()}
	if _, err := s.tree.Ensure(t.Context(), lighter); err != nil {
		t.Fatal(err)
	}
	plan, err := s.Plan(t.Context(), &cgroupv1.PlanRequest{})
	want := &cgroupv1.Write{Cgroup: "/kubepods/burstable/poda", File: "cpu.weight", OldValue: "1", NewValue: "20"}
	if err != nil || len(plan.GetWrites()) != 1 || !proto.Equal(plan.GetWrites()[0], want) {
		t.Errorf("plan %v, %v", plan, err)
	}
	list, err := s.List(t.Context(), &cgroupv1.ListRequest{})
	if err != nil || list.GetVersion() != 2 || list.GetDriver() != "cgroupfs" || len(list.GetCgroups()) != 4 {
		t.Fatalf("%v, %v", list, err)
	}
	pod := list.GetCgroups()[3]
	if pod.GetPodUid() != "a" || !pod.GetManaged() || pod.GetState() != cgroupv1.State_STATE_VALID || len(pod.GetPending()) != 1 {
		t.Errorf("the pod: %v", pod)
	}
	if err := s.loop.Pass(t.Context()); err != nil {
		t.Fatal(err)
	}
	list, err = s.List(t.Context(), &cgroupv1.ListRequest{})
	if err != nil || len(list.GetDrifts()) != 1 || list.GetDrifts()[0].GetFound() != "1" || list.GetDrifts()[0].GetWant() != "20" {
		t.Errorf("drifts %v, %v", list.GetDrifts(), err)
	}
}

func TestPods(t *testing.T) {
	t.Parallel()
	s := serve(t)
	ctx := t.Context()
	exists, err := s.pods.Exists(ctx, &cgroupv1.PodCgroupServiceExistsRequest{PodUid: "a"})
	if err != nil || exists.GetState() != cgroupv1.State_STATE_VALID {
		t.Errorf("exists: %v, %v", exists, err)
	}
	ensured, err := s.pods.EnsureExists(ctx, &cgroupv1.EnsureExistsRequest{PodUid: "a"})
	if err != nil || ensured.GetCreated() || ensured.GetCgroupParent() != "/kubepods/burstable/poda" {
		t.Errorf("ensure: %v, %v", ensured, err)
	}
	named, err := s.pods.GetName(ctx, &cgroupv1.GetNameRequest{PodUid: "b", QosClass: typesv1.QOSClass_QOS_CLASS_GUARANTEED})
	if err != nil || named.GetName() != "/kubepods/podb" || named.GetCgroupParent() != "/kubepods/podb" {
		t.Errorf("name: %v, %v", named, err)
	}
	if _, err := s.tree.Ensure(ctx, cgroup.Node{Name: cgroup.ParseCgroupfs("/kubepods/podlost")}); err != nil {
		t.Fatal(err)
	}
	list, err := s.pods.ListPods(ctx, &cgroupv1.ListPodsRequest{})
	if err != nil || len(list.GetPods()) != 2 || !list.GetPods()[0].GetKnown() || list.GetPods()[1].GetKnown() {
		t.Errorf("list: %v, %v", list, err)
	}
	reduced, err := s.pods.ReduceCPULimits(ctx, &cgroupv1.PodCgroupServiceReduceCPULimitsRequest{PodUid: "lost"})
	if err != nil || len(reduced.GetWrites()) != 1 {
		t.Errorf("reduce: %v, %v", reduced, err)
	}
	destroyed, err := s.pods.Destroy(ctx, &cgroupv1.PodCgroupServiceDestroyRequest{PodUid: "lost"})
	if err != nil || !slices.Equal(destroyed.GetNames(), []string{"/kubepods/podlost"}) {
		t.Errorf("destroy: %v, %v", destroyed, err)
	}
	if _, err := s.pods.Destroy(ctx, &cgroupv1.PodCgroupServiceDestroyRequest{PodUid: "a"}); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("destroy an admitted pod: %v", err)
	}
	is, err := s.pods.IsPodCgroup(ctx, &cgroupv1.IsPodCgroupRequest{Literal: "/kubepods/burstable/poda"})
	if err != nil || !is.GetIsPod() || is.GetPodUid() != "a" {
		t.Errorf("is: %v, %v", is, err)
	}
}

// TestNotApplied: values that this version of cgroups lacks are reported, or refused.
func TestNotApplied(t *testing.T) {
	t.Parallel()
	s := serve(t)
	ctx := t.Context()
	values := &typesv1.LinuxResources{MemoryLimitBytes: ptr(int64(1 << 20)), MemorySwapLimitBytes: ptr(int64(2 << 20)),
		HugepageLimits: []*typesv1.HugepageLimit{{PageSizeBytes: 4096, LimitBytes: ptr(int64(0))}}}
	want := []string{"resources.memory_swap_limit_bytes", "resources.hugepage_limits"}
	for _, call := range []struct {
		method string
		do     func(strict bool) ([]*cgroupv1.NotApplied, error)
	}{
		{"Plan", func(strict bool) ([]*cgroupv1.NotApplied, error) {
			resp, err := s.Plan(ctx, &cgroupv1.PlanRequest{Name: "/kubepods/extra", Resources: values, Strict: strict})
			return resp.GetNotApplied(), err
		}},
		{"Create", func(strict bool) ([]*cgroupv1.NotApplied, error) {
			resp, err := s.Create(ctx, &cgroupv1.CreateRequest{Name: "/kubepods/extra", Resources: values, Strict: strict})
			return resp.GetNotApplied(), err
		}},
		{"Update", func(strict bool) ([]*cgroupv1.NotApplied, error) {
			resp, err := s.Update(ctx, &cgroupv1.UpdateRequest{Name: "/kubepods/extra", Resources: values, Strict: strict})
			return resp.GetNotApplied(), err
		}},
		{"SetConfig", func(strict bool) ([]*cgroupv1.NotApplied, error) {
			resp, err := s.SetConfig(ctx, &cgroupv1.SetConfigRequest{Name: "/kubepods/extra", Resources: values, Strict: strict})
			return resp.GetNotApplied(), err
		}},
	} {
		_, err := call.do(true)
		if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), want[0]) {
			t.Errorf("%s, strict: %v", call.method, err)
		}
		if o, err := s.Exists(ctx, &cgroupv1.ExistsRequest{Name: "/kubepods/extra"}); err != nil || call.method == "Create" &&
			o.GetState() != cgroupv1.State_STATE_ABSENT {
			t.Errorf("%s, strict: the cgroup is %v, %v", call.method, o, err)
		}
		dropped, err := call.do(false)
		var got []string
		for _, d := range dropped {
			got = append(got, d.GetField())
		}
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %q, %v, want %q", call.method, got, err, want)
		}
	}
	config, err := s.GetConfig(ctx, &cgroupv1.GetConfigRequest{Name: "/kubepods/extra"})
	if err != nil || config.GetResources().GetMemoryLimitBytes() != 1<<20 {
		t.Errorf("the other values: %v, %v", config, err)
	}
}

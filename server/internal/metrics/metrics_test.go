package metrics_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/cpu"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/live"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/placement"
	"github.com/berthd/berth/managers/topology"
	"github.com/berthd/berth/managers/workload"
	"github.com/berthd/berth/server/internal/deviceplugin/registry"
	"github.com/berthd/berth/server/internal/metrics"
	"github.com/berthd/berth/server/internal/system"
)

// cgroups makes no cgroups.
type cgroups struct{ admission.CgroupManager }

func (cgroups) RecordClaims(context.Context, *ledger.View, string, bool) (func() error, error) {
	return func() error { return nil }, nil
}

func (cgroups) EnsurePod(_ context.Context, _ *ledger.View, uid string) (string, bool, error) {
	return "/pod" + uid, true, nil
}

func (cgroups) ForgetPod(context.Context, *ledger.View, string) error { return nil }

func (cgroups) RemovePod(context.Context, *ledger.View, string) error { return nil }

// counted is an engine whose admissions are counted, as in berthd.
type counted struct {
	*live.Engine
	set *metrics.Set
}

func (e counted) Admit(ctx context.Context, req admission.Request) (admission.Verdict, error) {
	start := time.Now()
	v, err := e.Engine.Admit(ctx, req)
	if !req.DryRun {
		e.set.Admission(&req.Pod, v, time.Since(start), err)
	}
	return v, err
}

func (e counted) Resize(ctx context.Context, req live.ResizeRequest) (live.Resized, error) {
	start := time.Now()
	r, err := e.Engine.Resize(ctx, req)
	if !req.DryRun {
		e.set.Resize(r, time.Since(start), err)
	}
	return r, err
}

// fixture is an engine that is watched, on 8 CPUs of which none is reserved.
type fixture struct {
	counted
	set    *metrics.Set
	ledger *ledger.Ledger
}

func build(t *testing.T, policy topology.Policy, options ...string) *fixture {
	t.Helper()
	m := machinetest.Build("2s1n2c2t")
	given := map[string]string{}
	for _, o := range options {
		given[o] = "true"
	}
	cpus, err := cpu.New(cpu.Config{
		Policy: cpu.PolicyStatic, AllowUnreserved: true, Options: given, Features: cpu.Features{BetaOptions: true},
	}, m)
	if err != nil {
		t.Fatal(err)
	}
	top, err := topology.New(topology.Config{Policy: policy, Scope: hint.ContainerScope}, m.NodeMask(), m.Distances())
	if err != nil {
		t.Fatal(err)
	}
	bus, err := hint.NewBus(nil, []hint.Entry{{Provider: cpus, Mode: hint.Required}}, context.WithTimeout)
	if err != nil {
		t.Fatal(err)
	}
	h := &fixture{set: metrics.New(), ledger: ledgertest.New(t, ledger.Rules{Machine: m})}
	h.counted = counted{set: h.set, Engine: live.New(admission.New(admission.Config{DeferWaits: true}, admission.Parts{
		Ledger: h.ledger, CgroupManager: cgroups{},
		Managers:    func(*ledger.View) (*hint.Bus, *topology.Manager) { return bus, top },
		Environment: admission.Environment{Now: time.Now, NewID: func() string { return "id" }},
	}), live.Options{})}
	h.set.Start(system.Sources{
		View: h.ledger.View,
		Settings: func() system.Settings {
			return system.Settings{StaticCPUs: true, FullCores: len(options) > 0, Topology: policy, Scope: top.Scope()}
		},
		Sockets: func() []registry.Socket {
			return []registry.Socket{{Path: "/a.sock", Registered: true}, {Path: "/b.sock"}, {Path: "/\xff.sock"}, {Path: "/\xfe.sock"}}
		},
		Phases: func() map[placement.Phase]int { return map[placement.Phase]int{placement.Running: 3} },
	})
	return h
}

// admit admits a pod whose containers request so many CPUs each; 0 is a part of one.
func (h *fixture) admit(t *testing.T, uid string, cpus ...int64) admission.Verdict {
	t.Helper()
	p := workload.Pod{UID: uid, Name: uid}
	for i, n := range cpus {
		q := workload.Quantities{workload.CPU: max(n*1000, 500), workload.Memory: 1}
		p.Containers = append(p.Containers, workload.Container{Name: string(rune('a' + i)), Requests: q, Limits: q})
	}
	v, err := h.Admit(t.Context(), admission.Request{Pod: p})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// expect compares lines of a scrape.
func (h *fixture) expect(t *testing.T, lines ...string) {
	t.Helper()
	r := httptest.NewRecorder()
	h.set.Handler(true).ServeHTTP(r, httptest.NewRequest("GET", "/metrics", nil))
	text, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range lines {
		if !strings.Contains("\n"+string(text), "\n"+want+"\n") {
			name, _, _ := strings.Cut(want, " ")
			for got := range strings.Lines(string(text)) {
				if strings.HasPrefix(got, name+" ") {
					name = got
				}
			}
			t.Errorf("want %s, got %s", want, name)
		}
	}
}

// TestRefusedAtTheSecondContainer: the first one was a request too, but nothing
// was allotted.
func TestRefusedAtTheSecondContainer(t *testing.T) {
	t.Parallel()
	h := build(t, topology.None, cpu.FullPCPUsOnly)
	if v := h.admit(t, "p", 2, 3); v.Outcome != admission.Rejected || v.Reason != "SMTAlignmentError" {
		t.Fatalf("%+v", v)
	}
	h.expect(t,
		"kubelet_cpu_manager_pinning_requests_total 2", "kubelet_cpu_manager_pinning_errors_total 1",
		`kubelet_container_aligned_compute_resources_count{boundary="physical_cpu",scope="container"} 0`,
		`kubelet_container_aligned_compute_resources_failure_count{boundary="physical_cpu",scope="container"} 1`,
		`kubelet_admission_rejections_total{reason="Other"} 1`,
		"kubelet_topology_manager_admission_requests_total 1",
		"kubelet_topology_manager_admission_errors_total 0", // the policy is none
		"kubelet_cpu_manager_exclusive_cpu_allocation_count 0",
		`berth_admission_duration_seconds_count{verdict="rejected"} 1`,
	)
}

// TestRefusedAsAWhole: the CPU manager refuses the plan, not a container.
func TestRefusedAsAWhole(t *testing.T) {
	t.Parallel()
	h := build(t, topology.BestEffort)
	h.admit(t, "shares", 0)
	if v := h.admit(t, "all", 8); v.Outcome != admission.Rejected {
		t.Fatalf("%+v", v)
	}
	h.expect(t,
		"kubelet_cpu_manager_pinning_requests_total 1", "kubelet_cpu_manager_pinning_errors_total 1",
		"kubelet_topology_manager_admission_errors_total 1",
		`kubelet_admission_rejections_total{reason="UnexpectedAdmissionError"} 1`,
	)
}

// TestNoVerdict: what is no verdict and what is none of the kubelet's is only in
// berth's own metric; a dry run is in none.
func TestNoVerdict(t *testing.T) {
	t.Parallel()
	h := build(t, topology.Restricted)
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("gone"))
	if _, err := h.Admit(ctx, admission.Request{}); err == nil {
		t.Fatal("no error")
	}
	if _, err := h.ledger.Update(t.Context(), func(d *ledger.Draft) error { d.SetUncertain("lost"); return nil }); err != nil {
		t.Fatal(err)
	}
	if v := h.admit(t, "p", 2); v.Outcome != admission.Deferred {
		t.Fatalf("%+v", v)
	}
	pod := workload.Pod{UID: "dry", Name: "dry", Containers: []workload.Container{{Name: "c"}}}
	if _, err := h.Admit(t.Context(), admission.Request{Pod: pod, DryRun: true}); err != nil {
		t.Fatal(err)
	}
	h.expect(t,
		`berth_admission_duration_seconds_count{verdict="invalid"} 1`,
		`berth_admission_duration_seconds_count{verdict="error"} 0`,
		`berth_admission_duration_seconds_count{verdict="deferred"} 1`,
		"kubelet_topology_manager_admission_requests_total 0",
		"kubelet_cpu_manager_pinning_requests_total 0",
	)
}

// TestGauges: they follow the ledger through changes that no admission made.
func TestGauges(t *testing.T) {
	t.Parallel()
	h := build(t, topology.Restricted)
	h.admit(t, "p", 3)
	h.expect(t,
		"kubelet_cpu_manager_shared_pool_size_millicores 5000",
		`kubelet_cpu_manager_allocation_per_numa{numa_node="0"} 3`, `kubelet_cpu_manager_allocation_per_numa{numa_node="1"} 0`,
		`plugin_manager_total_plugins{socket_path="/a.sock",state="desired_state_of_world"} 1`,
		`plugin_manager_total_plugins{socket_path="/a.sock",state="actual_state_of_world"} 1`,
		`plugin_manager_total_plugins{socket_path="/b.sock",state="desired_state_of_world"} 1`,
		`plugin_manager_total_plugins{socket_path="\"/\\xff.sock\"",state="desired_state_of_world"} 1`, // a name of any bytes
		`plugin_manager_total_plugins{socket_path="\"/\\xfe.sock\"",state="desired_state_of_world"} 1`,
		`berth_ledger_claims{provider="cpu",resource="cpu"} 1`,
	)
	reserved := h.ledger.View().Rules()
	reserved.ReservedCPUs = cpuset.Of(1, 2)
	if _, err := h.ledger.SetRules(t.Context(), reserved); err != nil {
		t.Fatal(err)
	}
	pool := h.ledger.View().SharedCPUs().Minus(reserved.ReservedCPUs).Len()
	h.expect(t, "kubelet_cpu_manager_shared_pool_size_millicores "+string(rune('0'+pool))+"000")
	if _, _, err := h.Remove(t.Context(), "p", admission.Scope{}); err != nil {
		t.Fatal(err)
	}
	h.expect(t, "kubelet_cpu_manager_exclusive_cpu_allocation_count 0", "kubelet_cpu_manager_shared_pool_size_millicores 6000",
		`berth_ledger_pods{qos_class="Guaranteed"} 0`, `berth_containers{phase="running"} 3`, `berth_containers{phase="starting"} 0`)
}

// TestErrorsAreBerthdsOwn: what an alert watches counts what berthd has failed at, and not the mistakes of its callers.
func TestErrorsAreBerthdsOwn(t *testing.T) {
	t.Parallel()
	h := build(t, topology.Restricted)
	for _, err := range []error{
		errdefs.Invalidf("no uid"), errdefs.Preconditionf("pod uid was admitted with another specification"),
		errdefs.PermissionDeniedf("not the owner"),
		fmt.Errorf("admit: %w", context.Canceled),
	} {
		h.set.Admission(&workload.Pod{}, admission.Verdict{}, time.Millisecond, err)
	}
	for _, err := range []error{errdefs.Internalf("a bug"), errdefs.Unavailablef("the disk is full"), context.DeadlineExceeded,
		errors.New("unknown")} {
		h.set.Admission(&workload.Pod{}, admission.Verdict{}, time.Millisecond, err)
	}
	h.expect(t, `berth_admission_duration_seconds_count{verdict="invalid"} 4`, `berth_admission_duration_seconds_count{verdict="error"} 4`)
}

// TestSeriesOfAlertsBeginWithZero: an increase is seen at the first event.
func TestSeriesOfAlertsBeginWithZero(t *testing.T) {
	t.Parallel()
	h := build(t, topology.Restricted)
	h.expect(t,
		`berth_admission_duration_seconds_count{verdict="error"} 0`, `berth_admission_duration_seconds_count{verdict="deferred"} 0`,
		`berth_admission_rejections_total{reason="TopologyAffinityError"} 0`,
		`berth_reconcile_duration_seconds_count{result="error"} 0`, `berth_machine_changes_total{result="failed"} 0`,
	)
}

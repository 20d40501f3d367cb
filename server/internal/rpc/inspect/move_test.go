package inspect_test

import (
	"bufio"
	"context"
	"encoding/json"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protojson"

	inspectv1 "github.com/berthd/berth/api/berth/inspect/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/importer"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/history"
	"github.com/berthd/berth/managers/ledger/kubelet"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/topology"
	"github.com/berthd/berth/managers/workload"
	"github.com/berthd/berth/server/internal/rpc/inspect"
	"github.com/berthd/berth/server/internal/rpc/rpctest"
)

// cgroups makes no cgroups.
type cgroups struct{ admission.CgroupManager }

func (cgroups) RecordClaims(context.Context, *ledger.View, string, bool) (func() error, error) {
	return func() error { return nil }, nil
}

func (cgroups) EnsurePod(_ context.Context, _ *ledger.View, uid string) (string, bool, error) {
	return "/kubepods/pod" + uid, true, nil
}

func (cgroups) ForgetPod(context.Context, *ledger.View, string) error { return nil }

// move serves an engine without providers on an empty ledger.
func move(t *testing.T, rules ledger.Rules) inspectv1.InspectServiceClient {
	t.Helper()
	return moveWith(t, rules, kubelet.Settings{Policy: "static"})
}

func moveWith(t *testing.T, rules ledger.Rules, settings kubelet.Settings) inspectv1.InspectServiceClient {
	t.Helper()
	l := ledgertest.New(t, rules)
	bus, err := hint.NewBus(nil, nil, context.WithTimeout)
	if err != nil {
		t.Fatal(err)
	}
	features := workload.Features{PodLevelResources: true, PodLevelResourceManagers: true}
	engine := admission.New(admission.Config{Features: features}, admission.Parts{
		Ledger: l, Managers: func(*ledger.View) (*hint.Bus, *topology.Manager) { return bus, nil }, CgroupManager: cgroups{},
		Environment: admission.Environment{Now: time.Now, NewID: func() string { return "id" }},
	})
	return inspectv1.NewInspectServiceClient(rpctest.Serve(t, func(s grpc.ServiceRegistrar) {
		inspectv1.RegisterInspectServiceServer(s, inspect.New(inspect.Parts{
			Ledger: history.Ledger{Ledger: l}, Importer: importer.Importer{Engine: engine}, Read: convert.Reader{Features: features},
			Settings: func(kubelet.Kind) kubelet.Settings { return settings },
		}))
	}))
}

// capture is what was recorded of a kubelet (v1.36.3): every content that its
// cpu_manager_state had while pods came and went, and those pods.
type capture struct {
	Capture string
	CPUs    int
	// StrictlyReserved CPUs are those kept out of the pool.
	StrictlyReserved cpuset.Set
	Pods             []json.RawMessage
	States           []string
}

func captures(t *testing.T) (all []capture) {
	t.Helper()
	f, err := os.Open("testdata/cpu_manager_states.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var c capture
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			t.Fatal(err)
		}
		all = append(all, c)
	}
	if err := lines.Err(); err != nil || len(all) == 0 {
		t.Fatalf("%d captures, %v", len(all), err)
	}
	return all
}

// TestCapturesComeBack takes every recorded file over into an empty ledger and
// gives it back: equal, byte for byte. The few that were caught between the
// kubelet's two writes, with CPUs that are nobody's, come back with those CPUs in
// the pool, and are pointed out.
func TestCapturesComeBack(t *testing.T) {
	t.Parallel()
	whole, torn, formats := 0, 0, map[uint32]int{}
	for _, c := range captures(t) {
		var pods []*typesv1.Pod
		for _, text := range c.Pods {
			p := &typesv1.Pod{}
			if err := protojson.Unmarshal(text, p); err != nil {
				t.Fatal(err)
			}
			pods = append(pods, p)
		}
		m := machinetest.Build("1s" + strconv.Itoa(c.CPUs) + "c")
		for _, state := range c.States {
			rules := ledger.Rules{Machine: m, ReservedCPUs: c.StrictlyReserved, StrictReservation: !c.StrictlyReserved.IsEmpty()}
			client := move(t, rules)
			in, err := client.Import(t.Context(), &inspectv1.ImportRequest{Kind: inspectv1.StateFileKind_STATE_FILE_KIND_CPU,
				State: []byte(state), Pods: pods})
			if strings.HasSuffix(state, `"checksum":1}`) { // broken on purpose, to see the kubelet refuse it
				rpctest.Failure{
					Code: codes.InvalidArgument, Reason: "REQUEST_INVALID",
					Message: "import cpu_manager_state: checkpoint is corrupted: the checksum is 1, the content's 1570570897",
				}.Check(t, err)
				continue
			}
			if err != nil {
				t.Fatalf("%s: %s: %v", c.Capture, state, err)
			}
			out, err := client.Export(t.Context(), &inspectv1.ExportRequest{Kind: inspectv1.StateFileKind_STATE_FILE_KIND_CPU,
				Format: in.GetFormat()})
			if err != nil {
				t.Fatalf("%s: %s: %v", c.Capture, state, err)
			}
			formats[in.GetFormat()]++
			lost := lost(t, m, rules, state)
			warned := strings.Contains(strings.Join(in.GetNotes(), "\n"), "would not accept")
			switch got := string(out.GetState()); {
			case lost.IsEmpty() && got == state && !warned:
				whole++
			case lost.IsEmpty():
				t.Errorf("%s:\n got %s\nwant %s\n%q", c.Capture, got, state, in.GetNotes())
			case !warned:
				t.Errorf("%s: %s: nothing is said of the lost CPUs %s: %q", c.Capture, state, lost, in.GetNotes())
			default:
				torn++
				if pool := poolOf(t, got); pool != poolOf(t, state).Union(lost) {
					t.Errorf("%s: %s: the pool is %s", c.Capture, state, pool)
				}
			}
		}
	}
	t.Logf("%d files came back, %d torn ones were mended; by format %v", whole, torn, formats)
	if whole < 150 || torn == 0 || formats[2] == 0 || formats[3] == 0 {
		t.Errorf("%d whole, %d torn, formats %v: the recordings have more", whole, torn, formats)
	}
}

func poolOf(t *testing.T, state string) cpuset.Set {
	t.Helper()
	s, err := kubelet.ParseCPU([]byte(state), nil)
	if err != nil {
		t.Fatal(err)
	}
	return s.Shared
}

// lost are the CPUs that a file does not name.
func lost(t *testing.T, m *machine.Topology, rules ledger.Rules, state string) cpuset.Set {
	t.Helper()
	s, err := kubelet.ParseCPU([]byte(state), nil)
	if err != nil {
		t.Fatal(err)
	}
	all := m.CPUs().Minus(s.Shared)
	if rules.StrictReservation {
		all = all.Minus(rules.ReservedCPUs)
	}
	for _, set := range s.Pods {
		all = all.Minus(set)
	}
	for _, containers := range s.Containers {
		for _, set := range containers {
			all = all.Minus(set)
		}
	}
	return all
}

const twoPods = `{"policyName":"static","defaultCpuSet":"0,3","entries":{"a":{"main":"1"},"b":{"main":"2"}}}`

func podOf(uid string, cpus string) *typesv1.Pod {
	r := map[string]string{"cpu": cpus, "memory": "1Gi"}
	return &typesv1.Pod{
		Metadata: &typesv1.PodMetadata{Name: uid, Uid: uid},
		Spec: &typesv1.PodSpec{Containers: []*typesv1.Container{{
			Name: "main", Resources: &typesv1.ResourceRequirements{Requests: r, Limits: r},
		}}},
	}
}

func TestImportAnswers(t *testing.T) {
	t.Parallel()
	client := move(t, ledger.Rules{Machine: machinetest.Build("4c")})
	req := &inspectv1.ImportRequest{
		Kind: inspectv1.StateFileKind_STATE_FILE_KIND_CPU, State: []byte(twoPods), SkipUnknown: true, DryRun: true,
		Pods: []*typesv1.Pod{podOf("a", "1"), podOf("idle", "1")},
	}
	for _, dry := range []bool{true, false} {
		req.DryRun = dry
		got, err := client.Import(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		if len(got.GetPods()) != 1 || got.GetPods()[0].GetOutcome() != inspectv1.ImportOutcome_IMPORT_OUTCOME_NEW ||
			got.GetPods()[0].GetPod().GetUid() != "a" ||
			got.GetPods()[0].GetPod().GetContainers()[0].GetCpus().GetList() != "1" || got.GetFormat() != 2 {
			t.Errorf("dry run %t: got %v", dry, got)
		}
		if want := []string{"CPUs 2 of b/main"}; !slices.Equal(got.GetSkipped(), want) {
			t.Errorf("dry run %t: skipped %q, want %q", dry, got.GetSkipped(), want)
		}
		if want := map[bool]uint64{true: 0, false: 1}[dry]; got.GetRevision() != want {
			t.Errorf("dry run %t: revision %d, want %d", dry, got.GetRevision(), want)
		}
	}
}

func TestImportFailures(t *testing.T) {
	t.Parallel()
	client := move(t, ledger.Rules{Machine: machinetest.Build("4c")})
	for name, row := range map[string]struct {
		req  *inspectv1.ImportRequest
		fail rpctest.Failure
	}{
		"nothing": {&inspectv1.ImportRequest{}, rpctest.Failure{
			Code: codes.InvalidArgument, Reason: "REQUEST_INVALID", Fields: []string{"kind", "state"},
			Message: "request is invalid: kind: is required (and 1 more)",
		}},
		"kind": {&inspectv1.ImportRequest{Kind: 9, State: []byte("{}")}, rpctest.Failure{
			Code: codes.InvalidArgument, Reason: "REQUEST_INVALID", Fields: []string{"kind"},
			Message: `request is invalid: kind: 9: expected CPU, MEMORY or DEVICE`,
		}},
		"pod": {&inspectv1.ImportRequest{Kind: inspectv1.StateFileKind_STATE_FILE_KIND_CPU, State: []byte(twoPods),
			Pods: []*typesv1.Pod{podOf("a", "1"), podOf("b", "-1")}}, rpctest.Failure{
			Code: codes.InvalidArgument, Reason: "REQUEST_INVALID",
			Fields:  []string{`pods[1].spec.containers[0].resources.limits["cpu"]`, `pods[1].spec.containers[0].resources.requests["cpu"]`},
			Message: `pods[1]: pod default/b (b) is invalid: pod.spec.containers[0].resources.limits["cpu"]: -1 must not be negative (and 1 more)`,
		}},
		"container id": {&inspectv1.ImportRequest{
			Kind: inspectv1.StateFileKind_STATE_FILE_KIND_CPU, State: []byte(twoPods),
			ContainerIds: map[string]*typesv1.ContainerRef{"id": {PodUid: "a"}},
		}, rpctest.Failure{
			Code: codes.InvalidArgument, Reason: "REQUEST_INVALID", Fields: []string{`container_ids["id"].container_name`},
			Message: `request is invalid: container_ids["id"].container_name: is required`,
		}},
		"unknown pods": {&inspectv1.ImportRequest{Kind: inspectv1.StateFileKind_STATE_FILE_KIND_CPU, State: []byte(twoPods)},
			rpctest.Failure{
				Code: codes.FailedPrecondition, Reason: "PRECONDITION_FAILED",
				Message: "import cpu_manager_state: the owner of CPUs 1 of a/main, CPUs 2 of b/main is unknown; add these pods, or skip unknown entries",
			}},
		"no file": {&inspectv1.ImportRequest{Kind: inspectv1.StateFileKind_STATE_FILE_KIND_CPU, State: []byte("{")}, rpctest.Failure{
			Code: codes.InvalidArgument, Reason: "REQUEST_INVALID",
			Message: "import cpu_manager_state: no JSON: unexpected end of JSON input at byte 1",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := client.Import(t.Context(), row.req)
			row.fail.Check(t, err)
		})
	}
}

func TestExportFailures(t *testing.T) {
	t.Parallel()
	client := move(t, ledger.Rules{Machine: machinetest.Build("4c")})
	for name, row := range map[string]struct {
		req  *inspectv1.ExportRequest
		fail rpctest.Failure
	}{
		"nothing": {&inspectv1.ExportRequest{}, rpctest.Failure{
			Code: codes.InvalidArgument, Reason: "REQUEST_INVALID", Fields: []string{"kind"},
			Message: "request is invalid: kind: is required",
		}},
		"format": {&inspectv1.ExportRequest{Kind: inspectv1.StateFileKind_STATE_FILE_KIND_CPU, Format: 1 << 31}, rpctest.Failure{
			Code: codes.InvalidArgument, Reason: "REQUEST_INVALID", Fields: []string{"format"},
			Message: "export cpu_manager_state: request is invalid: format: 1048576: expected 2, 3 or 4",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := client.Export(t.Context(), row.req)
			row.fail.Check(t, err)
		})
	}
	got, err := client.Export(t.Context(), &inspectv1.ExportRequest{Kind: inspectv1.StateFileKind_STATE_FILE_KIND_CPU})
	if err != nil || got.GetFileName() != "cpu_manager_state" || got.GetFormat() != 2 ||
		string(got.GetState()) != `{"policyName":"static","defaultCpuSet":"0-3","checksum":611748604}` {
		t.Errorf("got %v, %v", got, err)
	}
}

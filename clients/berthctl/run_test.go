package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	lifecyclev1 "github.com/berthd/berth/api/berth/lifecycle/v1"
	topologyv1 "github.com/berthd/berth/api/berth/topology/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/clients/berth"
	"github.com/berthd/berth/clients/internal/command"
)

// podOf is the message of podYAML.
func podOf(name string) *typesv1.Pod {
	return &typesv1.Pod{
		Metadata: &typesv1.PodMetadata{Name: name, Namespace: "default", Uid: "u-" + name},
		Spec: &typesv1.PodSpec{Containers: []*typesv1.Container{
			{Name: "app", Resources: &typesv1.ResourceRequirements{Limits: map[string]string{"cpu": "2"}}},
		}},
	}
}

// TestRequests compares the requests to berthd with the command line.
func TestRequests(t *testing.T) {
	t.Parallel()
	manifest := filepath.Join(t.TempDir(), "pod.yaml")
	if err := os.WriteFile(manifest, []byte(podYAML("web")), 0o600); err != nil {
		t.Fatal(err)
	}
	noUID := strings.Replace(podYAML("web"), ", uid: u-web", "", 1)
	for _, row := range []struct {
		args, stdin string
		want        []proto.Message
	}{
		{"admit --admission-id mine --filename " + manifest, "", []proto.Message{
			&admissionv1.AdmitRequest{Subject: &admissionv1.AdmitRequest_Pod{Pod: podOf("web")}, AdmissionId: "mine"},
		}},
		{"admit -f - --dry-run --admission-id mine --generate-uid", noUID, []proto.Message{
			&admissionv1.AdmitRequest{DryRun: true, AdmissionId: "mine", Subject: &admissionv1.AdmitRequest_Pod{Pod: &typesv1.Pod{
				Metadata: &typesv1.PodMetadata{Name: "web", Namespace: "default", Uid: "0b81d159-82f3-8448-80cd-a654d07041cb"},
				Spec:     podOf("web").GetSpec(),
			}}},
		}},
		{"admit --admission-id mine --filename " + manifest +
			" --holds app:cpus=5,2-4 --holds app:memory=0:4Gi --holds app:memory=1,3:1 --holds app:hugepages-1Gi=0-1:2Gi " +
			"--holds side:example.com/gpu=g3,g0 --holds side:example.com/nic=n", "", []proto.Message{
			&admissionv1.AdmitRequest{Subject: &admissionv1.AdmitRequest_Pod{Pod: podOf("web")}, AdmissionId: "mine",
				RunningAllocations: []*admissionv1.RunningAllocation{
					{ContainerName: "app", Cpus: &typesv1.CPUSet{List: "2-5"}, Memory: []*admissionv1.RunningMemory{
						{Resource: "memory", NumaNodes: &typesv1.NUMANodeSet{Ids: []uint32{0}}, Bytes: 4 << 30},
						{Resource: "memory", NumaNodes: &typesv1.NUMANodeSet{Ids: []uint32{1, 3}}, Bytes: 1},
						{Resource: "hugepages-1Gi", NumaNodes: &typesv1.NUMANodeSet{Ids: []uint32{0, 1}}, Bytes: 2 << 30},
					}},
					{ContainerName: "side", Devices: []*admissionv1.RunningDevices{
						{Resource: "example.com/gpu", Ids: []string{"g3", "g0"}}, {Resource: "example.com/nic", Ids: []string{"n"}},
					}},
				}},
		}},
		{"allocate " + webUID + " app", "", []proto.Message{
			&allocationv1.AllocateRequest{Subject: &allocationv1.AllocateRequest_PodUid{PodUid: webUID}, ContainerName: "app"},
		}},
		{"remove default/web", "", []proto.Message{
			&allocationv1.ListRequest{Namespace: "default", Name: "web"},
			&admissionv1.RemovePodRequest{PodUid: webUID},
		}},
		{"sync --active a,b --active c -f -", "d\n", []proto.Message{
			&allocationv1.ListRequest{PageSize: 500},
			&admissionv1.SyncPodsRequest{ActivePodUids: []string{"a", "b", "c", "d"}, KnownRevision: 12},
		}},
		{"sync --active default/web,shop/twin -f -", webUID + "\nweb\n", []proto.Message{
			&allocationv1.ListRequest{PageSize: 500},
			&admissionv1.SyncPodsRequest{ActivePodUids: []string{webUID, otherUID, webUID, webUID}, KnownRevision: 12},
		}},
		{"sync --active a --known-revision 9 --dry-run", "", []proto.Message{
			&allocationv1.ListRequest{PageSize: 500},
			&admissionv1.SyncPodsRequest{ActivePodUids: []string{"a"}, KnownRevision: 9, DryRun: true},
		}},
		{"sync --active a --owner kubernetes", "", []proto.Message{
			&allocationv1.ListRequest{PageSize: 500},
			&admissionv1.SyncPodsRequest{ActivePodUids: []string{"a"}, KnownRevision: 12, Owner: "kubernetes"},
		}},
		{"sync --none --all-owners", "", []proto.Message{
			&allocationv1.ListRequest{PageSize: 500},
			&admissionv1.SyncPodsRequest{AllowEmpty: true, KnownRevision: 12, AllOwners: true},
		}},
		{"remove " + webUID + " --owner berthlet", "", []proto.Message{
			&admissionv1.RemovePodRequest{PodUid: webUID, Owner: "berthlet"},
		}},
		{"get pods --owner berthlet", "", []proto.Message{
			&allocationv1.ListRequest{Owner: "berthlet", PageSize: 500},
		}},
		{"sync --none", "", []proto.Message{
			&allocationv1.ListRequest{PageSize: 500},
			&admissionv1.SyncPodsRequest{AllowEmpty: true, KnownRevision: 12},
		}},
		{"get pods -n shop --resource example.com/gpu", "", []proto.Message{
			&allocationv1.ListRequest{Namespace: "shop", Resource: "example.com/gpu", PageSize: 500},
		}},
		{"container start " + webUID + " app --id c1 --pid 42", "", []proto.Message{
			&lifecyclev1.PreStartContainerRequest{PodUid: webUID, ContainerName: "app", ContainerId: "c1", Pid: 42},
		}},
		{"policy set --topology-manager-policy none --cpu-manager-policy-options a=1,b= --kube-reserved= --reserved-cpus= --dry-run", "", []proto.Message{
			&topologyv1.SetPolicyRequest{
				DryRun: true, TopologyPolicy: new("none"), CpuOptions: &topologyv1.Values{Values: map[string]string{"a": "1", "b": ""}},
				KubeReserved: &topologyv1.Values{}, ReservedCpus: &typesv1.CPUSet{},
			},
		}},
		{"policy set --from-configuration --memory-manager-policy Static", "", []proto.Message{
			&topologyv1.SetPolicyRequest{FromConfiguration: true, MemoryPolicy: new("Static")},
		}},
		{"policy set --eviction-hard= --reserved-memory 0:memory=1Gi,hugepages-2Mi=4Mi;3:memory=2Gi --topology-max-nodes 0", "",
			[]proto.Message{
				&topologyv1.SetPolicyRequest{
					EvictionHard: &topologyv1.Values{}, TopologyMaxNodes: new(uint32(0)),
					ReservedMemory: &topologyv1.ReservedMemories{Nodes: []*topologyv1.ReservedMemory{
						{NumaNode: 0, Limits: map[string]string{"memory": "1Gi", "hugepages-2Mi": "4Mi"}},
						{NumaNode: 3, Limits: map[string]string{"memory": "2Gi"}},
					}},
				},
			}},
		{"policy set --reserved-memory=", "", []proto.Message{
			&topologyv1.SetPolicyRequest{ReservedMemory: &topologyv1.ReservedMemories{}},
		}},
		{"hints -f -", podYAML("web"), []proto.Message{
			&topologyv1.GetHintsRequest{Pod: podOf("web"), ContainerName: "app"},
			&topologyv1.MergeRequest{Providers: []*topologyv1.ProviderHints{
				{Provider: "device", TopologyHints: []*typesv1.TopologyHints{{
					Resource: "example.com/gpu", Kind: typesv1.TopologyHintsKind_TOPOLOGY_HINTS_KIND_IMPOSSIBLE,
					Reason: "2 devices are needed, and 1 is free",
				}}},
				{Provider: "cpu", TopologyHints: []*typesv1.TopologyHints{{
					Resource: "cpu", Kind: typesv1.TopologyHintsKind_TOPOLOGY_HINTS_KIND_OPTIONS,
					Hints: []*typesv1.TopologyHint{hintOf(true, 0), hintOf(true, 1), hintOf(false, 0, 1)},
				}}},
				{Provider: "memory", TopologyHints: []*typesv1.TopologyHints{{
					Resource: "memory", Kind: typesv1.TopologyHintsKind_TOPOLOGY_HINTS_KIND_OPTIONS,
					Hints: []*typesv1.TopologyHint{hintOf(true, 1)},
				}}},
			}},
		}},
	} {
		t.Run(row.args, func(t *testing.T) {
			t.Parallel()
			f := &fake{}
			r := invoke(t.Context(), f.start(t), row.stdin, strings.Fields(row.args)...)
			if r.code != command.ExitDone {
				t.Fatalf("exit %d: %s", r.code, r.err)
			}
			if len(f.asked) != len(row.want) {
				t.Fatalf("asked %v, want %v", f.asked, row.want)
			}
			for i, want := range row.want {
				if !proto.Equal(f.asked[i], want) {
					t.Errorf("asked %v, want %v", f.asked[i], want)
				}
			}
		})
	}
}

// TestAdmissionID: every attempt has a name, also without --admission-id.
func TestAdmissionID(t *testing.T) {
	t.Parallel()
	f := &fake{}
	if r := invoke(t.Context(), f.start(t), podYAML("web"), "admit", "-f", "-"); r.code != command.ExitDone {
		t.Fatal(r)
	}
	if id := f.asked[0].(*admissionv1.AdmitRequest).GetAdmissionId(); id == "" {
		t.Error("the attempt has no name")
	}
}

func TestExport(t *testing.T) {
	t.Parallel()
	f := &fake{}
	path := filepath.Join(t.TempDir(), "machine.json")
	r := invoke(t.Context(), f.start(t), "", "topology", "--export", path)
	if r != (result{}) {
		t.Fatal(r)
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != string(fakeSnapshot) {
		t.Errorf("%q, %v", got, err)
	}
}

// TestPodResourcesSocket reads another socket than berthd's.
func TestPodResourcesSocket(t *testing.T) {
	t.Parallel()
	f := &fake{}
	r := invoke(t.Context(), "/nowhere.sock", "", "podresources", "list", "--socket", f.start(t))
	if r.code != command.ExitDone || !strings.Contains(r.out, "gpu-0") {
		t.Error(r)
	}
}

func TestNobodyListens(t *testing.T) {
	t.Parallel()
	r := invoke(t.Context(), "/nowhere/berth.sock", "", "get", "pods")
	want := "berthctl: dial unix /nowhere/berth.sock: connect: no such file or directory\n" +
		"hint: is berthd running? --endpoint or BERTH_ENDPOINT say where its socket is\n"
	if r.code != command.ExitError || r.out != "" || r.err != want {
		t.Errorf("exit %d, %q, %q", r.code, r.out, r.err)
	}
}

// TestNobodyAnswers: who takes the connection and never answers is not taken for a berthd that does not run, and the
// message has the time limit.
func TestNobodyAnswers(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "b")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path := filepath.Join(dir, "berth.sock")
	mute, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = mute.Close() })
	r := invoke(t.Context(), path, "", "get", "pods", "--timeout", "20ms")
	if r.code != command.ExitError || !strings.HasPrefix(r.err, "berthctl: berthd did not answer within 20ms (--timeout): ") ||
		!strings.HasSuffix(r.err, "\nhint: --timeout gives it more time\n") {
		t.Errorf("exit %d, %q", r.code, r.err)
	}
	var out, errs bytes.Buffer
	code := run(t.Context(), command.Env{In: strings.NewReader(""), Out: &out, Err: &errs, Now: time.Now,
		Getenv: func(string) string { return "" },
		Dial: func(ctx context.Context, endpoint string) (*berth.Client, error) {
			return berth.Dial(ctx, endpoint, berth.Options{ConnectTimeout: 20 * time.Millisecond})
		}}, []string{"get", "pods", "--endpoint", path})
	want := "berthctl: berthd at unix://" + path + " accepted the connection and did not answer within 20ms\n" +
		"hint: berthd is running, but it hangs or the machine is overloaded: read its log\n"
	if code != command.ExitError || errs.String() != want {
		t.Errorf("exit %d, %q, want %q", code, errs.String(), want)
	}
}

func TestInterrupt(t *testing.T) {
	t.Parallel()
	f := &fake{}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if r := invoke(ctx, f.start(t), "", "get", "pods"); r.code != command.ExitInterrupted || r.err != "berthctl: interrupted\n" {
		t.Errorf("exit %d, %q", r.code, r.err)
	}
}

// TestInternalError points to the log, where the request has its id.
func TestInternalError(t *testing.T) {
	t.Parallel()
	f := &fake{}
	r := invoke(t.Context(), f.start(t), podYAML("panic"), "admit", "-f", "-")
	if r.code != command.ExitError || !strings.Contains(r.err, "panic in berthd") ||
		!strings.Contains(r.err, "hint: see berthd's log for request ") {
		t.Errorf("exit %d, %q", r.code, r.err)
	}
}

// TestEmptyNameIsNobody: an unset variable of a script must not mean whichever pod
// there is.
func TestEmptyNameIsNobody(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"remove", ""}, {"describe", "pod", ""}, {"describe", "container", "default/web", ""}, {"explain", ""}, {"get", "pods", ""},
		{"container", "stop", ""},
	} {
		r := invoke(t.Context(), "/nowhere/berth.sock", "", args...)
		if r.code != command.ExitUsage || !strings.Contains(r.err, " is empty\n") {
			t.Errorf("%q: exit code %d, %s", args, r.code, r.err)
		}
	}
}

func TestFail(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		err  error
		code int
		want string
	}{
		{command.Verdict(command.ExitRejected), command.ExitRejected, ""},
		{fmt.Errorf("pod: %w", command.Verdict(command.ExitDeferred)), command.ExitDeferred, ""},
		{errors.New("one\ntwo\r\n"), command.ExitError, "berthctl: one; two\n"},
		{&command.UsageError{Verb: "berthctl get", Err: errors.New("x")}, command.ExitUsage,
			"berthctl: x\nhint: see 'berthctl get --help'\n"},
		{
			&berth.Error{Code: codes.PermissionDenied, Message: "no role"}, command.ExitError,
			"berthctl: no role\nhint: root has all roles; 'access' in berthd's configuration gives them to other users and groups\n",
		},
		{
			&berth.Error{Code: codes.Unavailable, Message: "dial unix /nowhere/b.sock: connect: permission denied"}, command.ExitError,
			"berthctl: dial unix /nowhere/b.sock: connect: permission denied\n" +
				"hint: run it as root, or ask for access: 'access' in berthd's configuration gives it to users and groups\n",
		},
		{
			&berth.Error{Code: codes.Unimplemented, Message: "unknown method"}, command.ExitError,
			"berthctl: unknown method\nhint: this berthd is older than this berthctl, or the other way round\n",
		},
		{
			&berth.Error{Code: codes.InvalidArgument, Message: "request is invalid: a: b",
				Fields: []berth.Violation{{Field: "a", Description: "b"}}}, command.ExitError,
			"berthctl: request is invalid: a: b\n",
		},
		{
			&berth.Error{Code: codes.InvalidArgument, Message: "bad", Fields: []berth.Violation{{Field: "a", Description: "b"}}},
			command.ExitError,
			"berthctl: bad\n  a: b\n",
		},
	} {
		var errs strings.Builder
		c := &command.Ctl{Env: command.Env{Err: &errs}}
		if code := c.Fail(row.err); code != row.code || errs.String() != row.want {
			t.Errorf("%v: exit %d, %q; want %d, %q", row.err, code, errs.String(), row.code, row.want)
		}
	}
}

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("no space left on device") }

// TestOutputThatCannotBeWritten is an error, also after the work is done.
func TestOutputThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	f := &fake{}
	path := f.start(t)
	for _, args := range []string{"get pods", "get pods -o json", "get pods -o yaml", "hints -f -", "version"} {
		var errs strings.Builder
		code := run(t.Context(), command.Env{
			In: strings.NewReader(hintPod), Out: full{}, Err: &errs, Now: time.Now, Getenv: func(string) string { return "" },
			Dial: func(ctx context.Context, _ string) (*berth.Client, error) {
				return berth.Dial(ctx, path, berth.Options{})
			},
		}, strings.Fields(args))
		want := "berthctl: no space left on device\n"
		if strings.Contains(args, "-o ") {
			want = `{"error":{"code":"UNKNOWN","message":"no space left on device","retryable":false}}` + "\n"
		}
		if code != command.ExitError || errs.String() != want {
			t.Errorf("%s: exit %d, %q", args, code, errs.String())
		}
	}
}

func TestVersion(t *testing.T) {
	t.Parallel()
	path := (&fake{}).start(t)
	nobody := filepath.Join(t.TempDir(), "nobody.sock")
	server := build{Version: "v1.2.3", Commit: "c0ffee", Go: "go1.26", System: "linux/amd64"}
	for _, row := range []struct {
		endpoint, args, want string // want of the second line
		server               bool
	}{
		{path, "version", "berthd v1.2.3, go1.26, linux/amd64", true},
		{nobody, "version", "berthd does not say: ", false},
		{path, "version --client", "", false},
	} {
		r := invoke(t.Context(), row.endpoint, "", strings.Fields(row.args)...)
		first, second, _ := strings.Cut(r.out, "\n")
		if r.code != command.ExitDone || !strings.HasPrefix(first, "berthctl ") || !strings.HasPrefix(second, row.want) ||
			(row.want == "") != (second == "") {
			t.Error(r)
		}
		var b builds
		r = invoke(t.Context(), row.endpoint, "", append(strings.Fields(row.args), "-o", "json")...)
		if err := json.Unmarshal([]byte(r.out), &b); err != nil || b.build != thisBuild() || (b.Server != nil) != row.server ||
			row.server && *b.Server != server {
			t.Errorf("%v, %v", r, err)
		}
	}
}

func TestCompletion(t *testing.T) {
	t.Parallel()
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		if r := invoke(t.Context(), "", "", "completion", shell); r.code != command.ExitDone || len(r.out) < 1000 {
			t.Errorf("%s: exit %d, %d bytes", shell, r.code, len(r.out))
		}
	}
	for args, want := range map[string]string{
		"__complete get ":             "pods\t",
		"__complete get pods -o ":     "wide\n",
		"__complete container st":     "start\t",
		"__complete get pods --name":  "--namespace\t",
		"__complete podresources al":  "allocatable\t",
		"__complete describe contain": "container\t",
	} {
		list := strings.Split(strings.TrimPrefix(args, "__complete "), " ")
		if r := invoke(t.Context(), "", "", append([]string{"__complete"}, list...)...); r.code != command.ExitDone ||
			!strings.Contains(r.out, want) {
			t.Errorf("%s: exit %d, %q", args, r.code, r.out)
		}
	}
}

// TestEveryVerbShowsExamples: a person can start from the help of each verb.
func TestEveryVerbShowsExamples(t *testing.T) {
	t.Parallel()
	c := &command.Ctl{}
	verbs := 0
	for pending := root(c).Commands(); len(pending) > 0; pending = pending[1:] {
		cmd := pending[0]
		pending = append(pending, cmd.Commands()...)
		if cmd.HasSubCommands() {
			continue
		}
		verbs++
		if !strings.Contains(cmd.Example, cmd.CommandPath()+" ") && !strings.Contains(cmd.Example, cmd.CommandPath()+"\n") &&
			!strings.HasSuffix(cmd.Example, cmd.CommandPath()) {
			t.Errorf("%s: no example of it in %q", cmd.CommandPath(), cmd.Example)
		}
		if cmd.Short == "" || strings.HasSuffix(cmd.Short, ".") {
			t.Errorf("%s: short text %q", cmd.CommandPath(), cmd.Short)
		}
	}
	if verbs < 20 {
		t.Errorf("only %d verbs were looked at", verbs)
	}
}

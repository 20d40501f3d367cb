package main

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	inspectv1 "github.com/berthd/berth/api/berth/inspect/v1"
	lifecyclev1 "github.com/berthd/berth/api/berth/lifecycle/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/hack/testing/script"
	"github.com/berthd/berth/managers/cpuset"
)

// readers connects to the podresources socket.
func (d *daemon) readers() podresources.PodResourcesListerClient {
	d.t.Helper()
	conn, err := grpc.NewClient("unix://"+d.root+"/pod-resources/kubelet.sock", grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() { _ = conn.Close() })
	return podresources.NewPodResourcesListerClient(conn)
}

// needCPUs skips tests that cannot have an exclusive CPU beside the reserved one.
func needCPUs(t *testing.T, n int) {
	t.Helper()
	if have := runtime.NumCPU(); have < n {
		t.Skipf("needs %d CPUs, this machine has %d", n, have)
	}
}

// TestMainJob is the whole story on the real machine: a plugin registers, a pod
// is admitted with a CPU and a device of its own, real processes run where the
// answers had, readers see it, a crash changes nothing, removal frees all.
func TestMainJob(t *testing.T) {
	t.Parallel()
	needCPUs(t, 2)
	n := newNode(t)
	n.needKernel()
	mainJob(t, n)
}

// mainJob is what berthd is for, on a node that has no pods yet.
func mainJob(t *testing.T, n *node) {
	t.Helper()
	d := n.start()
	d.plugin("g0@0 g1@0")

	// A container of the shared pool runs on every CPU first.
	d.admitted(burstable("shared"))
	other := n.stopped()
	d.run(other, "shared", "main", "c-shared")
	all := other.allowed()
	if all.Len() != runtime.NumCPU() {
		t.Errorf("the shared container runs on %s of %d CPUs", all, runtime.NumCPU())
	}

	answer := d.admitted(guaranteed("pinned", 1, 1))
	own, err := cpuset.Parse(answer.GetAllocations()[0].GetCpus().GetList())
	if err != nil || own.Len() != 1 || own.Contains(0) || !answer.GetAllocations()[0].GetExclusiveCpus() {
		t.Fatalf("CPUs %s, %v", own, err)
	}
	for id := range own.All() {
		if !all.Contains(id) {
			t.Fatalf("CPU %d is none of this machine", id)
		}
	}
	alloc, err := d.allocation.Allocate(d.ctx(),
		&allocationv1.AllocateRequest{Subject: &allocationv1.AllocateRequest_PodUid{PodUid: "pinned"}, ContainerName: "main"})
	if err != nil {
		t.Fatal(err)
	}
	if alloc.GetResources().GetCpusetCpus().GetList() != own.String() || alloc.GetResources().GetCpuShares() != 1024 ||
		alloc.GetResources().GetMemoryLimitBytes() != 16<<20 {
		t.Errorf("linux resources %v", alloc.GetResources())
	}
	if len(alloc.GetEdits().GetDevices()) != 1 || len(alloc.GetEdits().GetEnvs()) == 0 || len(alloc.GetEdits().GetMounts()) == 0 {
		t.Errorf("what the plugin answered is missing: %v", alloc)
	}

	p := n.stoppedWith(4)
	started := d.run(p, "pinned", "main", "c-pinned")
	p.works()
	if started.GetCpusetCpus().GetList() != own.String() || started.GetCgroupPath() != alloc.GetCgroupPath() {
		t.Errorf("%v; Allocate said CPUs %s in %s", started, own, alloc.GetCgroupPath())
	}
	if got := p.allowed(); got != own {
		t.Errorf("the process may run on %s, the answer named %s", got, own)
	}
	if got := other.allowed(); got.Overlaps(own) || got != all.Minus(own) {
		t.Errorf("the shared container still runs on %s beside the owner of %s", got, own)
	}
	n.podValues(t, answer.GetCgroupParent())
	d.readersSee(t, own)
	d.check()

	before := d.pods()
	d.kill()
	d = n.start()
	d.expectDevices(2) // the plugin has noticed the restart
	if after := d.pods(); !reflect.DeepEqual(texts(before), texts(after)) {
		t.Errorf("a crash changed the allocations:\n%v\n%v", before, after)
	}
	if p.allowed() != own || other.allowed() != all.Minus(own) {
		t.Errorf("a crash moved the processes to %s and %s", p.allowed(), other.allowed())
	}
	if again := d.admitted(guaranteed("pinned", 1, 1)); !reflect.DeepEqual(again.GetAllocations()[0].GetCpus().GetList(), own.String()) {
		t.Errorf("the same pod got another answer: %v", again)
	}
	d.readersSee(t, own)

	d.remove("pinned")
	if err := p.cmd.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("the process was not killed: %v", err)
	}
	n.eventually("the shared container gets the CPU back", func() bool { return other.allowed() == all })
	d.remove("shared")
	d.check()
	if left := n.podCgroups(); len(left) != 0 {
		t.Errorf("cgroups left: %v", left)
	}
	d.stop()
	for _, socket := range []string{"berth.sock", "pod-resources/kubelet.sock", "device-plugins/kubelet.sock"} {
		if _, err := os.Lstat(filepath.Join(n.root, socket)); err == nil {
			t.Errorf("%s stayed after an orderly end", socket)
		}
	}
}

// texts makes allocations comparable. The health of a device is no part of one:
// it is what the plugin reports now.
func texts(pods map[string]*typesv1.PodAllocation) map[string]string {
	out := map[string]string{}
	for uid, p := range pods {
		p = proto.CloneOf(p)
		for _, c := range p.GetContainers() {
			for _, claim := range c.GetClaims() {
				for _, d := range claim.GetDevice().GetDevices() {
					d.Health, d.HealthHistory = typesv1.Health_HEALTH_UNSPECIFIED, nil
				}
			}
		}
		out[uid] = protojson.Format(p)
	}
	return out
}

// podValues looks at the pod's cgroup in the kernel, of whichever version.
func (n *node) podValues(t *testing.T, parent string) {
	t.Helper()
	v1 := map[string]string{
		"cpu/" + parent + "/cpu.shares":                     "1024",
		"memory/" + parent + "/memory.limit_in_bytes":       strconv.Itoa(16 << 20),
		"cpu/" + filepath.Dir(parent) + "/cpu.cfs_quota_us": "-1",
	}
	v2 := map[string]string{
		parent + "/cpu.weight":            "39",
		parent + "/memory.max":            strconv.Itoa(16 << 20),
		filepath.Dir(parent) + "/cpu.max": "max 100000",
	}
	want := v1
	if _, err := os.Stat(filepath.Join(cgroupMount, "cgroup.controllers")); err == nil {
		want = v2
	}
	for file, value := range want {
		text, err := os.ReadFile(filepath.Join(cgroupMount, file))
		if err != nil || strings.TrimSpace(string(text)) != value {
			t.Errorf("%s is %q, %v; want %s", file, text, err, value)
		}
	}
}

// readersSee looks at the allocation of pod "pinned" through the kubelet's own
// protocol.
func (d *daemon) readersSee(t *testing.T, own cpuset.Set) {
	t.Helper()
	r := d.readers()
	get, err := r.Get(d.ctx(), &podresources.GetPodResourcesRequest{PodName: "pinned", PodNamespace: "default"})
	if err != nil {
		t.Fatal(err)
	}
	c := get.GetPodResources().GetContainers()[0]
	if len(c.GetCpuIds()) != 1 || !own.Contains(int(c.GetCpuIds()[0])) {
		t.Errorf("Get says CPUs %v, the answer named %s", c.GetCpuIds(), own)
	}
	if len(c.GetDevices()) != 1 || c.GetDevices()[0].GetResourceName() != gpu || c.GetDevices()[0].GetDeviceIds()[0] != "g0" {
		t.Errorf("Get says devices %v", c.GetDevices())
	}
	list, err := r.List(d.ctx(), &podresources.ListPodResourcesRequest{})
	if err != nil || len(list.GetPodResources()) != 2 {
		t.Errorf("List: %v, %v", list, err)
	}
	d.eventually("allocatable devices are listed", func() bool {
		resp, err := r.GetAllocatableResources(d.ctx(), &podresources.AllocatableResourcesRequest{})
		return err == nil && len(resp.GetDevices()) == 2 && len(resp.GetCpuIds()) == runtime.NumCPU()-1
	})
}

func TestBadInput(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	d := n.start()
	many := guaranteed("many", 1, 0)
	for i := range 1000 {
		many.Spec.Containers = append(many.Spec.Containers, &typesv1.Container{Name: "c" + strconv.Itoa(i)})
	}
	for name, c := range map[string]struct {
		pod   *typesv1.Pod
		field string
	}{
		"no pod":     {nil, "pod"},
		"no uid":     {pod("", nil, nil), "pod.metadata.uid"},
		"negative":   {pod("x", map[string]string{"cpu": "-1"}, nil), `pod.spec.containers[0].resources.requests["cpu"]`},
		"unparsable": {pod("x", map[string]string{"memory": "much"}, nil), `pod.spec.containers[0].resources.requests["memory"]`},
		"above limit": {pod("x", map[string]string{"cpu": "2"}, map[string]string{"cpu": "1"}),
			`pod.spec.containers[0].resources.requests["cpu"]`},
		"malformed name": {pod("x", map[string]string{"a/b/c": "1"}, map[string]string{"a/b/c": "1"}),
			`pod.spec.containers[0].resources.limits["a/b/c"]`},
		"1001 containers": {many, "pod.spec.containers"},
		"two of a name": {&typesv1.Pod{
			Metadata: &typesv1.PodMetadata{Name: "x", Uid: "x"},
			Spec:     &typesv1.PodSpec{Containers: []*typesv1.Container{{Name: "c"}, {Name: "c"}}},
		}, "pod.spec.containers[1].name"},
	} {
		req := &admissionv1.AdmitRequest{}
		if c.pod != nil {
			req.Subject = &admissionv1.AdmitRequest_Pod{Pod: c.pod}
		}
		_, err := d.admission.Admit(n.ctx(), req)
		if status.Code(err) != codes.InvalidArgument || !slices.Contains(fields(err), c.field) {
			t.Errorf("%s: %v with fields %q; want INVALID_ARGUMENT with %s", name, err, fields(err), c.field)
		}
	}
	if _, err := d.allocation.Allocate(n.ctx(),
		&allocationv1.AllocateRequest{Subject: &allocationv1.AllocateRequest_PodUid{PodUid: "ghost"},
			ContainerName: "main"}); status.Code(err) != codes.NotFound {
		t.Errorf("unknown pod: %v", err)
	}
	d.admitted(burstable("known"))
	if _, err := d.allocation.Allocate(n.ctx(),
		&allocationv1.AllocateRequest{Subject: &allocationv1.AllocateRequest_PodUid{PodUid: "known"},
			ContainerName: "ghost"}); status.Code(err) != codes.NotFound {
		t.Errorf("unknown container: %v", err)
	}
	if _, err := d.lifecycle.PreStartContainer(n.ctx(), &lifecyclev1.PreStartContainerRequest{PodUid: "ghost", ContainerName: "main",
		ContainerId: "i"}); status.Code(err) != codes.NotFound {
		t.Errorf("unknown pod: %v", err)
	}
	_, err := d.admission.Admit(n.ctx(), &admissionv1.AdmitRequest{Subject: &admissionv1.AdmitRequest_Pod{Pod: guaranteed("known", 1, 0)}})
	if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "Resize") {
		t.Errorf("same uid, other spec: %v", err)
	}
	big := burstable("big")
	big.Metadata.Annotations = map[string]string{"a": strings.Repeat("x", 5<<20)}
	if _, err := d.admission.Admit(n.ctx(),
		&admissionv1.AdmitRequest{Subject: &admissionv1.AdmitRequest_Pod{Pod: big}}); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("5 MiB: %v", err)
	}
	if got := d.pods(); len(got) != 1 {
		t.Errorf("pods %v, want only the one that was admitted", got)
	}
	d.check()
}

func TestPluginFaultsRejectAndLeaveNothing(t *testing.T) {
	t.Parallel()
	needCPUs(t, 2)
	for name, c := range map[string]struct {
		manner  script.Manner
		timeout string
	}{
		"refuses":        {script.Refuse, "1m"},
		"hangs":          {script.Hang, "2s"},
		"garbage":        {script.Garbage, "1m"},
		"dies":           {script.Die, "1m"},
		"answers nobody": {script.Empty, "1m"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			if err := os.WriteFile(n.root+"/berth.yaml",
				[]byte("apiVersion: config.berthd.github.io/v1alpha1\nkind: BerthConfiguration\nverdicts: {deferred: false}\nproviders: {allocateTimeout: "+c.timeout+"}\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			d := n.start("--config", n.root+"/berth.yaml")
			p := d.plugin("g0@0 g1@0")
			p.Behave(script.Allocate, c.manner)
			resp := d.admit(guaranteed("x", 1, 1))
			if resp.GetVerdict() != admissionv1.Verdict_VERDICT_REJECTED || resp.GetReason() != "UnexpectedAdmissionError" ||
				!strings.HasPrefix(resp.GetMessage(), "Allocate failed due to ") || !strings.Contains(resp.GetMessage(), gpu) {
				t.Errorf("%s %s: %s", resp.GetVerdict(), resp.GetReason(), resp.GetMessage())
			}
			if len(d.pods()) != 0 {
				t.Errorf("left in the ledger: %v", d.pods())
			}
			d.check()
			if c.manner == script.Die {
				p = d.plugin("g0@0 g1@0")
			}
			p.Behave(script.Allocate, script.Well)
			if c.manner == script.Hang { // on a busy machine its short time may not do
				d.eventually("it answers in time", func() bool {
					return d.admit(guaranteed("y", 1, 2)).GetVerdict() == admissionv1.Verdict_VERDICT_ADMITTED
				})
			}
			d.admitted(guaranteed("y", 1, 2))
		})
	}
}

func TestSecondDaemonIsRefused(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	d := n.start()
	out, err := n.command().CombinedOutput()
	if err == nil || !strings.Contains(string(out), fmt.Sprintf("pid %d", d.Cmd.Process.Pid)) {
		t.Errorf("%v: %s; want a refusal with pid %d", err, out, d.Cmd.Process.Pid)
	}
	d.admitted(burstable("still-served"))
}

func TestLongSocketPathIsRefused(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	out, err := n.command("--listen", n.root+"/"+strings.Repeat("x", 200)).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "the kernel takes at most 107") {
		t.Errorf("%v: %s", err, out)
	}
}

// damageLedger flips bits in every page of the ledger's file except the two meta pages.
func (n *node) damageLedger() (path string) {
	n.t.Helper()
	path = filepath.Join(n.root, "state", "ledger.db")
	text, err := os.ReadFile(path)
	if err != nil {
		n.t.Fatal(err)
	}
	for i := 2 * os.Getpagesize(); i < len(text); i++ { // all pages behind the two meta pages
		text[i] ^= 0x5a
	}
	if err := os.WriteFile(path, text, 0o600); err != nil {
		n.t.Fatal(err)
	}
	return path
}

// TestStrictState: an operator who inspects a damaged ledger first finds it where
// it was, and the pods as they were.
func TestStrictState(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	d := n.start()
	d.admitted(burstable("a"))
	d.kill()
	path := n.damageLedger()
	out, err := n.command("--strict-state").CombinedOutput()
	if err == nil || !strings.Contains(string(out), path) || !strings.Contains(string(out), "without strictState") {
		t.Errorf("%v: %s; want a refusal that names %s and what to do", err, out, path)
	}
	if aside, err := filepath.Glob(path + ".*"); err != nil || len(aside) > 0 {
		t.Errorf("%v, %v: the file was touched", aside, err)
	}
	if n.kernel && !n.podCgroups()["a"] {
		t.Error("the cgroup of a pod that may live was removed")
	}
}

func TestDamagedLedgerIsSetAside(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	d := n.start()
	d.admitted(burstable("a"))
	d.kill()
	path := n.damageLedger()
	d = n.start()
	check, err := d.inspect.Check(n.ctx(), &inspectv1.CheckRequest{})
	if err != nil || !strings.Contains(strings.Join(check.GetStartReport(), "\n"), "set aside") {
		t.Errorf("%v, %v: want a report on the damage", check, err)
	}
	aside, err := filepath.Glob(path + ".damaged-*")
	if err != nil || len(aside) == 0 {
		t.Errorf("%v, %v: the damaged file is gone", aside, err)
	}
	if n.kernel && !n.podCgroups()["a"] {
		t.Error("the cgroup of a pod that may live was removed")
	}
	needCPUs(t, 2)
	// What the living pod holds is known from its claim record: nothing.
	if c := d.cases()["a"]; !c.GetWaits() || c.GetSource() != inspectv1.PodSource_POD_SOURCE_CLAIM_RECORD {
		t.Errorf("case %v", c)
	}
	d.admitted(guaranteed("b", 1, 0))
	d.kill() // what is known of it outlives another crash
	d = n.start()
	if c := d.cases()["a"]; !c.GetWaits() {
		t.Errorf("case %v", c)
	}
	if _, err := d.admission.SyncPods(n.ctx(), &admissionv1.SyncPodsRequest{AllowEmpty: true, KnownRevision: d.revision()}); err != nil {
		t.Fatal(err)
	}
	if n.kernel && n.podCgroups()["a"] {
		t.Error("the cgroup of a pod that does not live is left")
	}
	d.admitted(guaranteed("b", 1, 0))
	d.check()
}

// fields lists the paths of the field violations of an error.
func fields(err error) (paths []string) {
	for _, d := range status.Convert(err).Details() {
		if bad, ok := d.(*errdetails.BadRequest); ok {
			for _, v := range bad.GetFieldViolations() {
				paths = append(paths, v.GetField())
			}
		}
	}
	return paths
}

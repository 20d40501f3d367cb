package main

import (
	"context"
	"github.com/berthd/berth/clients/berth"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	cgroupv1 "github.com/berthd/berth/api/berth/cgroup/v1"
	nodev1 "github.com/berthd/berth/api/berth/node/v1"
	qosv1 "github.com/berthd/berth/api/berth/qos/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/hack/testing/nodetest"
	"github.com/berthd/berth/managers/cpuset"
)

// file finds a control file of one of the node's cgroups, under whichever name and
// in whichever hierarchy this system has it.
func (n *node) file(cgroup string, names ...string) (path, text string) {
	n.t.Helper()
	for _, name := range names {
		found, _ := filepath.Glob(filepath.Join(cgroupMount, "*", n.path(cgroup), name))
		for _, path := range append(found, filepath.Join(cgroupMount, n.path(cgroup), name)) {
			if text, err := os.ReadFile(path); err == nil {
				return path, strings.TrimSpace(string(text))
			}
		}
	}
	n.t.Fatalf("cgroup %s has none of %q", cgroup, names)
	return "", ""
}

func (n *node) memoryLimit(cgroup string) string {
	n.t.Helper()
	_, text := n.file(cgroup, "memory.max", "memory.limit_in_bytes")
	return text
}

// limited makes a Burstable pod with a memory limit.
func limited(uid, cpu, memory string) *typesv1.Pod {
	return pod(uid, map[string]string{"cpu": cpu, "memory": "8Mi"}, map[string]string{"cpu": "1", "memory": memory})
}

// TestResizeOnTheMachine changes a pod while its process runs.
func TestResizeOnTheMachine(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.needKernel()
	d := n.start()
	d.admitted(limited("a", "100m", "32Mi"))
	p := n.stoppedWith(4)
	d.run(p, "a", "main", "c-a")
	p.works()
	const podGroup, own = "kubepods/burstable/poda", "kubepods/burstable/poda/main"
	resize := func(memory string, dry bool) *admissionv1.ResizeResponse {
		t.Helper()
		req := berth.ResizeTo(limited("a", "200m", memory))
		req.DryRun = dry
		resp, err := d.admission.Resize(d.ctx(), req)
		if err != nil {
			t.Fatal(err)
		}
		return resp
	}
	expect := func(when string, mib int) {
		t.Helper()
		for _, cgroup := range []string{podGroup, own} {
			if got := n.memoryLimit(cgroup); got != strconv.Itoa(mib<<20) {
				t.Errorf("%s: %s is limited to %s, want %d MiB", when, cgroup, got, mib)
			}
		}
	}
	expect("admitted", 32)
	if v := resize("64Mi", true); v.GetVerdict() != admissionv1.Verdict_VERDICT_ADMITTED {
		t.Errorf("dry: %v", v)
	}
	expect("dry", 32)
	if v := resize("64Mi", false); v.GetVerdict() != admissionv1.Verdict_VERDICT_ADMITTED {
		t.Errorf("up: %v", v)
	}
	expect("up", 64)
	if v := resize("48Mi", false); v.GetVerdict() != admissionv1.Verdict_VERDICT_ADMITTED {
		t.Errorf("down: %v", v)
	}
	expect("down", 48)
	// The process uses more than this.
	tight := limited("a", "200m", "1Mi")
	tight.Spec.Containers[0].Resources.Requests["memory"] = "1Mi"
	v, err := d.admission.Resize(d.ctx(), berth.ResizeTo(tight))
	if err != nil || v.GetVerdict() != admissionv1.Verdict_VERDICT_DEFERRED || !strings.Contains(v.GetMessage(), "below current usage") {
		t.Errorf("below use: %v, %v", v, err)
	}
	expect("refused", 48)
	_, shares := n.file("kubepods/burstable", "cpu.weight", "cpu.shares")
	if shares != "204" && shares != "8" {
		t.Errorf("the tier weighs %s, want 200m as shares (204) or weight (8)", shares)
	}
	d.kill()
	d = n.start()
	expect("after a crash", 48)
	if d.admit(limited("a", "200m", "48Mi")).GetVerdict() != admissionv1.Verdict_VERDICT_ADMITTED {
		t.Error("the pod as it was resized is not known")
	}
	d.remove("a")
	d.check()
}

// TestDriftOnTheMachine changes control files behind the daemon's back.
func TestDriftOnTheMachine(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.needKernel()
	n.configure("cgroups: {reconcilePeriod: 20ms}\n")
	d := n.start()
	d.admitted(limited("a", "100m", "32Mi"))
	path, before := n.file("kubepods/burstable/poda", "memory.max", "memory.limit_in_bytes")
	// A pass has to see its own values in force before it can detect drift.
	list := func() *cgroupv1.ListResponse {
		t.Helper()
		resp, err := cgroupv1.NewCgroupServiceClient(d.conn).List(d.ctx(), &cgroupv1.ListRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return resp
	}
	n.eventually("the drift is reported", func() bool {
		if err := os.WriteFile(path, []byte(strconv.Itoa(16<<20)), 0); err != nil {
			t.Fatal(err)
		}
		n.eventually("the limit is repaired", func() bool {
			text, err := os.ReadFile(path)
			return err == nil && strings.TrimSpace(string(text)) == before
		})
		for _, drift := range list().GetDrifts() {
			if strings.HasSuffix(drift.GetCgroup(), "/poda") && drift.GetFile() == filepath.Base(path) && drift.GetWant() == before &&
				drift.GetFound() == strconv.Itoa(16<<20) {
				return true
			}
		}
		return false
	})
	d.remove("a")
}

// TestCgroupServices calls the methods of the cgroup services.
func TestCgroupServices(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.needKernel()
	d := n.start()
	d.admitted(limited("a", "100m", "32Mi"))
	cgroups, pods := cgroupv1.NewCgroupServiceClient(d.conn), cgroupv1.NewPodCgroupServiceClient(d.conn)
	root := "/" + n.cgroup + "/kubepods"
	extra := root + "/extra"
	ok := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	limit := int64(64 << 20)
	_, err := cgroups.Create(d.ctx(), &cgroupv1.CreateRequest{Name: extra, Resources: &typesv1.LinuxResources{MemoryLimitBytes: &limit}})
	ok("create", err)
	_, err = cgroups.Validate(d.ctx(), &cgroupv1.ValidateRequest{Name: extra})
	ok("validate", err)
	got, err := cgroups.GetConfig(d.ctx(), &cgroupv1.GetConfigRequest{Name: extra, Resource: "memory"})
	if err != nil || got.GetResources().GetMemoryLimitBytes() != limit || got.GetResources().CpuShares != nil {
		t.Errorf("config %v, %v", got, err)
	}
	reduced, err := cgroups.ReduceCPULimits(d.ctx(), &cgroupv1.ReduceCPULimitsRequest{Name: extra})
	if err != nil || len(reduced.GetWrites()) != 1 || n.memoryLimit("kubepods/extra") != strconv.FormatInt(limit, 10) {
		t.Errorf("reduce %v, %v", reduced, err)
	}
	_, err = cgroups.Destroy(d.ctx(), &cgroupv1.DestroyRequest{Name: extra})
	ok("destroy", err)
	state, err := cgroups.Exists(d.ctx(), &cgroupv1.ExistsRequest{Name: extra})
	if err != nil || state.GetState() != cgroupv1.State_STATE_ABSENT {
		t.Errorf("after destroy: %v, %v", state, err)
	}
	for name, want := range map[string]codes.Code{
		"/": codes.InvalidArgument, root + "/../..": codes.InvalidArgument,
		"/" + n.cgroup: codes.FailedPrecondition, root: codes.FailedPrecondition, root + "/burstable/poda": codes.FailedPrecondition,
	} {
		if _, err := cgroups.Destroy(d.ctx(), &cgroupv1.DestroyRequest{Name: name}); status.Code(err) != want {
			t.Errorf("destroy %s: %v, want %s", name, err, want)
		}
	}
	listed, err := pods.ListPods(d.ctx(), &cgroupv1.ListPodsRequest{})
	if err != nil || len(listed.GetPods()) != 1 || listed.GetPods()[0].GetPodUid() != "a" || !listed.GetPods()[0].GetKnown() {
		t.Errorf("pods %v, %v", listed, err)
	}
	named, err := pods.GetName(d.ctx(), &cgroupv1.GetNameRequest{PodUid: "a"})
	if err != nil || named.GetCgroupParent() != root+"/burstable/poda" {
		t.Errorf("name %v, %v", named, err)
	}
	plan, err := cgroups.Plan(d.ctx(), &cgroupv1.PlanRequest{})
	if err != nil || len(plan.GetWrites()) != 0 {
		t.Errorf("a tree at rest is planned to change: %v, %v", plan, err)
	}
	info, err := qosv1.NewQOSServiceClient(d.conn).GetQOSContainersInfo(d.ctx(), &qosv1.GetQOSContainersInfoRequest{})
	if err != nil || info.GetBurstable() != root+"/burstable" || info.GetGuaranteed() != root {
		t.Errorf("tiers %v, %v", info, err)
	}
	allocatable, err := nodev1.NewNodeServiceClient(d.conn).GetAllocatable(d.ctx(), &nodev1.GetAllocatableRequest{})
	if err != nil || allocatable.GetRequested()["cpu"] != "100m" || number(t, allocatable.GetAllocatable()["memory"]) <= 0 {
		t.Errorf("allocatable %v, %v", allocatable, err)
	}
	// The limit of all pods is what the node has for them.
	want := strconv.FormatInt(number(t, allocatable.GetLimit()["memory"])&^4095, 10)
	if got := n.memoryLimit("kubepods"); got != want {
		t.Errorf("all pods may use %s, want %s", got, want)
	}
	d.remove("a")
}

// TestOrphanIsSweptUp: what is left of a pod that the ledger does not know goes,
// whatever runs there.
func TestOrphanIsSweptUp(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.needKernel()
	n.configure("cgroups: {reconcilePeriod: 20ms}\n")
	d := n.start()
	d.admitted(limited("a", "100m", "32Mi"))
	p := n.stopped()
	d.run(p, "a", "main", "c-a")
	for _, dir := range n.cgroupDirs() {
		if strings.HasSuffix(dir, "/kubepods/burstable") {
			if err := os.Mkdir(filepath.Join(dir, "podlost"), 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	n.eventually("the orphan goes", func() bool { return !n.podCgroups()["podlost"] && !n.podCgroups()["lost"] })
	if _, text := n.file("kubepods/burstable/poda/main", "cgroup.procs"); text == "" {
		t.Error("a pod that is known lost its process")
	}
	d.remove("a")
}

// TestCgroupNamesThatLeadElsewhere requests, as root, cgroups by names that climb, that are
// files, or that break lines: each is refused, and nothing is made or changed beside berth's
// own tree.
func TestCgroupNamesThatLeadElsewhere(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.needKernel()
	d := n.start()
	c := cgroupv1.NewCgroupServiceClient(d.conn)
	external := func() (names []string) {
		for _, pattern := range []string{"/*", "/*/*"} {
			found, err := filepath.Glob(cgroupMount + pattern)
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range found {
				// Other tests make their own beside this one.
				if strings.Contains(f, "escaped") {
					names = append(names, f)
				}
			}
		}
		return names
	}
	root := "/" + n.cgroup
	for _, name := range []string{
		"..", "/..", "../escaped", "/../escaped", root + "/..", root + "/../escaped", root + "/../../escaped",
		root + "/kubepods/../../escaped",
		root + "/./escaped", root + "/.", ".", "/.", "//escaped", root + "//escaped/../x", "/escaped/..", root + "/a\x00b",
		root + "/a\nb", root + "/\x1b[31m",
		root + "/cgroup.procs", root + "/cgroup.kill", root + "/cgroup.subtree_control", root + "/memory.max",
		root + "/memory.limit_in_bytes",
		root + "/cpuset.cpus", root + "/tasks", root + "/notify_on_release", root + "/release_agent", root + "/cpu.max",
		root + "/freezer.state",
		root + "/devices.allow", root + "/pids.max", "/cgroup.procs", "/release_agent", "/tasks", root + "/" + strings.Repeat("a", 256),
		root + strings.Repeat("/a", 3000),
	} {
		for what, call := range map[string]func() error{
			"Create":  func() error { _, err := c.Create(n.ctx(), &cgroupv1.CreateRequest{Name: name}); return err },
			"Destroy": func() error { _, err := c.Destroy(n.ctx(), &cgroupv1.DestroyRequest{Name: name}); return err },
			"Update": func() error {
				_, err := c.Update(n.ctx(), &cgroupv1.UpdateRequest{Name: name,
					Resources: &typesv1.LinuxResources{CpuShares: proto.Uint64(2)}})
				return err
			},
			"ListProcesses": func() error {
				_, err := c.ListProcesses(n.ctx(), &cgroupv1.ListProcessesRequest{Name: name})
				return err
			},
			"GetConfig": func() error { _, err := c.GetConfig(n.ctx(), &cgroupv1.GetConfigRequest{Name: name}); return err },
		} {
			if err := call(); err == nil {
				t.Errorf("%s %.60q is done", what, name)
			}
		}
	}
	if left := external(); len(left) > 0 {
		t.Errorf("made: %v", left)
	}
	d.admitted(burstable("a"))
	d.check()
}

// TestCgroupsBesideThePods: an admin makes, weighs and removes a cgroup beside those of
// pods, reads a reserved one, and reaches no others.
func TestCgroupsBesideThePods(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.needKernel()
	own := n.newCgroup("own")
	n.configure("node: {kubeletCgroups: " + own + "}\n")
	d := n.start()
	client := cgroupv1.NewCgroupServiceClient(d.conn)
	extra := "/" + n.cgroup + "/extra"
	shares := uint64(4)
	if _, err := client.Create(d.ctx(), &cgroupv1.CreateRequest{Name: extra,
		Resources: &typesv1.LinuxResources{CpuShares: &shares}}); err != nil {
		t.Fatal(err)
	}
	if _, weight := n.file("extra", "cpu.weight", "cpu.shares"); weight != "4" && weight != "1" {
		t.Errorf("it weighs %s", weight)
	}
	if _, err := client.Destroy(d.ctx(), &cgroupv1.DestroyRequest{Name: extra}); err != nil {
		t.Error(err)
	}
	if slices.ContainsFunc(n.cgroupDirs(), func(dir string) bool { return filepath.Base(dir) == filepath.Base(n.path("extra")) }) {
		t.Error("it is still there")
	}
	n.eventually("berthd is in its own cgroup", func() bool {
		pids, err := client.ListProcesses(d.ctx(), &cgroupv1.ListProcessesRequest{Name: own})
		return err == nil && slices.Contains(pids.GetPids(), int32(d.Cmd.Process.Pid))
	})
	for name, want := range map[string]codes.Code{
		"/": codes.InvalidArgument, "/" + n.cgroup + "/some.service": codes.FailedPrecondition, "/berthdtest": codes.InvalidArgument,
		own: codes.FailedPrecondition,
	} {
		if _, err := client.Destroy(d.ctx(), &cgroupv1.DestroyRequest{Name: name}); status.Code(err) != want {
			t.Errorf("destroy %s: %v, want %s", name, err, want)
		}
	}
}

// newCgroup gives the path, as a plain directory, of a cgroup beside the node's that goes
// with the test.
func (n *node) newCgroup(name string) string {
	path := "/" + n.cgroup + "-" + name
	n.t.Cleanup(func() {
		nodetest.KillIn(path)
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		defer cancel()
		if err := nodetest.RemoveCgroups(ctx, path); err != nil {
			n.t.Error(err)
		}
	})
	return path
}

// number reads an amount of bytes.
func number(t *testing.T, text string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestResizeOfExclusiveCPUsOnTheMachine: a container with exclusive CPUs gets more and less while it and others run. No
// process of another container is ever allowed on its CPUs.
func TestResizeOfExclusiveCPUsOnTheMachine(t *testing.T) {
	t.Parallel()
	needCPUs(t, 8)
	n := newNode(t)
	n.needKernel()
	d := n.start()
	d.admitted(burstable("shared"))
	other := n.stopped()
	d.run(other, "shared", "main", "c-shared")
	all := other.allowed()
	d.admitted(guaranteed("own", 1, 0))
	p := n.stopped()
	d.run(p, "own", "main", "c-own")
	first := p.allowed()
	resize := func(cpus int) *admissionv1.ResizeResponse {
		t.Helper()
		resp, err := d.admission.Resize(d.ctx(), berth.ResizeTo(guaranteed("own", cpus, 0)))
		if err != nil || resp.GetVerdict() != admissionv1.Verdict_VERDICT_ADMITTED {
			t.Fatalf("%v, %v", resp, err)
		}
		return resp
	}
	follows := func(cpus int) {
		t.Helper()
		n.eventually("the containers follow", func() bool {
			// The one that leaves CPUs is read last.
			var has, shares cpuset.Set
			if cpus > 1 {
				has, shares = p.allowed(), other.allowed()
			} else {
				shares, has = other.allowed(), p.allowed()
			}
			if has.Overlaps(shares) {
				t.Errorf("%s and %s overlap", has, shares)
			}
			return has.Len() == cpus && has.Union(shares) == all
		})
	}
	if got := resize(2); got.GetDisruption() != admissionv1.Disruption_DISRUPTION_MOVE_CPUS {
		t.Errorf("disruption %s", got.GetDisruption())
	}
	follows(2)
	if now := p.allowed(); !first.IsSubsetOf(now) {
		t.Errorf("it had CPUs %s and has %s", first, now)
	}
	d.kill()
	d = n.start()
	follows(2)
	resize(1)
	follows(1)
	if now := p.allowed(); now != first {
		t.Errorf("it was admitted with CPUs %s, and has %s again", first, now)
	}
	d.remove("own")
	d.check()
}

package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	inspectv1 "github.com/berthd/berth/api/berth/inspect/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/clients/berthlet/agent"
	"github.com/berthd/berth/hack/testing/containerd"
	"github.com/berthd/berth/hack/testing/script"
	"github.com/berthd/berth/managers/cpuset"
)

// head begins a pod. A container that gets SIGTERM before it handles it does not
// hear it, so it has little time to end by itself.
const head = `
apiVersion: v1
kind: Pod
metadata: {name: NAME, uid: NAME-uid}
spec:
  terminationGracePeriodSeconds: 1
`

const shared = head + `
  containers:
  - {name: main, image: root, command: [/probe, show, ",", wait]}
`

const exclusive = head + `
  containers:
  - name: main
    image: root
    command: [/probe, show, ",", wait]
    resources: {limits: {cpu: 1, memory: 64Mi}}
`

const ordered = head + `
  volumes:
  - {name: data}
  initContainers:
  - {name: first, image: root, command: [/probe, write, /data/first, done], volumeMounts: [{name: data, mountPath: /data}]}
  - {name: side, image: root, restartPolicy: Always, command: [/probe, cat, /data/first, ",", show, ",", wait],
    volumeMounts: [{name: data, mountPath: /data, readOnly: true}]}
  - {name: second, image: root, command: [/probe, cat, /data/first], volumeMounts: [{name: data, mountPath: /data}]}
  containers:
  - {name: main, image: root, command: [/probe, show, ",", wait],
    env: [{name: WHO, valueFrom: {fieldRef: {fieldPath: metadata.name}}}, {name: GREETING, value: hello $(WHO)}]}
`

const beside = head + `
  initContainers:
  - {name: side, image: root, restartPolicy: Always, command: [/probe, show, ",", wait],
    resources: {requests: {cpu: 50m}, limits: {memory: 96Mi}}}
  containers:
  - {name: main, image: root, command: [/probe, show, ",", wait],
    resources: {requests: {cpu: 100m, memory: 16Mi}, limits: {cpu: 300m, memory: 96Mi}}}
`

const device = head + `
  containers:
  - name: main
    image: root
    command: [/probe, device, /dev/gpu-gpu0, ",", show, ",", wait]
    resources: {limits: {cpu: 500m, memory: 64Mi, example.com/gpu: 1}}
`

// lookingPod is an exclusive container whose first act is to look at another process.
const lookingPod = head + `
  hostPID: true
  containers:
  - name: main
    image: root
    command: [/probe, cat, /proc/PEER/status, ",", show, ",", wait]
    resources: {limits: {cpu: 1, memory: 64Mi}}
`

func needCPUs(t *testing.T, n int) {
	t.Helper()
	if runtime.NumCPU() < n {
		t.Skipf("needs %d CPUs, one of them for the system; here are %d", n, runtime.NumCPU())
	}
}

// entry is a line of a container's log.
var entry = regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(?:Z|\+00:00) (stdout|stderr) F (.*)$`)

// output reads the log of an attempt of a container.
func (n *node) output(pod, container string, attempt int) []string {
	n.t.Helper()
	text, err := os.ReadFile(n.path("logs", "default_"+pod+"_"+pod+"-uid", container, strconv.Itoa(attempt)+".log"))
	if err != nil {
		n.t.Fatal(err)
	}
	var out []string
	for line := range strings.Lines(string(text)) {
		line, whole := strings.CutSuffix(line, "\n")
		if !whole {
			break // it is being written
		}
		fields := entry.FindStringSubmatch(line)
		if fields == nil {
			n.t.Fatalf("line %q of a log", line)
		}
		out = append(out, fields[3])
	}
	return out
}

// shown waits until a container has printed its values, and returns them by name.
func (n *node) shown(pod, container string) map[string]string {
	n.t.Helper()
	return n.shownBy(pod, container, 0)
}

// shownBy is shown for an attempt of a container.
func (n *node) shownBy(pod, container string, attempt int) map[string]string {
	n.t.Helper()
	facts := map[string]string{}
	n.eventually(container+" of "+pod+" has told about itself", func() bool {
		for _, line := range n.output(pod, container, attempt) {
			name, value, _ := strings.Cut(line, "=")
			facts[name] = value
		}
		return facts["shown"] == "all"
	})
	return facts
}

// cpusOf reads the CPUs of a process from the kernel.
func (n *node) cpusOf(pid int) string {
	n.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		n.t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "Cpus_allowed_list:")
	line, _, _ := strings.Cut(rest, "\n")
	return strings.TrimSpace(line)
}

func (n *node) allocate(pod, container string) *allocationv1.AllocateResponse {
	n.t.Helper()
	answer, err := n.client.Allocation().Allocate(n.t.Context(),
		&allocationv1.AllocateRequest{Subject: &allocationv1.AllocateRequest_PodUid{PodUid: pod + "-uid"}, ContainerName: container})
	if err != nil {
		n.t.Fatal(err)
	}
	return answer
}

// plugin runs a device plugin with the node until the test ends.
func (n *node) plugin() {
	n.t.Helper()
	p := script.New(script.Config{
		Dir: n.path("berthd", "device-plugins"), Resource: "example.com/gpu", Devices: []script.Device{{ID: "gpu0"}},
	})
	done := make(chan error, 1)
	go func() { done <- p.Run(n.t.Context()) }()
	n.t.Cleanup(func() { <-done })
	if _, err := p.Await(n.t.Context(), script.ListAndWatch, 1); err != nil {
		n.t.Fatal(err)
	}
}

// TestPods runs pods of every kind and compares what is inside of their containers
// with what berthd has allocated.
func TestPods(t *testing.T) {
	t.Parallel()
	needCPUs(t, 2)
	testPods(newNode(t))
}

func testPods(n *node) {
	t := n.t
	n.plugin()
	n.manifest("shared", shared)
	n.running("shared")
	peer := n.pid("shared", "main")
	n.manifest("exclusive", strings.Replace(lookingPod, "PEER", strconv.Itoa(peer), 1))
	n.running("exclusive")
	own := parseCPUs(t, n.shown("exclusive", "main")["affinity"])
	n.checkLeft(own)
	// From here on the shared CPUs stay the same.
	names := []string{"shared", "exclusive", "ordered", "beside", "device"}
	for name, text := range map[string]string{"ordered": ordered, "beside": beside, "device": device} {
		n.manifest(name, text)
	}
	for _, name := range names {
		pod := n.running(name)
		for _, c := range append(pod.InitContainerStatuses, pod.ContainerStatuses...) {
			if c.State.Running != nil {
				n.checkInside(name, c.Name, n.pid(name, c.Name))
			}
			if cpus := parseCPUs(t, n.allocate(name, c.Name).GetResources().GetCpusetCpus().GetList()); name != "exclusive" &&
				cpus.Overlaps(own) {
				t.Errorf("%s of %s has CPUs %s, the exclusive container %s", c.Name, name, cpus, own)
			}
		}
	}
	checkOrdered(n)
	gpu := n.shown("device", "main")
	if gpu["device./dev/gpu-gpu0"] != "1:3" || gpu["env.EXAMPLE_COM_GPU"] != "gpu0" {
		t.Errorf("what the plugin gives: %v", gpu)
	}
	for _, name := range names {
		n.withdraw(name)
	}
	n.noPods()
	if err := n.berthlet.End(syscall.SIGTERM); err != nil {
		t.Errorf("berthlet did not end in order: %v", err)
	}
	n.berthlet = nil
}

func parseCPUs(t *testing.T, list string) cpuset.Set {
	t.Helper()
	s, err := cpuset.Parse(list)
	if err != nil || s.IsEmpty() {
		t.Fatalf("CPUs %q, %v", list, err)
	}
	return s
}

// checkLeft checks that the shared container had left the CPUs of the exclusive one
// before that one's first instruction, which was to look.
func (n *node) checkLeft(own cpuset.Set) {
	n.t.Helper()
	for _, line := range n.output("exclusive", "main", 0) {
		if list, ok := strings.CutPrefix(line, "Cpus_allowed_list:"); ok {
			if cpus := parseCPUs(n.t, strings.TrimSpace(list)); cpus.Overlaps(own) {
				n.t.Errorf("the exclusive container began on CPUs %s while the shared one had %s", own, cpus)
			}
			return
		}
	}
	n.t.Error("the exclusive container did not tell about the shared one")
}

// checkInside compares the values inside a container with berthd's answer:
// libcontainer must not have changed it.
func (n *node) checkInside(pod, name string, pid int) {
	n.t.Helper()
	a, facts := n.allocate(pod, name), n.shown(pod, name)
	l := a.GetResources()
	want := map[string]string{"uid": "0", "directory": "/", "hostname": pod}
	if pod != "exclusive" {
		want["pid"] = "1"
	}
	if pod != "shared" { // it began when it had more CPUs
		want["affinity"], want["cpus"] = l.GetCpusetCpus().GetList(), l.GetCpusetCpus().GetList()
	}
	if l.GetCpusetMems() != nil {
		want["mems"] = convert.Nodes(l.GetCpusetMems()).String()
	}
	for variable, value := range a.GetEdits().GetEnvs() {
		want["env."+variable] = value
	}
	for fact, value := range want {
		if facts[fact] != value {
			n.t.Errorf("%s of %s: %s is %q, want %q", name, pod, fact, facts[fact], value)
		}
	}
	if cpus := n.cpusOf(pid); cpus != l.GetCpusetCpus().GetList() {
		n.t.Errorf("%s of %s runs on %s, want %s", name, pod, cpus, l.GetCpusetCpus())
	}
	n.checkLimits(pod, name, l, facts)
	n.checkScore(pod, name, int(l.GetOomScoreAdj()), pid)
	for _, m := range a.GetEdits().GetMounts() {
		inside, err := os.Stat(filepath.Join("/proc", strconv.Itoa(pid), "root", m.GetContainerPath()))
		outside, outsideErr := os.Stat(m.GetHostPath())
		if err != nil || outsideErr != nil || !os.SameFile(inside, outside) {
			n.t.Errorf("%s of %s: %s is not %s: %v, %v", name, pod, m.GetContainerPath(), m.GetHostPath(), err, outsideErr)
		}
	}
	for _, hierarchy := range []string{"cpuset", "memory", "."} {
		path := n.cgroupOf(pod, name)
		procs, err := os.ReadFile(filepath.Join("/sys/fs/cgroup", hierarchy, path, "cgroup.procs"))
		if err == nil && !slices.Contains(strings.Fields(string(procs)), strconv.Itoa(pid)) {
			n.t.Errorf("%s of %s: process %d is not in %s%s: %q", name, pod, pid, hierarchy, path, procs)
		}
	}
}

// checkLimits compares the files of a container's cgroup, as the container reads
// them, with berthd's answer.
func (n *node) checkLimits(pod, name string, l *typesv1.LinuxResources, facts map[string]string) {
	n.t.Helper()
	number := func(v int64) string { return strconv.FormatInt(v, 10) }
	want := map[string]string{"cpuset.mems": convert.Nodes(l.GetCpusetMems()).String(), "cpu.shares": number(int64(l.GetCpuShares()))}
	if pod != "shared" {
		want["cpuset.cpus"] = l.GetCpusetCpus().GetList()
	}
	if l.GetCpuShares() == 2 { // the least; how others become weights depends on the version of runc
		want["cpu.weight"] = "1"
	}
	if l.GetCpuQuotaMicroseconds() > 0 {
		want["cpu.cfs_quota_us"], want["cpu.cfs_period_us"] = number(l.GetCpuQuotaMicroseconds()),
			number(int64(l.GetCpuPeriodMicroseconds()))
		want["cpu.max"] = number(l.GetCpuQuotaMicroseconds()) + " " + number(int64(l.GetCpuPeriodMicroseconds()))
	}
	if l.GetMemoryLimitBytes() > 0 {
		want["memory.limit_in_bytes"], want["memory.max"] = number(l.GetMemoryLimitBytes()), number(l.GetMemoryLimitBytes())
	}
	seen := 0
	for file, value := range want {
		got, ok := facts["cgroup."+file]
		if !ok || value == "" {
			continue // the other version's, or not set by berthd
		}
		if seen++; got != value {
			n.t.Errorf("%s of %s: %s is %q, want %q", name, pod, file, got, value)
		}
	}
	if seen == 0 {
		n.t.Errorf("%s of %s sees no file of its cgroup: %v", name, pod, facts)
	}
}

// classes reports which scores for the out-of-memory killer a pod's containers may
// have, by the pod's QoS class ("Node-pressure Eviction", Kubernetes documentation).
var classes = map[string]func(score int) bool{
	"shared": bestEffort, "ordered": bestEffort, "exclusive": guaranteed, "device": guaranteed,
	"beside": func(score int) bool { return 2 < score && score < 1000 }, // burstable
}

func bestEffort(score int) bool { return score == 1000 }
func guaranteed(score int) bool { return score == -997 }

// checkScore compares a container's score for the out-of-memory killer with
// berthd's answer. Where scores may not be lowered it is that of this process.
func (n *node) checkScore(pod, name string, want, pid int) {
	n.t.Helper()
	if !classes[pod](want) {
		n.t.Errorf("%s of %s: berthd answers the score %d", name, pod, want)
	}
	if own := n.score("self"); want < own && !containerd.MayLowerScores() {
		want = own
	}
	if got := n.score(strconv.Itoa(pid)); got != want {
		n.t.Errorf("%s of %s has the score %d, want %d", name, pod, got, want)
	}
}

// score reads what the out-of-memory killer adds to a process's badness: proc(5).
func (n *node) score(pid string) (score int) {
	n.t.Helper()
	text, err := os.ReadFile("/proc/" + pid + "/oom_score_adj")
	if err == nil {
		_, err = fmt.Sscan(string(text), &score)
	}
	if err != nil {
		n.t.Fatal(err)
	}
	return score
}

// checkOrdered checks the pod with init containers and a sidecar.
func checkOrdered(n *node) {
	n.t.Helper()
	p := n.pods()["ordered"]
	first, side, second, main := p.InitContainerStatuses[0], p.InitContainerStatuses[1], p.InitContainerStatuses[2], p.ContainerStatuses[0]
	if first.State.Terminated == nil || second.State.Terminated == nil || side.State.Running == nil {
		n.t.Fatalf("init containers: %+v", p.InitContainerStatuses)
	}
	order := []time.Time{
		first.State.Terminated.FinishedAt, side.State.Running.StartedAt, second.State.Terminated.StartedAt,
		second.State.Terminated.FinishedAt, main.State.Running.StartedAt,
	}
	if !slices.IsSortedFunc(order, time.Time.Compare) {
		n.t.Errorf("order: %v", order)
	}
	if got := n.output("ordered", "second", 0); !slices.Equal(got, []string{"done"}) {
		n.t.Errorf("the volume holds %q", got)
	}
	a, b := n.shown("ordered", "main"), n.shown("ordered", "side")
	for _, kind := range []string{"net", "ipc", "uts"} {
		if a["namespace."+kind] != b["namespace."+kind] {
			n.t.Errorf("containers of a pod have the %s namespaces %s and %s", kind, a["namespace."+kind], b["namespace."+kind])
		}
	}
	if a["namespace.pid"] == b["namespace.pid"] || a["namespace.net"] == n.shown("shared", "main")["namespace.net"] {
		n.t.Errorf("namespaces are not apart: %v, %v", a, b)
	}
	if a["env.GREETING"] != "hello ordered" {
		n.t.Errorf("environment: %v", a)
	}
}

// TestRestarts has a container that fails at first, one that always fails, and
// one that is done.
func TestRestarts(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.manifest("once", head+`
  restartPolicy: OnFailure
  volumes: [{name: data}]
  containers:
  - {name: main, image: root, command: [/probe, fail-once, /data/x, ",", wait], volumeMounts: [{name: data, mountPath: /data}]}
`)
	n.manifest("failed", head+`
  restartPolicy: "Never"
  containers:
  - {name: main, image: root, command: [/probe, complain, nope, ",", exit, "3"]}
`)
	n.manifest("done", head+`
  restartPolicy: OnFailure
  containers:
  - {name: main, image: root, command: [/probe, print, all done]}
`)
	p := n.until("once", "was restarted", func(p agent.PodStatus) bool { return allRun(p) && p.Restarts() > 0 })
	main := p.ContainerStatuses[0]
	if main.RestartCount != 1 || main.LastState == nil || main.LastState.Terminated.ExitCode != 1 ||
		main.LastState.Terminated.Reason != "Error" {
		t.Errorf("restarted: %+v", main)
	}
	over := func(phase string) func(agent.PodStatus) bool {
		return func(p agent.PodStatus) bool {
			return p.Phase == phase && p.ContainerStatuses[0].State.Terminated != nil
		}
	}
	if got := n.until("failed", "fails", over("Failed")).ContainerStatuses[0].State.Terminated; got.ExitCode != 3 || got.Reason != "Error" {
		t.Errorf("failed: %+v", got)
	}
	if got := n.until("done", "is done", over("Succeeded")).ContainerStatuses[0].State.Terminated; got.ExitCode != 0 ||
		got.Reason != "Completed" {
		t.Errorf("done: %+v", got)
	}
	// What is over gives its place back, and is not begun again by a next berthlet.
	n.eventually("resources are released", func() bool {
		list, err := n.client.Allocation().List(t.Context(), &allocationv1.ListRequest{})
		return err == nil && len(list.GetPods()) == 1
	})
	if err := n.berthlet.End(os.Kill); err == nil {
		t.Error("berthlet was killed and says nothing of it")
	}
	n.startBerthlet()
	n.manifest("next", shared)
	n.running("next")
	if got := n.pods()["done"]; got.Phase != "Succeeded" || got.Restarts() != 0 {
		t.Errorf("after a restart: %+v", got)
	}
	if got := n.output("failed", "main", 0); !slices.Equal(got, []string{"nope"}) {
		t.Errorf("log of the failed pod: %q", got)
	}
	for _, name := range []string{"once", "failed", "done", "next"} {
		n.withdraw(name)
	}
	n.noPods()
}

// TestSecondBerthlet starts another one with the same state, which has to refuse.
func TestSecondBerthlet(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.manifest("a", shared)
	n.running("a")
	first := n.berthlet
	n.startBerthlet()
	second := n.berthlet
	n.berthlet = first
	if err := second.Wait(); err == nil {
		t.Error("a second berthlet ran and ended well")
	}
	if log := n.log("berthlet").String(); !strings.Contains(log, "another berthlet has it") {
		t.Error(log)
	}
	n.withdraw("a")
	n.noPods()
}

// TestGrace ends a container that ignores SIGTERM: it gets the signal, prints a line, and is
// killed. On a busy machine the grace may end before it prints anything, so that it
// gets more.
func TestGrace(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	var text []byte
	for _, seconds := range []string{"0", "10", "60"} {
		n.manifest("deaf", strings.Replace(head, "Seconds: 1", "Seconds: "+seconds, 1)+`
  containers:
  - {name: main, image: root, command: [/probe, print, ready, ",", stubborn]}
`)
		n.running("deaf")
		n.eventually("it listens", func() bool { return len(n.output("deaf", "main", 0)) > 0 })
		// The log goes with the pod, which may be before anybody looks.
		kept := n.path("kept" + seconds + ".log")
		if err := os.Link(n.path("logs", "default_deaf_deaf-uid", "main", "0.log"), kept); err != nil {
			t.Fatal(err)
		}
		n.withdraw("deaf")
		n.noPods()
		var err error
		if text, err = os.ReadFile(kept); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), " no\n") {
			return
		}
	}
	t.Errorf("it was ended without being told: %q", text)
}

// TestRejected has pods that cannot run; their messages are for people.
func TestRejected(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.manifest("greedy", strings.Replace(exclusive, "cpu: 1", "cpu: 4096", 1))
	n.manifest("secret", head+`
  volumes: [{name: s, secret: {secretName: s}}]
  containers:
  - {name: main, image: root}
`)
	n.manifest("lost", head+`
  containers:
  - {name: main, image: nowhere}
`)
	failed := func(p agent.PodStatus) bool { return p.Phase == "Failed" }
	if p := n.until("greedy", "fails", failed); p.Reason != "OutOfcpu" && p.Reason != "UnexpectedAdmissionError" ||
		!strings.HasPrefix(p.Message, "Pod was rejected: ") {
		t.Errorf("greedy: %s %s", p.Reason, p.Message)
	}
	if p := n.until("secret", "fails", failed); p.Reason != "Unsupported" || !strings.Contains(p.Message, "spec.volumes[0]") {
		t.Errorf("secret: %s %s", p.Reason, p.Message)
	}
	p := n.until("lost", "waits", func(p agent.PodStatus) bool {
		w := p.ContainerStatuses[0].State.Waiting
		return w != nil && w.Message != ""
	})
	if w := p.ContainerStatuses[0].State.Waiting; w.Reason != "CreateContainerError" || !strings.Contains(w.Message, `"nowhere"`) {
		t.Errorf("lost: %+v", w)
	}
	for _, name := range []string{"greedy", "secret", "lost"} {
		n.withdraw(name)
	}
	n.noPods()
}

// TestKilled kills both programs while containers run, which continue, and are the
// new ones' then.
func TestKilled(t *testing.T) {
	t.Parallel()
	needCPUs(t, 2)
	n := newNode(t)
	n.manifest("a", exclusive)
	n.manifest("b", shared)
	pids := map[string]int{}
	for _, name := range []string{"a", "b"} {
		pids[name] = n.running(name).ContainerStatuses[0].State.Running.PID
	}
	same := func(when string) {
		t.Helper()
		for name, pid := range pids {
			p := n.running(name)
			if got := p.ContainerStatuses[0]; got.State.Running.PID != pid || got.RestartCount != 0 {
				t.Errorf("%s: %s: %+v, was %d", when, name, got, pid)
			}
			n.eventually(when+": "+name+" is where berthd says", func() bool {
				return n.cpusOf(pid) == n.allocate(name, "main").GetResources().GetCpusetCpus().GetList()
			})
		}
	}
	_ = n.berthd.End(os.Kill)
	n.startBerthd()
	same("berthd was killed")
	_ = n.berthlet.End(os.Kill)
	n.manifest("c", shared)
	n.startBerthlet()
	pids["c"] = n.running("c").ContainerStatuses[0].State.Running.PID
	same("berthlet was killed")
	_ = n.berthlet.End(os.Kill)
	_ = n.berthd.End(os.Kill)
	n.withdraw("b")
	delete(pids, "b")
	n.startBerthd()
	n.startBerthlet()
	n.eventually("the pod that was withdrawn meanwhile is gone", func() bool { return n.pods()["b"].UID == "" })
	same("both were killed")

	// The ledger is lost: berthd hears which pods there are, and gives them their
	// resources again.
	_ = n.berthd.End(os.Kill)
	if err := os.RemoveAll(n.path("berthd", "state")); err != nil {
		t.Fatal(err)
	}
	n.startBerthd()
	n.eventually("the pods are admitted again", func() bool {
		list, err := n.client.Allocation().List(t.Context(), &allocationv1.ListRequest{})
		return err == nil && len(list.GetPods()) == len(pids)
	})
	same("the ledger was lost")
	n.withdraw("a")
	n.withdraw("c")
	n.noPods()
	if check, err := n.client.Inspect().Check(t.Context(), &inspectv1.CheckRequest{}); err != nil || len(check.GetFindings()) > 0 {
		t.Errorf("check: %v, %v", check, err)
	}
}

// TestExec runs programs in a container by the command, while berthlet runs and when it has ended.
func TestExec(t *testing.T) {
	t.Parallel()
	needCPUs(t, 2)
	n := newNode(t)
	n.manifest("exclusive", exclusive)
	n.running("exclusive")
	run := func(args ...string) (int, string) {
		t.Helper()
		cmd := exec.Command(os.Args[0], append([]string{"exec", "--state-dir", n.path("state")}, args...)...)
		cmd.Env = append(os.Environ(), asBerthlet+"=1")
		out, err := cmd.CombinedOutput()
		if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		return cmd.ProcessState.ExitCode(), string(out)
	}
	own := n.shown("exclusive", "main")
	code, out := run("exclusive", "--", "/probe", "show")
	got := map[string]string{}
	for line := range strings.Lines(out) {
		name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		got[name] = value
	}
	for _, name := range []string{"affinity", "cpus", "mems", "namespace.pid", "namespace.net", "capabilities", "seccomp",
		"cgroup.memory.limit_in_bytes", "cgroup.memory.max"} {
		if code != 0 || got[name] != own[name] {
			t.Errorf("exit code %d, %s is %q, the container's program has %q", code, name, got[name], own[name])
		}
	}
	if err := n.berthlet.End(os.Kill); err != nil && n.berthlet.Cmd.ProcessState.Success() {
		t.Error(err)
	}
	for _, row := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"default/exclusive", "-c", "main", "--", "/probe", "exit", "9"}, 9, ""},
		{[]string{"exclusive", "--", "/probe", "die", "9"}, 128 + 9, ""},
		{[]string{"exclusive", "--", "/probe", "complain", "loud"}, 0, "loud\n"},
		{[]string{"exclusive", "-t", "--", "/probe", "terminal"}, 0, "terminal=yes yes yes 0x0\r\n"},
		{[]string{"exclusive", "--", "/none"}, exitError, "/none"},
		{[]string{"exclusive", "/probe"}, exitUsage, "-- is missing"},
	} {
		if code, out := run(row.args...); code != row.code || !strings.Contains(out, row.want) {
			t.Errorf("exec %q: exit code %d, %q", row.args, code, out)
		}
	}
	n.startBerthlet()
	n.withdraw("exclusive")
	n.noPods()
}

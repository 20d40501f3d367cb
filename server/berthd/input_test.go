package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	lifecyclev1 "github.com/berthd/berth/api/berth/lifecycle/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/hack/testing/script"
)

// revision returns how often the ledger has changed.
func (d *daemon) revision() uint64 {
	d.t.Helper()
	resp, err := d.allocation.List(d.ctx(), &allocationv1.ListRequest{})
	if err != nil {
		d.t.Fatal(err)
	}
	return resp.GetRevision()
}

// TestHostileInput is what no agent sends by mistake, or only by a large one: all
// of it is named by its field, and none of it reaches the ledger or the disk.
func TestHostileInput(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	d := n.start()
	before := d.revision()
	requests := func(name, amount string) *typesv1.Pod {
		return pod("x", map[string]string{name: amount}, map[string]string{name: amount})
	}
	at := func(name string) string { return `pod.spec.containers[0].resources.requests["` + name + `"]` }
	limit := func(name string) string { return `pod.spec.containers[0].resources.limits["` + name + `"]` }
	overhead := pod("x", nil, nil)
	overhead.Spec.Overhead = map[string]string{"cpu": "-1"}
	for name, c := range map[string]struct {
		pod   *typesv1.Pod
		field string
	}{
		"uid that climbs":       {pod("../../etc", nil, nil), "pod.metadata.uid"},
		"uid with a slash":      {pod("a/b", nil, nil), "pod.metadata.uid"},
		"uid of dots":           {pod("..", nil, nil), "pod.metadata.uid"},
		"long uid":              {pod(strings.Repeat("a", 5000), nil, nil), "pod.metadata.uid"},
		"no containers":         {&typesv1.Pod{Metadata: &typesv1.PodMetadata{Name: "x", Uid: "x"}}, "pod.spec.containers"},
		"exponent":              {requests("memory", "1e2147483647"), at("memory")},
		"digits":                {requests("memory", strings.Repeat("9", 1<<16)), at("memory")},
		"half a device":         {requests("example.com/gpu", "500m"), limit("example.com/gpu")},
		"device without limit":  {pod("x", map[string]string{"example.com/gpu": "1"}, nil), limit("example.com/gpu")},
		"name without a domain": {requests("gpu", "1"), at("gpu")},
		"odd huge pages":        {requests("hugepages-2Mi", "3Mi"), limit("hugepages-2Mi")},
		"negative overhead":     {overhead, `pod.spec.overhead["cpu"]`},
	} {
		_, err := d.admission.Admit(n.ctx(), &admissionv1.AdmitRequest{Subject: &admissionv1.AdmitRequest_Pod{Pod: c.pod}})
		if status.Code(err) != codes.InvalidArgument || !slices.ContainsFunc(fields(err),
			func(f string) bool { return strings.HasPrefix(f, c.field) }) {
			t.Errorf("%s: %.300v with fields %q; want INVALID_ARGUMENT with %s", name, err, fields(err), c.field)
		}
		if len(status.Convert(err).Message()) > 2000 {
			t.Errorf("%s: the message has %d bytes", name, len(status.Convert(err).Message()))
		}
	}
	if _, err := d.admission.Admit(n.ctx(), &admissionv1.AdmitRequest{Subject: &admissionv1.AdmitRequest_Pod{Pod: burstable("x")},
		AdmissionId: strings.Repeat("a", 129)}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("a long admission id: %v", err)
	}
	if _, err := d.admission.RemovePod(n.ctx(), &admissionv1.RemovePodRequest{}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("remove nothing: %v", err)
	}
	if _, err := d.admission.SyncPods(n.ctx(), &admissionv1.SyncPodsRequest{ActivePodUids: []string{"a", ""},
		KnownRevision: d.revision()}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("a living pod without a uid: %v", err)
	}
	if after := d.revision(); after != before {
		t.Errorf("the ledger went from revision %d to %d", before, after)
	}
	if len(n.podCgroups()) > 0 {
		t.Errorf("cgroups %v", n.podCgroups())
	}
	d.check()
}

// TestWhoIsNotHere calls methods for unknown pods and containers.
func TestWhoIsNotHere(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	d := n.start()
	d.admitted(burstable("known"))
	for name, call := range map[string]func() error{
		"Get": func() error {
			_, err := d.allocation.Get(n.ctx(), &allocationv1.GetRequest{Subject: &allocationv1.GetRequest_PodUid{PodUid: "ghost"}})
			return err
		},
		"PreStartContainer of a container": func() error {
			_, err := d.lifecycle.PreStartContainer(n.ctx(), &lifecyclev1.PreStartContainerRequest{PodUid: "known",
				ContainerName: "ghost", ContainerId: "i"})
			return err
		},
		"Allocate with a pod that lacks it": func() error {
			_, err := d.allocation.Allocate(n.ctx(),
				&allocationv1.AllocateRequest{Subject: &allocationv1.AllocateRequest_Pod{Pod: burstable("new")}, ContainerName: "ghost"})
			return err
		},
		"PreStartContainer of a process": func() error {
			_, err := d.lifecycle.PreStartContainer(n.ctx(), &lifecyclev1.PreStartContainerRequest{PodUid: "known", ContainerName: "main",
				ContainerId: "i", Pid: 1 << 22})
			return err
		},
	} {
		if err := call(); status.Code(err) != codes.NotFound {
			t.Errorf("%s: %v", name, err)
		}
	}
	// What is gone already is no error to those who want it gone.
	if resp, err := d.admission.RemovePod(n.ctx(), &admissionv1.RemovePodRequest{PodUid: "ghost"}); err != nil || resp.GetRemoved() {
		t.Errorf("remove: %v, %v", resp, err)
	}
	if resp, err := d.lifecycle.PostStopContainer(n.ctx(), &lifecyclev1.PostStopContainerRequest{ContainerId: "ghost"}); err != nil ||
		resp.GetFound() {
		t.Errorf("stop: %v, %v", resp, err)
	}
	if pods := d.pods(); len(pods) != 1 {
		t.Errorf("pods %v", pods)
	}
	d.check()
}

// TestLimitsAreSettable: the operator sets what is too large.
func TestLimitsAreSettable(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.configure("limits: {messageBytes: 65536, containers: 2}\n")
	d := n.start()
	p := burstable("x")
	p.Spec.Containers = append(p.Spec.Containers, &typesv1.Container{Name: "second"})
	admit := func() error {
		_, err := d.admission.Admit(n.ctx(), &admissionv1.AdmitRequest{Subject: &admissionv1.AdmitRequest_Pod{Pod: p}, DryRun: true})
		return err
	}
	p.Metadata.Annotations = map[string]string{"a": strings.Repeat("x", 60<<10)}
	if err := admit(); err != nil {
		t.Errorf("two containers and 60 KiB: %v", err)
	}
	p.Metadata.Annotations["a"] = strings.Repeat("x", 64<<10)
	if err := admit(); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("above 64 KiB: %v", err)
	}
	p.Metadata.Annotations = nil
	p.Spec.InitContainers = []*typesv1.Container{{Name: "third"}}
	if err := admit(); status.Code(err) != codes.InvalidArgument || !slices.Contains(fields(err), "pod.spec.containers") {
		t.Errorf("three containers: %v with fields %q", err, fields(err))
	}
}

// TestSamePodSameAnswer admits a pod twice, also after a crash.
func TestSamePodSameAnswer(t *testing.T) {
	t.Parallel()
	needCPUs(t, 2)
	n := newNode(t)
	d := n.start()
	d.plugin("g0@0")
	first := d.admitted(guaranteed("x", 1, 1))
	revision := d.revision()
	first.Replayed = true // as every answer after it
	if again := d.admitted(guaranteed("x", 1, 1)); !proto.Equal(first, again) {
		t.Errorf("answered first\n%v\nthen\n%v", first, again)
	}
	if got := d.revision(); got != revision {
		t.Errorf("asking again took the ledger from %d to %d", revision, got)
	}
	d.kill()
	d = n.start()
	d.expectDevices(1)
	first.Revision = d.revision() // the device's plugin registered again
	if again := d.admitted(guaranteed("x", 1, 1)); !proto.Equal(first, again) {
		t.Errorf("answered first\n%v\nafter a crash\n%v", first, again)
	}
}

// TestNotEnough requests more than there is: the kubelet's reason, and nothing
// held, allocated by the plugin or made.
func TestNotEnough(t *testing.T) {
	t.Parallel()
	needCPUs(t, 2)
	n := newNode(t)
	d := n.start()
	p := d.plugin("g0@0 g1@0")
	p.SetHealth("g1", false)
	d.expectDevices(1)
	unwell := pod("unwell", map[string]string{"cpu": "1", "memory": "16Mi", gpu: "2"},
		map[string]string{"cpu": "1", "memory": "16Mi", gpu: "2"})
	for uid, c := range map[string]struct {
		pod     *typesv1.Pod
		message string
	}{
		"cpus":    {guaranteed("cpus", 4096, 0), "not enough cpus"},
		"devices": {guaranteed("devices", 1, 3), "requested number of devices unavailable for " + gpu + ". Requested: 3, Available: 1"},
		"unwell":  {unwell, "requested number of devices unavailable for " + gpu + ". Requested: 2, Available: 1"},
	} {
		resp := d.admit(c.pod)
		if resp.GetVerdict() != admissionv1.Verdict_VERDICT_REJECTED || resp.GetReason() != "UnexpectedAdmissionError" ||
			!strings.Contains(resp.GetMessage(), c.message) {
			t.Errorf("%s: %s %s: %s", uid, resp.GetVerdict(), resp.GetReason(), resp.GetMessage())
		}
	}
	if len(d.pods()) > 0 || len(n.podCgroups()) > 0 || len(p.Calls(script.Allocate)) > 0 {
		t.Errorf("pods %v, cgroups %v, calls %v", d.pods(), n.podCgroups(), p.Calls(script.Allocate))
	}
	d.check()
	d.admitted(guaranteed("all", 1, 1))
}

// TestReadOnlyState starts on a disk that cannot be written: it is refused with
// the reason, and nothing has changed when it can be.
func TestReadOnlyState(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	state := filepath.Join(n.root, "state")
	if err := os.Mkdir(state, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("berthtest", state, "tmpfs", 0, "size=2m,mode=0700"); err != nil {
		t.Skipf("needs the right to mount a file system: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(state, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	d := n.start()
	d.admitted(burstable("a"))
	d.stop()
	ledger := filepath.Join(state, "ledger.db")
	before, err := os.ReadFile(ledger)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("", state, "", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	out, err := n.command().CombinedOutput()
	if err == nil || !strings.Contains(string(out), state) || !strings.Contains(string(out), syscall.EROFS.Error()) {
		t.Errorf("%v: %s", err, out)
	}
	if n.kernel && !n.podCgroups()["a"] {
		t.Error("the cgroup of the pod is gone")
	}
	if err := syscall.Mount("", state, "", syscall.MS_REMOUNT, ""); err != nil {
		t.Fatal(err)
	}
	if after, err := os.ReadFile(ledger); err != nil || !bytes.Equal(before, after) {
		t.Errorf("the ledger's file has changed: %v", err)
	}
	d = n.start()
	if d.pods()["a"] == nil {
		t.Error("the pod is gone")
	}
	d.check()
	d.stop() // lets go of the file system
}

// TestLeftSocketsAreTakenOver starts after a crash, which leaves every socket, and
// after one in the moment before a socket had its name.
func TestLeftSocketsAreTakenOver(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.start().kill()
	left := map[string]os.FileInfo{}
	for _, name := range []string{"berth.sock", "pod-resources/kubelet.sock", "device-plugins/kubelet.sock"} {
		path := filepath.Join(n.root, name)
		info, err := os.Lstat(path)
		if err != nil {
			t.Fatalf("a crash leaves its sockets: %v", err)
		}
		left[path] = info
		early := filepath.Join(filepath.Dir(path), ".new-"+filepath.Base(path))
		// The other name keeps the file, so that no new one can be taken for it: a
		// file system may give an inode's number again.
		for _, name := range []string{early, filepath.Join(n.root, fmt.Sprint("kept-", len(left)))} {
			if err := os.Link(path, name); err != nil {
				t.Fatal(err)
			}
		}
	}
	d := n.start()
	for path, before := range left {
		if now, err := os.Lstat(path); err != nil || os.SameFile(before, now) {
			t.Errorf("%s is the one of the crashed daemon: %v", path, err)
		}
		if _, err := os.Lstat(filepath.Join(filepath.Dir(path), ".new-"+filepath.Base(path))); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("what was left beside %s: %v", path, err)
		}
	}
	d.admitted(burstable("a"))
	d.plugin("g0")
	d.stop()
}

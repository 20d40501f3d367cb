package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	inspectv1 "github.com/berthd/berth/api/berth/inspect/v1"
	lifecyclev1 "github.com/berthd/berth/api/berth/lifecycle/v1"
	"github.com/berthd/berth/server/internal/socket"
)

// TestHealthOfServices checks every service by its name, as documented for
// clients, and watches until the end.
func TestHealthOfServices(t *testing.T) {
	t.Parallel()
	d := newNode(t).start()
	h := healthpb.NewHealthClient(d.conn)
	for _, service := range []string{
		admissionv1.AdmissionService_ServiceDesc.ServiceName,
		allocationv1.AllocationService_ServiceDesc.ServiceName,
		lifecyclev1.LifecycleService_ServiceDesc.ServiceName,
		inspectv1.InspectService_ServiceDesc.ServiceName,
		"v1.PodResourcesLister",
	} {
		got, err := h.Check(d.ctx(), &healthpb.HealthCheckRequest{Service: service})
		if err != nil || got.GetStatus() != healthpb.HealthCheckResponse_SERVING {
			t.Errorf("%s: %s, %v", service, got.GetStatus(), err)
		}
	}
	if _, err := h.Check(d.ctx(), &healthpb.HealthCheckRequest{Service: "ghost"}); status.Code(err) != codes.NotFound {
		t.Errorf("a service that is not there: %v", err)
	}
	stream, err := h.Watch(d.ctx(), &healthpb.HealthCheckRequest{Service: admissionv1.AdmissionService_ServiceDesc.ServiceName})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := stream.Recv(); err != nil || got.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		t.Fatalf("%s, %v", got.GetStatus(), err)
	}
	d.stop()
	for err == nil {
		_, err = stream.Recv()
	}
	if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "berthd ends") {
		t.Errorf("the stream ended with %v", err)
	}
}

// TestSocketsOfOthers starts a daemon where another agent serves one of the
// sockets: it ends at once, before it has touched a pod or a socket of the other.
func TestSocketsOfOthers(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"berth.sock", "pod-resources/kubelet.sock", "device-plugins/kubelet.sock"} {
		t.Run(strings.ReplaceAll(name, "/", " "), func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			n.start().stop() // an established ledger: pods that it does not know are orphans
			path := filepath.Join(n.root, name)
			l, err := socket.Listen(path, socket.Options{})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = l.Close() })
			foreign := n.foreignPod(t, "foreign")
			out, err := n.command().CombinedOutput()
			if err == nil || !strings.Contains(string(out), fmt.Sprintf("another process already serves %s", path)) {
				t.Errorf("%v: %s", err, out)
			}
			if err := socket.Unserved(path); err == nil {
				t.Error("the socket was taken over")
			}
			if _, err := os.Stat(foreign); n.kernel && err != nil {
				t.Errorf("a pod of the other agent was removed: %v", err)
			}
		})
	}
}

// TestBesideKubelet starts a daemon where a kubelet serves the socket of device plugins and owns the cgroups: the daemon decides
// about pods and touches none of them. It serves podresources in a directory of its own, which lets in only root.
func TestBesideKubelet(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	kubelets := filepath.Join(n.root, "device-plugins/kubelet.sock")
	l, err := socket.Listen(kubelets, socket.Options{DirMode: 0o750})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	d := n.start("--beside=kubelet", "--cgroup-tree=memory")
	d.admitted(withDevice("a", "example.com/kubelets"))
	list, err := d.readers().List(d.ctx(), &podresourcesv1.ListPodResourcesRequest{})
	if err != nil || len(list.GetPodResources()) != 1 {
		t.Errorf("podresources lists %v, %v; want the pod", list, err)
	}
	info, err := os.Stat(filepath.Join(n.root, "pod-resources"))
	if err != nil || info.Mode().Perm() != 0o750 {
		t.Errorf("the directory of podresources: %v, %v; want mode 0750", info, err)
	}
	d.stop()
	if err := socket.Unserved(kubelets); err == nil {
		t.Errorf("%s is no longer the kubelet's", kubelets)
	}
	if _, err := os.Stat(filepath.Join(n.root, "plugins_registry")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the kubelet's plugin registry: %v", err)
	}
	if dirs := n.cgroupDirs(); len(dirs) != 0 {
		t.Errorf("berthd made the cgroups %v", dirs)
	}
}

// foreignPod makes the cgroup of a pod that berth has never seen, and returns its
// directory.
func (n *node) foreignPod(t *testing.T, uid string) string {
	t.Helper()
	for _, dir := range n.cgroupDirs() {
		if filepath.Base(dir) != "kubepods" {
			continue
		}
		pod := filepath.Join(dir, "pod"+uid)
		if err := os.Mkdir(pod, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			t.Fatal(err)
		}
		return pod
	}
	return ""
}

// TestLivingPodsAreNotSwept loses the ledger: a pod that the agent reports as living is
// not killed while it is not in the ledger yet; other pods are.
func TestLivingPodsAreNotSwept(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.needKernel()
	n.configure("cgroups: {reconcilePeriod: 20ms}\n")
	d := n.start()
	d.admitted(burstable("living"))
	d.admitted(burstable("dead"))
	p := n.stopped()
	d.run(p, "living", "main", "c")
	d.kill()
	if err := os.RemoveAll(filepath.Join(n.root, "state")); err != nil {
		t.Fatal(err)
	}
	d = n.start()
	if _, err := d.admission.SyncPods(n.ctx(), &admissionv1.SyncPodsRequest{ActivePodUids: []string{"living"},
		KnownRevision: d.revision()}); err != nil {
		t.Fatal(err)
	}
	// The agent's SyncPods outlives berthd too: it has not admitted the pod again yet.
	d.kill()
	d = n.start()
	for _, uid := range []string{"orphan1", "orphan2"} { // two rounds of the sweep pass
		n.foreignPod(t, uid)
		n.eventually("pod "+uid+" is swept", func() bool { return !n.podCgroups()[uid] })
	}
	if have := n.podCgroups(); !have["living"] || have["dead"] {
		t.Errorf("cgroups %v", have)
	}
	if line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.pid())); err != nil || len(line) == 0 { // empty: it is a zombie
		t.Errorf("the living pod's process was killed: %v", err)
	}
	d.admitted(burstable("living"))
	d.remove("living")
	d.check()
}

// TestLostLedgerGivesNothingAway: what a pod holds that is not known yet is nobody
// else's, whatever happens to berthd, also while nothing of it runs.
func TestLostLedgerGivesNothingAway(t *testing.T) {
	t.Parallel()
	n := newNode(t, "--machine", "1s1n2c1t,mem=8Gi")
	n.needKernel()
	needCPUs(t, 2)
	n.configure("cgroups: {reconcilePeriod: 20ms}\n")
	d := n.start()
	d.admitted(guaranteed("living", 1, 0))
	d.admitted(burstable("unwanted"))
	had := d.allocations()["living"]
	d.kill()
	if err := os.RemoveAll(filepath.Join(n.root, "state")); err != nil {
		t.Fatal(err)
	}
	d = n.start()
	rejected := func() {
		t.Helper()
		if v := d.admit(guaranteed("new", 1, 0)); v.GetVerdict() != admissionv1.Verdict_VERDICT_REJECTED {
			t.Fatalf("verdict %s: %s", v.GetVerdict(), v.GetMessage())
		}
	}
	rejected()
	if _, err := d.admission.SyncPods(n.ctx(), &admissionv1.SyncPodsRequest{ActivePodUids: []string{"living", "unwanted", "elsewhere"},
		KnownRevision: d.revision()}); err != nil {
		t.Fatal(err)
	}
	rejected()
	// What is not known can be removed all the same.
	d.remove("unwanted")
	if n.podCgroups()["unwanted"] {
		t.Error("the cgroup of a removed pod is left")
	}
	d.kill()
	d = n.start()
	rejected()
	d.admitted(guaranteed("living", 1, 0))
	if has := d.allocations()["living"]; has != had {
		t.Errorf("it holds %s, and held %s", has, had)
	}
	d.remove("living")
	d.admitted(guaranteed("new", 1, 0))
	d.check()
}

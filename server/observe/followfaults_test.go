package observe_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	reflection "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	cgroupv1 "github.com/berthd/berth/api/berth/cgroup/v1"
	inspectv1 "github.com/berthd/berth/api/berth/inspect/v1"
	nodev1 "github.com/berthd/berth/api/berth/node/v1"
	"github.com/berthd/berth/hack/testing/nodetest"
	kubelets "github.com/berthd/berth/server/internal/kubeletnode/nodetest"
	"github.com/berthd/berth/server/observe"
)

const cpuState = "var/lib/kubelet/cpu_manager_state"

// traceOf is the explanation of a pod.
func (o *observed) traceOf(uid string) string {
	answer, err := inspectv1.NewInspectServiceClient(o.conn).GetTrace(o.t.Context(), &inspectv1.GetTraceRequest{
		Subject: &inspectv1.GetTraceRequest_PodUid{PodUid: uid},
	})
	if err != nil {
		return err.Error()
	}
	return compact(o.t, answer.GetTrace())
}

// eventually waits until podresources has a text, or has it no more.
func (o *observed) eventually(text string, there bool) {
	o.t.Helper()
	nodetest.Eventually(o.t, 30*time.Second, text, func() bool {
		return strings.Contains(strings.Join(answers(o.t, o.conn), " "), text) == there
	})
}

func (o *observed) explained(uid, text string) {
	o.t.Helper()
	nodetest.Eventually(o.t, 30*time.Second, uid+" is explained with "+text, func() bool { return strings.Contains(o.traceOf(uid), text) })
}

func (o *observed) logs(text string) {
	o.t.Helper()
	nodetest.Eventually(o.t, 30*time.Second, "it logs "+text, func() bool { return strings.Contains(o.log.String(), text) })
}

func state(shared, entries string) string {
	return `{"policyName":"static","defaultCpuSet":"` + shared + `","entries":{` + entries + `},"checksum":0}`
}

// TestRunningPodIsRejected: a pod that has run, and that the kubelet rejects after its restart, is explained, whenever the others began.
func TestRunningPodIsRejected(t *testing.T) {
	t.Parallel()
	for name, began := range map[string]string{"before": "2026-01-02T03:04:01Z", "after": "2026-01-02T03:05:05Z"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := serveNode(t, smallNode(t))
			o.setPods(nodePods(t, "u-r 2026-01-02T03:04:06Z Running - 1"), state("0-7,9-15", `"u-r":{"app":"8"}`))
			o.eventually("u-r", true)
			o.setPods(nodePods(t, "u-b "+began+" Running - 7", "u-c "+began+" Running - 8", "u-r 2026-01-02T03:04:06Z Failed OutOfcpu 1"),
				state("0", `"u-b":{"app":"1-7"},"u-c":{"app":"8-15"}`))
			o.explained("u-r", "the kubelet rejected it with OutOfcpu")
		})
	}
}

// TestRejectedAgain: a static pod has the same uid when it is rejected again.
func TestRejectedAgain(t *testing.T) {
	t.Parallel()
	o := serveNode(t, smallNode(t))
	a, b := "u-a 2026-01-02T03:04:05Z Running - 3", "u-b 2026-01-02T03:04:06Z Running - 1"
	o.setPods(nodePods(t, a, b, "u-s 2026-01-02T03:04:07Z Failed TopologyAffinityError 8"), state("0,4-7,9-15",
		`"u-a":{"app":"1-3"},"u-b":{"app":"8"}`))
	o.explained("u-s", "rejected it with TopologyAffinityError")
	o.setPods(nodePods(t, "u-s 2026-01-02T03:05:07Z Running - 8"), state("0-7", `"u-s":{"app":"8-15"}`))
	o.eventually("u-s", true)
	o.setPods(nodePods(t, "u-x 2026-01-02T03:06:05Z Running - 8", "u-s 2026-01-02T03:06:07Z Failed OutOfcpu 8"),
		state("0-7", `"u-x":{"app":"8-15"}`))
	o.explained("u-s", "rejected it with OutOfcpu")
}

// TestPodsAreShownLate: a kubelet shows a pod later than one that it rejected because of it. A later reading explains the rejection.
func TestPodsAreShownLate(t *testing.T) {
	t.Parallel()
	o := serveNode(t, smallNode(t))
	now := time.Now().UTC().Format(time.RFC3339)
	a, wide := "u-a 2026-01-02T03:04:05Z Running - 3", "u-w "+now+" Failed TopologyAffinityError 8"
	o.setPods(nodePods(t, a, "u-s "+now+" Running - 100m", wide), "")
	o.eventually("u-s", true)
	o.setPods(nodePods(t, a, "u-s "+now+" Running - 100m", "u-b "+now+" Running - 2", wide),
		state("0,4-7,10-15", `"u-a":{"app":"1-3"},"u-b":{"app":"8-9"}`))
	o.explained("u-w", "the kubelet rejected it with TopologyAffinityError; it is explained on the state reconstructed from the 3 pods")
}

// TestSameSecond: the order within a second is not known. The explanation is on the state on which the reason is the kubelet's.
func TestSameSecond(t *testing.T) {
	t.Parallel()
	root := smallNode(t)
	writeAll(t, root, map[string]string{
		cpuState: state("0,4-7,10-15", `"u-a":{"app":"1-3"},"u-b":{"app":"8-9"}`),
		kubelets.PodsFile: podList(t, "u-a 2026-01-02T03:04:05Z Running - 3", "u-s 2026-01-02T03:04:06Z Running - 5500m",
			"u-b 2026-01-02T03:04:09Z Running - 2", "u-w 2026-01-02T03:04:09Z Failed OutOfcpu 7"),
	})
	o := serveNode(t, root)
	o.explained("u-w", "the kubelet rejected it with OutOfcpu; it is explained on the state reconstructed from the 2 pods that still exist and "+
		"were there before\"")
}

// TestInvalidConfiguration: a configuration with which no kubelet decides is said, and the last reading counts.
func TestInvalidConfiguration(t *testing.T) {
	t.Parallel()
	root := smallNode(t)
	o := serveNode(t, root)
	writeAll(t, root, map[string]string{"var/lib/kubelet/config.yaml": "kind: [\n"})
	o.reload <- os.Interrupt
	o.logs("the kubelet's node cannot be read, so the last reading counts")
	o.eventually("u-a", true)
}

// TestUnreadableState: a state file that is there and cannot be read takes nothing from a pod.
func TestUnreadableState(t *testing.T) {
	t.Parallel()
	root := smallNode(t)
	o := serveNode(t, root)
	if err := os.Remove(filepath.Join(root, cpuState)); err != nil {
		t.Fatal(err)
	}
	writeAll(t, root, map[string]string{cpuState + "/file": ""})
	o.reload <- os.Interrupt
	o.logs("state file of kind ")
	o.eventually(`"cpuIds":["1","2","3"]`, true)
}

// TestLateDirectory: the directory of device plugins is watched when the kubelet has made it.
func TestLateDirectory(t *testing.T) {
	t.Parallel()
	root := smallNode(t)
	o := serveNode(t, root)
	text := strings.Replace(podList(t, "u-a 2026-01-02T03:04:05Z Running - 3"), `"memory": "64Mi"`,
		`"memory": "64Mi", "example.com/gpu": "1"`, 1)
	o.setPods(decodePods(t, text), "")
	checkpoint := filepath.Join(root, "var/lib/kubelet/device-plugins/kubelet_internal_checkpoint")
	if err := os.Mkdir(filepath.Dir(checkpoint), 0o755); err != nil {
		t.Fatal(err)
	}
	nodetest.Eventually(t, 60*time.Second, "the device", func() bool {
		// Each writing is a change, because the first one may come before the watch.
		err := os.WriteFile(checkpoint, []byte(`{"Data":{"PodDeviceEntries":[
			{"PodUID":"u-a","ContainerName":"app","ResourceName":"example.com/gpu","DeviceIDs":{"0":["g0"]},"AllocResp":""}],
			"RegisteredDevices":{"example.com/gpu":["g0","g1"]}},"Checksum":1057586120}`), 0o600)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Contains(strings.Join(answers(t, o.conn), " "), "g0")
	})
}

// TestHugePagesCome: a machine with other huge pages is another one.
func TestHugePagesCome(t *testing.T) {
	t.Parallel()
	root := smallNode(t)
	o := serveNode(t, root)
	capacity := func(conn grpc.ClientConnInterface) string {
		c, err := nodev1.NewNodeServiceClient(conn).GetCapacity(t.Context(), &nodev1.GetCapacityRequest{})
		if err != nil {
			return err.Error()
		}
		return compact(t, c)
	}
	const pages = "/hugepages/hugepages-2048kB/"
	writeAll(t, root, map[string]string{
		"sys/devices/system/node/node0" + pages + "nr_hugepages":   "512\n",
		"sys/devices/system/node/node0" + pages + "free_hugepages": "512\n",
		"sys/devices/system/node/node1" + pages + "nr_hugepages":   "0\n",
		"sys/devices/system/node/node1" + pages + "free_hugepages": "0\n",
	})
	n, err := observe.Open(t.Context(), observe.Options{Root: root})
	if err != nil {
		t.Fatal(err)
	}
	want := capacity(n)
	if want == capacity(o.conn) {
		t.Fatalf("the machine is the same: %s", want)
	}
	o.reload <- os.Interrupt
	nodetest.Eventually(t, 30*time.Second, "the huge pages", func() bool { return capacity(o.conn) == want })
}

// TestReadsAreServed: what only reads is not refused, whatever its name is.
func TestReadsAreServed(t *testing.T) {
	t.Parallel()
	o := serveNode(t, smallNode(t))
	stream, err := reflection.NewServerReflectionClient(o.conn).ServerReflectionInfo(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	list := &reflection.ServerReflectionRequest{MessageRequest: &reflection.ServerReflectionRequest_ListServices{}}
	if err := stream.Send(list); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Errorf("reflection: %v", err)
	}
	_, err = cgroupv1.NewCgroupServiceClient(o.conn).Plan(t.Context(), &cgroupv1.PlanRequest{})
	if status.Code(err) == codes.FailedPrecondition {
		t.Errorf("cgroup plan: %v", err)
	}
}

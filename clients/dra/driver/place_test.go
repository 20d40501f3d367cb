package driver

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/clients/berth"
	"github.com/berthd/berth/clients/nri/cdi"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/server/servertest"
)

const node = "worker"

// place is a node with berthd, a directory of CDI files, and a driver.
type place struct {
	*Driver
	t    testing.TB
	root string
	stop func()
	dra  string // the division in berthd's configuration
	// reserved is the reservation in berthd's configuration, and machine its machine, in place of the shape; a file is followed.
	reserved, machine string
	// pod is the pod of all claims, and gates what the kubelet declares. dropped is set if the API server has no feature gate.
	pod     *corev1.Pod
	gates   []string
	dropped bool
	// api is what the API server has.
	api *apiServer
	// sold and soldMemory are what the scheduler gives to pods, in place of what is not reserved.
	sold, soldMemory string
}

// nodeStatus is what the kubelet reports of the machine: 16 CPUs of which 14 are reserved.
func (p *place) nodeStatus(context.Context) (corev1.NodeStatus, error) {
	return corev1.NodeStatus{
		Capacity: corev1.ResourceList{"cpu": resource.MustParse("16"), "memory": resource.MustParse("128Gi")},
		Allocatable: corev1.ResourceList{"cpu": resource.MustParse(cmp.Or(p.sold, "2")),
			"memory": resource.MustParse(cmp.Or(p.soldMemory, "108Gi")), "pods": resource.MustParse("110")},
		DeclaredFeatures: p.gates,
		Conditions:       []corev1.NodeCondition{{Type: corev1.NodeReady, Status: cmp.Or(p.api.ready, corev1.ConditionTrue)}},
	}, nil
}

// podOf is the API server's answer.
func (p *place) podOf(_ context.Context, namespace, name string) (*corev1.Pod, error) {
	if p.pod == nil || namespace != "default" || name != "p" {
		return nil, fmt.Errorf("there is no pod %s/%s", namespace, name)
	}
	return p.pod, nil
}

// accepted is the API server's answer.
func (p *place) accepted(_ context.Context, s *resourceapi.ResourceSlice) (*resourceapi.ResourceSlice, error) {
	s = s.DeepCopy()
	for i := range s.Spec.Devices {
		if p.dropped {
			s.Spec.Devices[i].NodeAllocatableResources = nil
		}
	}
	return s, nil
}

// newPlace has two NUMA nodes of 8 CPUs, of which claims may have 1-3 and 9-11, and 4-6 and 12-14.
func newPlace(t testing.TB, options string) *place {
	t.Helper()
	return newPlaceOf(t, options, func(*place) {})
}

func newPlaceOf(t testing.TB, options string, change func(*place)) *place {
	t.Helper()
	root, err := os.MkdirTemp("", "dra") // paths of sockets are short (unix(7))
	if err != nil {
		t.Fatal(err)
	}
	p := &place{t: t, root: root, stop: func() {}, api: &apiServer{},
		dra: `{cpus: "1-6,9-14", memory: [{numaNode: 0, limits: {memory: 8Gi}}, {numaNode: 1, limits: {memory: 8Gi}}]}`}
	change(p)
	t.Cleanup(func() {
		p.stop()
		_ = p.Close()
		_ = p.Client.Close()
		if err := os.RemoveAll(root); err != nil {
			t.Error(err)
		}
	})
	p.startBerthd(options)
	p.startDriver()
	return p
}

func (p *place) startBerthd(options string) {
	p.t.Helper()
	c := config.Default()
	_, _ = c.BesideKubelet()
	text := `apiVersion: config.berthd.github.io/v1alpha1
kind: BerthConfiguration
rootDir: ` + p.root + `
machine: ` + cmp.Or(p.machine, "2s4c2t,mem=64Gi") + `
hotplug: {poll: 10ms, debounce: 1ms}
log: {level: error}
cpu: {policy: static` + options + `}
reserved: {` + cmp.Or(p.reserved, `cpus: "0-6,8-14", system: {memory: 20Gi}`) + `, evictionHard: {}}
memory: {policy: Static, reserved: [{numaNode: 0, limits: {memory: 10Gi}}, {numaNode: 1, limits: {memory: 10Gi}}]}
dra: ` + p.dra + `
privileges: {dropCapabilities: false, landlock: false, seccomp: false}
`
	if err := c.ApplyBerth("test", []byte(text)); err != nil {
		p.t.Fatal(err)
	}
	c.Listen, c.StateDir, c.PodResourcesDir = p.root+"/berth.sock", p.root+"/state", new(p.root+"/pod-resources")
	p.stop = servertest.Start(p.t, c)
	if p.Driver == nil {
		return
	}
	// A client whose attempt to connect has just failed does not try again at once.
	if err := p.Client.WaitReady(p.t.Context()); err != nil {
		p.t.Fatal(err)
	}
}

func (p *place) startDriver() {
	p.t.Helper()
	if p.Driver != nil {
		_ = p.Close()
		_ = p.Client.Close()
	}
	client, err := berth.Dial(p.t.Context(), p.root+"/berth.sock", berth.Options{Owner: Owner})
	if err != nil {
		p.t.Fatal(err)
	}
	p.Driver, err = New(Config{Client: client, NodeName: node, CDIDirectory: filepath.Join(p.root, "cdi"), CPUModel: "Quay 1",
		NodeStatus: p.nodeStatus, Pod: p.podOf, Accepted: p.accepted,
		Slices: p.api.slices, ReadClaim: p.api.claim, Fail: func(err error) { p.t.Error(err) }, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		p.t.Fatal(err)
	}
}

// with adds the devices of other claims to a claim.
func with(c *resourceapi.ResourceClaim, others ...*resourceapi.ResourceClaim) *resourceapi.ResourceClaim {
	for _, o := range others {
		c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results, o.Status.Allocation.Devices.Results[1])
	}
	return c
}

// under changes the request of a claim's device.
func under(request string, c *resourceapi.ResourceClaim) *resourceapi.ResourceClaim {
	c.Status.Allocation.Devices.Results[1].Request = request
	return c
}

// allocated is a claim with the scheduler's allocation.
func allocated(uid string, numa, cpus int, memory string) *resourceapi.ResourceClaim {
	return &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid), Namespace: "default", Name: "claim-" + uid},
		Status: resourceapi.ResourceClaimStatus{
			ReservedFor: []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: "p", UID: "p"}},
			Allocation: &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
				Results: []resourceapi.DeviceRequestAllocationResult{
					{Request: "gpu", Driver: "gpu.example.com", Pool: node, Device: "gpu-0"},
					{Request: "place", Driver: Name, Pool: node, Device: fmt.Sprintf("numa-%d", numa),
						ConsumedCapacity: map[resourceapi.QualifiedName]resource.Quantity{
							"cpu": *resource.NewQuantity(int64(cpus), resource.DecimalSI), "memory": resource.MustParse(memory),
						}},
				}}},
		},
	}
}

func (p *place) prepared(c *resourceapi.ResourceClaim) kubeletplugin.PrepareResult {
	p.t.Helper()
	results, err := p.PrepareResourceClaims(p.t.Context(), []*resourceapi.ResourceClaim{c})
	if err != nil || len(results) != 1 {
		p.t.Fatalf("%v, %v", results, err)
	}
	return results[c.UID]
}

func (p *place) unprepare(uid string) {
	p.t.Helper()
	errs, err := p.UnprepareResourceClaims(p.t.Context(), []kubeletplugin.NamespacedObject{{UID: types.UID(uid)}})
	if err != nil || errs[types.UID(uid)] != nil || len(errs) != 1 {
		p.t.Fatalf("%v, %v", errs, err)
	}
}

// held are the CPUs of the claims in berthd, by uid; CDI files must say the same.
func (p *place) held() string {
	p.t.Helper()
	list, err := p.Client.Allocation().List(p.t.Context(), &allocationv1.ListRequest{Owner: Owner})
	if err != nil {
		p.t.Fatal(err)
	}
	var out []string
	var cpus cpuset.Set
	for _, c := range list.GetPods() {
		text, err := os.ReadFile(filepath.Join(p.root, "cdi", fileName(c.GetUid())))
		var all []string
		for _, part := range c.GetContainers() {
			has := part.GetCpus().GetList()
			if set, err := cpuset.Parse(has); err != nil {
				p.t.Error(err)
			} else {
				cpus = cpus.Union(set)
			}
			variable := `"BERTH_` + strings.ToUpper(strings.ReplaceAll(part.GetContainerName(), "-", "_")) + `_CPUS=` + has + `"`
			if err != nil || !strings.Contains(string(text), variable) || !json.Valid(text) {
				p.t.Errorf("CDI file of %s, which has %s: %v, %s", c.GetUid(), variable, err, text)
			}
			all = append(all, has)
		}
		out = append(out, c.GetUid()+": "+strings.Join(all, " and "))
	}
	reader := cdi.Reader{Directories: []string{filepath.Join(p.root, "cdi")}}
	if got, err := reader.PreparedCPUs(func(string) bool { return false }); got != cpus || err != nil {
		p.t.Errorf("berth-nri reads CPUs %s, want %s, %v", got, cpus, err)
	}
	files, err := filepath.Glob(filepath.Join(p.root, "cdi", "*"))
	if err != nil || len(files) != len(out) {
		p.t.Errorf("CDI files %v, %v of claims %v", files, err, out)
	}
	slices.Sort(out)
	return strings.Join(out, "; ")
}

func (p *place) want(what, held string) {
	p.t.Helper()
	if got := p.held(); got != held {
		p.t.Errorf("%s: held are %q, want %q", what, got, held)
	}
}

// lose restarts berthd without its ledger.
func (p *place) lose() { p.loseOnly("/state", "/claims") }

// loseOnly starts berthd again without some of its directories.
func (p *place) loseOnly(dirs ...string) {
	p.t.Helper()
	p.stop()
	for _, dir := range dirs {
		if err := os.RemoveAll(p.root + dir); err != nil {
			p.t.Fatal(err)
		}
	}
	p.startBerthd("")
}

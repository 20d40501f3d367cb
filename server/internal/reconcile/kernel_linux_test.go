package reconcile_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/qos"
	"github.com/berthd/berth/managers/workload"
	"github.com/berthd/berth/server/internal/host/cgroupfs"
	"github.com/berthd/berth/server/internal/host/cgroupfs/ocicgroups"
	"github.com/berthd/berth/server/internal/reconcile"
)

// capture is one moment of a real kubelet 1.36.3: its pods and what the control
// files of their cgroups and of the tiers had. Package cgroup has the data.
type capture struct {
	Name        string
	Version     cgroup.Version
	CFSQuota    bool
	PIDsLimit   int64 `json:"podPidsLimit"`
	MemoryQoS   bool
	Policy      cgroup.ReservationPolicy
	Memory      int64
	Allocatable int64
	Tiers       map[string]map[string]string
	Pods        []struct {
		Name      string
		Pod       workload.Pod
		Tier      string
		Exclusive []string
		Files     map[string]string
	}
}

// config is what the captured kubelet was configured with, on the tree at hand.
func (c capture) config(f cgroup.Facts) cgroup.Config {
	config := cgroup.DefaultConfig(f)
	config.CFSQuota, config.PodPIDsLimit = c.CFSQuota, c.PIDsLimit
	config.MemoryQoS, config.ReservationPolicy = c.MemoryQoS, c.Policy
	config.MemoryBytes, config.AllocatableMemoryBytes = c.Memory, c.Allocatable
	return config
}

// view has the captured pods, with an exclusive CPU where the kubelet gave one.
// Which one does not matter for what is compared.
func (c capture) view(t *testing.T, f workload.Features) *ledger.View {
	t.Helper()
	d := ledger.NewDraft(ledgertest.New(t, ledger.Rules{Machine: machinetest.Build("1s8c")}).View())
	for _, p := range c.Pods {
		pod, _ := workload.Defaulted(p.Pod, f)
		record := &ledger.Pod{Pod: pod, QoS: pod.QoSClass(f)}
		for _, name := range p.Exclusive {
			record.Claims = append(record.Claims, ledger.Claim{
				Owner: ledger.Owner{Pod: pod.UID, Container: name},
				CPUs:  &ledger.CPUs{Set: cpuset.Of(1), Use: ledger.CPUExclusive},
			})
		}
		d.PutPod(record)
	}
	return d.View()
}

// The kubelet and berth, given the same pods, leave the same values in the
// kernel's files. Each version of cgroups is held against the captures of it.
func TestKernelHoldsWhatTheKubeletWrote(t *testing.T) {
	t.Parallel()
	tree, err := cgroupfs.Open(cgroupfs.Options{Setter: ocicgroups.Setter{}})
	if err != nil {
		t.Skipf("no usable tree: %v", err)
	}
	t.Cleanup(func() { _ = tree.Close() })
	data, err := os.ReadFile("../../../managers/cgroup/testdata/kubelet.json")
	if err != nil {
		t.Fatal(err)
	}
	var captures []capture
	if err := json.Unmarshal(data, &captures); err != nil {
		t.Fatal(err)
	}
	for i, c := range captures {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			if c.Version != tree.Facts().Version {
				t.Skipf("the capture is of cgroup v%d, this tree is v%d", c.Version, tree.Facts().Version)
			}
			c.compare(t, tree, fmt.Sprintf("/berthtest-kubelet-%d-%d", os.Getpid(), i))
		})
	}
}

// compare makes the captured pods' cgroups below root and reads them back.
func (c capture) compare(t *testing.T, tree *cgroupfs.Driver, root string) {
	t.Helper()
	facts := tree.Facts()
	layout, err := cgroup.NewLayout(root, facts.Driver)
	if err != nil {
		t.Fatal(err)
	}
	config := c.config(facts)
	view := c.view(t, config.Features)
	loop := reconcile.New(reconcile.Config{
		Tree: tree, Layout: layout, Limits: reconcile.Limits{QoS: qos.Config{Cgroup: config}, Pods: allPods(c.Allocatable)},
		View: func() *ledger.View { return view }, Log: slog.New(slog.DiscardHandler),
	})
	t.Cleanup(func() {
		if err := tree.Remove(context.WithoutCancel(t.Context()), cgroup.Name{strings.TrimPrefix(root, "/")}); err != nil {
			t.Errorf("left behind: %v", err)
		}
	})
	err = loop.Pass(t.Context())
	if errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.EROFS) {
		t.Skipf("the tree cannot be written to (uid %d): %v", os.Getuid(), err)
	}
	if err != nil {
		t.Fatal(err)
	}
	folder := map[string]string{"pods": "/kubepods", "burstable": "/kubepods/burstable", "besteffort": "/kubepods/besteffort"}
	for tier, files := range c.Tiers {
		if tier != "pods" || strings.Contains(c.Name, "cgroupfs") { // the others' nodes had another size
			same(t, facts, root+folder[tier], files)
		}
	}
	for _, p := range c.Pods {
		same(t, facts, root+folder[p.Tier]+"/pod"+p.Pod.UID, p.Files)
	}
}

// allPods are the captured node's own limits: 14 CPUs, the allocatable memory, and
// the processes that its kernel had room for.
func allPods(memory int64) cgroup.Values {
	shares, pids := uint64(14*1024), int64(63620)
	return cgroup.Values{CPUShares: &shares, MemoryBytes: &memory, PIDs: &pids}
}

// same compares the kernel's files of a cgroup.
func same(t *testing.T, facts cgroup.Facts, name string, want map[string]string) {
	t.Helper()
	for file, value := range want {
		if size, ok := strings.CutPrefix(file, "hugetlb."); ok && !slices.ContainsFunc(facts.HugePageSizes, func(n int64) bool {
			return strings.HasPrefix(size, cgroup.HugePageLabel(n)+".")
		}) {
			continue // this kernel has no pages of that size
		}
		folder := "/sys/fs/cgroup"
		if facts.Version == cgroup.V1 {
			controller, _, _ := strings.Cut(file, ".")
			folder = filepath.Join(folder, controller)
		}
		text, err := os.ReadFile(filepath.Join(folder, name, file))
		if got := strings.TrimSpace(string(text)); err != nil || got != value {
			t.Errorf("%s of %s is %q, %v; the kubelet left %q", file, name, got, err, value)
		}
	}
}

package qos

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"os"
	"reflect"
	"slices"
	"testing"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/workload"
)

// view has the given pods.
func view(t *testing.T, pods ...*ledger.Pod) *ledger.View {
	t.Helper()
	d := ledger.NewDraft(ledgertest.New(t, ledger.Rules{Machine: machinetest.Build("1s8c")}).View())
	for _, p := range pods {
		d.PutPod(p)
	}
	return d.View()
}

// request is a pod of one container.
func request(uid string, class workload.QoSClass, milliCPU, bytes int64) *ledger.Pod {
	p := ledgertest.Pod(uid, "c")
	p.QoS = class
	p.Pod.Containers[0].Requests = workload.Quantities{workload.CPU: milliCPU, workload.Memory: bytes}
	return p
}

func layout(t *testing.T) cgroup.Layout {
	t.Helper()
	l, err := cgroup.NewLayout("/", cgroup.Cgroupfs)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// tiers gives the files of each tier by its path.
func tiers(nodes []cgroup.Node, f cgroup.Facts) map[string]map[string]string {
	out := make(map[string]map[string]string)
	for _, n := range nodes {
		files := make(map[string]string)
		for _, file := range n.Values.Files(f) {
			files[file.Name] = file.Text
		}
		out[n.Name.String()] = files
	}
	return out
}

func expect(t *testing.T, got, want map[string]map[string]string) {
	t.Helper()
	for name, files := range want {
		if !maps.Equal(got[name], files) {
			t.Errorf("%s holds %v, want %v", name, got[name], files)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d tiers, want %d", len(got), len(want))
	}
}

func TestNodes(t *testing.T) {
	t.Parallel()
	const mi, gi = int64(1) << 20, int64(1) << 30
	v := view(t,
		request("g", workload.Guaranteed, 2000, 28936*mi),
		request("b1", workload.Burstable, 4700, 2000*mi),
		request("b2", workload.Burstable, 51, 1000*mi),
		request("e", workload.BestEffort, 0, 0))
	config := func(version cgroup.Version, change func(*Config)) Config {
		c := Config{Cgroup: cgroup.DefaultConfig(cgroup.Facts{Version: version, PageBytes: 4096, HugePageSizes: []int64{2 * mi}})}
		c.Cgroup.AllocatableMemoryBytes = 62 * gi
		change(&c)
		return c
	}
	unprotected := map[string]string{"memory.min": "0", "memory.low": "0"}
	for _, row := range []struct {
		name                     string
		config                   Config
		pods, burstable, besteff map[string]string
	}{
		{"v1", config(cgroup.V1, func(*Config) {}), nil, map[string]string{"cpu.shares": "4865"}, map[string]string{"cpu.shares": "2"}},
		{"v2", config(cgroup.V2, func(*Config) {}), unprotected, map[string]string{"cpu.weight": "186", "memory.low": "0"},
			map[string]string{"cpu.weight": "1"}},
		{"without memory QoS", config(cgroup.V2, func(c *Config) { c.Cgroup.MemoryQoS = false }),
			unprotected, map[string]string{"cpu.weight": "186", "memory.low": "0"}, map[string]string{"cpu.weight": "1"}},
		{"memory QoS, tiered", config(cgroup.V2, func(c *Config) { c.Cgroup.ReservationPolicy = cgroup.ReserveTiered }),
			map[string]string{"memory.min": "33487323136", "memory.low": "3145728000"},
			map[string]string{"cpu.weight": "186", "memory.low": "3145728000"},
			map[string]string{"cpu.weight": "1"}},
		{"memory QoS does nothing on v1", config(cgroup.V1, func(c *Config) { c.Cgroup.ReservationPolicy = cgroup.ReserveTiered }),
			nil, map[string]string{"cpu.shares": "4865"}, map[string]string{"cpu.shares": "2"}},
		{"reserved memory", config(cgroup.V2, func(c *Config) { c.ReservedMemory = 50 }),
			unprotected, map[string]string{"cpu.weight": "186", "memory.low": "0", "memory.max": "51401195520"},
			map[string]string{"cpu.weight": "1", "memory.max": "49828331520"}},
		{"reserved memory on a small node", config(cgroup.V2, func(c *Config) {
			c.ReservedMemory, c.Cgroup.AllocatableMemoryBytes = 100,
				29*gi
		}),
			unprotected, map[string]string{"cpu.weight": "186", "memory.low": "0", "memory.max": "796917760"},
			map[string]string{"cpu.weight": "1"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			pages := "hugetlb.2MB.max"
			if row.config.Cgroup.Facts.Version == cgroup.V1 {
				pages = "hugetlb.2MB.limit_in_bytes"
			}
			want := map[string]map[string]string{
				"/kubepods": row.pods, "/kubepods/burstable": row.burstable, "/kubepods/besteffort": row.besteff,
			}
			for name, files := range want {
				all := map[string]string{pages: "4611686018427387904"}
				maps.Copy(all, files)
				want[name] = all
			}
			nodes := Nodes(v, layout(t), row.config)
			expect(t, tiers(nodes, row.config.Cgroup.Facts), want)
			for _, class := range []workload.QoSClass{workload.Guaranteed, workload.Burstable, workload.BestEffort} {
				above := slices.DeleteFunc(slices.Clone(nodes), func(n cgroup.Node) bool { return !layout(t).Tier(class).Within(n.Name) })
				if got := Above(v, layout(t), row.config, class); !reflect.DeepEqual(got, above) {
					t.Errorf("above %s pods is %+v, want %+v", class, got, above)
				}
			}
		})
	}
}

// The recorded tiers of real kubelets 1.36.3. Of the node of all pods only what
// the QoS classes decide is compared: its shares, memory and pids are node
// allocatable's.
func TestNodesAreLikeTheKubelets(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("../cgroup/testdata/kubelet.json")
	if err != nil {
		t.Fatal(err)
	}
	var captures []struct {
		Name      string
		Version   cgroup.Version
		MemoryQoS bool
		Policy    cgroup.ReservationPolicy
		HugePages []int64 `json:"hugePageSizes"`
		Tiers     map[string]map[string]string
		Pods      []struct{ Pod workload.Pod }
	}
	if err := json.Unmarshal(data, &captures); err != nil {
		t.Fatal(err)
	}
	for _, c := range captures {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			config := Config{Cgroup: cgroup.DefaultConfig(cgroup.Facts{Version: c.Version, PageBytes: 4096, HugePageSizes: c.HugePages})}
			config.Cgroup.MemoryQoS, config.Cgroup.ReservationPolicy = c.MemoryQoS, c.Policy
			var pods []*ledger.Pod
			for _, p := range c.Pods {
				pod, _ := workload.Defaulted(p.Pod, config.Cgroup.Features)
				pods = append(pods, &ledger.Pod{Pod: pod, QoS: pod.QoSClass(config.Cgroup.Features)})
			}
			got := tiers(Nodes(view(t, pods...), layout(t), config), config.Cgroup.Facts)
			for tier, name := range map[string]string{"pods": "/kubepods", "burstable": "/kubepods/burstable",
				"besteffort": "/kubepods/besteffort"} {
				for file, text := range got[name] {
					if tier == "pods" && file == "memory.low" {
						continue // not before 1.37
					}
					if c.Tiers[tier][file] != text {
						t.Errorf("%s: %s is %s, want %s", name, file, text, c.Tiers[tier][file])
					}
				}
			}
		})
	}
}

func TestSumsStopAtTheEnd(t *testing.T) {
	t.Parallel()
	v := view(t, request("a", workload.Burstable, math.MaxInt64, math.MaxInt64), request("b", workload.Burstable, 1000, 1))
	got := Sums(v, workload.Features{})[workload.Burstable]
	if got.MilliCPU != math.MaxInt64 || got.MemoryBytes != math.MaxInt64 {
		t.Errorf("sums %+v, want the largest numbers", got)
	}
}

func TestSumsOfPodLevel(t *testing.T) {
	t.Parallel()
	p := request("a", workload.Burstable, 1000, 10)
	p.Pod.Resources = &workload.Resources{Requests: workload.Quantities{workload.CPU: 3000, workload.Memory: 30}}
	v := view(t, p)
	for on, want := range map[bool]Requests{true: {3000, 30}, false: {1000, 30}} {
		if got := Sums(v, workload.Features{PodLevelResources: on})[workload.Burstable]; got != want {
			t.Errorf("with pod-level resources %t: %+v, want %+v", on, got, want)
		}
	}
}

func TestAboveUsage(t *testing.T) {
	t.Parallel()
	limit := func(n int64) cgroup.Values { return cgroup.Values{MemoryBytes: &n} }
	nodes := []cgroup.Node{{Name: cgroup.Name{"a"}, Values: limit(100)}, {Name: cgroup.Name{"b"}, Values: limit(100)},
		{Name: cgroup.Name{"c"}}}
	seen := &cgroup.Snapshot{Nodes: []cgroup.Observed{
		{Name: cgroup.Name{"a"}, MemoryUsageBytes: 150}, {Name: cgroup.Name{"b"}, MemoryUsageBytes: 50},
		{Name: cgroup.Name{"c"}, MemoryUsageBytes: 50},
	}}
	got := AboveUsage(nodes, seen)
	if *got[0].Values.MemoryBytes != 150 || *got[1].Values.MemoryBytes != 100 || got[2].Values.MemoryBytes != nil {
		t.Errorf("limits %d, %d, %v; want 150, 100, none", *got[0].Values.MemoryBytes, *got[1].Values.MemoryBytes,
			got[2].Values.MemoryBytes)
	}
	if *nodes[0].Values.MemoryBytes != 100 {
		t.Error("AboveUsage wrote into what it was given")
	}
}

func TestParseReserved(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Percent{"0%": 0, "50%": 50, "100%": 100, "50%%": 50} {
		if got, err := ParseReserved(map[string]string{"memory": text}); got != want || err != nil {
			t.Errorf("%s: %d, %v, want %d", text, got, err, want)
		}
	}
	for _, bad := range []map[string]string{
		{"memory": "50"}, {"memory": "5.5%"}, {"memory": "101%"}, {"memory": "-1%"}, {"memory": "%"}, {"cpu": "10%"},
	} {
		if got, err := ParseReserved(bad); errdefs.ClassOf(err) != errdefs.Invalid || err == nil {
			t.Errorf("%v: %d, %v, want class invalid", bad, got, err)
		}
	}
	if got, err := ParseReserved(nil); got != 0 || err != nil {
		t.Errorf("nothing reserved: %d, %v", got, err)
	}
}

func ExamplePercent() {
	fmt.Println(Percent(10).of(99), Percent(50).of(math.MaxInt64), Percent(50).of(-1))
	// Output: 9 4611686018427387903 0
}

package cgroupfs

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/moby/sys/mountinfo"
	"github.com/opencontainers/cgroups"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/server/internal/host/cgroupfs/ocicgroups"
)

func ptr[T any](v T) *T { return &v }

// A v2 tree with all controllers, in ordinary files: what is written lands in
// the files of Documentation/admin-guide/cgroup-v2.rst with the right text, and
// is read back as it was meant. The library takes ordinary files only in a mode
// of the whole process, so the test has one of its own.
func TestV2Files(t *testing.T) {
	t.Parallel()
	if os.Getenv(childEnv) == "" {
		inChild(t)
		return
	}
	cgroups.TestMode = true
	d := plainV2(t, "pod")
	values := cgroup.Values{
		CPUShares: ptr(uint64(1024)), CPUQuotaUS: ptr(int64(150_000)), CPUPeriodUS: ptr(uint64(100_000)),
		MemoryBytes: ptr(int64(64 << 20)), PIDs: ptr(int64(0)),
		HugePages: map[int64]int64{2 << 20: 4 << 20},
		Unified:   map[string]string{"memory.min": "4096", "memory.oom.group": "1"},
		Cpuset:    cgroup.Cpuset{CPUs: cpuset.Range(1, 3), Mems: numa.Of(0, 1)},
	}
	name := cgroup.Name{"pod"}
	if _, err := d.Ensure(t.Context(), cgroup.Node{Name: name, Values: values}); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{
		"cpu.weight": "39", "cpu.max": "150000 100000", "memory.max": "67108864", "pids.max": "1", "hugetlb.2MB.max": "4194304",
		"hugetlb.2MB.rsvd.max": "4194304", "memory.min": "4096", "memory.oom.group": "1", "cpuset.cpus": "1-3", "cpuset.mems": "0-1",
	} {
		if got := read(t, d, "pod", file); got != want {
			t.Errorf("%s is %q, want %q", file, got, want)
		}
	}
	seen, err := d.Observe(t.Context(), name, 0)
	if err != nil {
		t.Fatal(err)
	}
	got := seen.Nodes[0]
	if want := values.For(d.Facts()); got.State != cgroup.Valid || !reflect.DeepEqual(got.Values, want) {
		t.Errorf("read back as %s %+v, want %+v", got.State, got.Values, want)
	}
	unlimited := cgroup.Values{CPUQuotaUS: ptr(cgroup.Unlimited), MemoryBytes: ptr(cgroup.Unlimited), PIDs: ptr(cgroup.Unlimited)}
	if _, err := d.Ensure(t.Context(), cgroup.Node{Name: name, Values: unlimited}); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{"cpu.max": "max 100000", "memory.max": "max", "pids.max": "max", "cpu.weight": "39"} {
		if got := read(t, d, "pod", file); got != want {
			t.Errorf("unlimited: %s is %q, want %q", file, got, want)
		}
	}
}

// plainV2 is a driver on ordinary files that look like a v2 tree with one
// cgroup.
func plainV2(t *testing.T, child string) *Driver {
	t.Helper()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, child), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{".", child} {
		file := filepath.Join(dir, path, "cgroup.controllers")
		if err := os.WriteFile(file, []byte(strings.Join(v2Controllers, " ")+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	root, err := openMount(dir)
	if err != nil {
		t.Fatal(err)
	}
	d := &Driver{tree: tree{mount: dir, root: root}, killTimeout: defaultKillTimeout, setter: ocicgroups.Setter{}}
	t.Cleanup(func() { _ = d.Close() })
	if err := d.detectV2(); err != nil {
		t.Fatal(err)
	}
	d.facts.PageBytes, d.facts.HugePageSizes = 4096, []int64{2 << 20}
	if err := d.openMounts(); err != nil {
		t.Fatal(err)
	}
	return d
}

func read(t *testing.T, d *Driver, path, file string) string {
	t.Helper()
	text, err := d.root.ReadFile(filepath.Join(path, file))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}

func TestMissingControllersAreNamed(t *testing.T) {
	t.Parallel()
	d := plainV2(t, "pod")
	if err := d.root.WriteFile("pod/cgroup.controllers", []byte("cpu memory pids\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	seen, err := d.Observe(t.Context(), cgroup.Name{"pod"}, 0)
	if err != nil {
		t.Fatal(err)
	}
	if got := seen.Nodes[0]; got.State != cgroup.Invalid || got.Reason != "has some missing controllers: cpuset, hugetlb" {
		t.Errorf("%s, %q", got.State, got.Reason)
	}
}

func TestUnreadableValueNamesItsFile(t *testing.T) {
	t.Parallel()
	for file, text := range map[string]string{
		"cpu.max": "plenty", "memory.max": "much", "cpu.weight": "heavy", "cpuset.cpus": "all", "cpuset.mems": "1-", "hugetlb.2MB.max": "x",
	} {
		d := plainV2(t, "pod")
		if err := d.root.WriteFile(filepath.Join("pod", file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := d.Observe(t.Context(), cgroup.Name{"pod"}, 0); err == nil || !strings.Contains(err.Error(), file) {
			t.Errorf("%s holds %q: %v, want an error that names the file", file, text, err)
		}
	}
}

func TestParseLimit(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int64{
		"0": 0, "4096": 4096, "max": -1, "-1": -1, "4611686018427387904": 1 << 62,
		"9223372036854771712": -1, "9223372036852678656": -1, "9223372035781033984": -1, "9223372036854775807": -1,
	} {
		if got, err := parseLimit(text); got != want || err != nil {
			t.Errorf("%s: %d, %v, want %d", text, got, err, want)
		}
	}
}

// mountsOf parses the text of a mountinfo.
func mountsOf(t *testing.T, text string) []*mountinfo.Info {
	t.Helper()
	mounts, err := mountinfo.GetMountsFromReader(strings.NewReader(text), cgroupMounts)
	if err != nil {
		t.Fatal(err)
	}
	return mounts
}

func TestV1Hierarchies(t *testing.T) {
	t.Parallel()
	mounts := mountsOf(t, `31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
33 31 0:30 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
34 31 0:31 / /sys/fs/cgroup/devices rw - cgroup cgroup rw,devices
35 31 0:30 / /sys/fs/cgroup/long/path/memory rw,relatime - cgroup cgroup rw,memory
36 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,xattr,name=systemd
37 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
38 23 0:39 / /elsewhere/cpuset rw - cgroup cgroup rw,cpuset
`)
	want := []hierarchy{
		{"cpu,cpuacct", []string{"cpu", "cpuacct"}},
		{"memory", []string{"memory"}},
		{"systemd", []string{"name=systemd"}},
		{"unified", []string{""}},
	}
	if got := v1Hierarchies("/sys/fs/cgroup", mounts, v1Controllers); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	want = []hierarchy{{"devices", []string{"devices"}}}
	if got := v1Hierarchies("/sys/fs/cgroup", mounts, runtimeControllers); !reflect.DeepEqual(got, want) {
		t.Errorf("of runtimes: got %+v, want %+v", got, want)
	}
}

// TestRequiredControllers: what the kubelet insists on at its start on v1, and the
// same on v2, has to be there; the error names what is not.
func TestRequiredControllers(t *testing.T) {
	t.Parallel()
	v1 := func(controllers ...string) func(*testing.T) *Driver {
		return func(t *testing.T) *Driver {
			t.Helper()
			d := &Driver{tree: tree{mount: t.TempDir()}}
			var err error
			if d.root, err = openMount(d.mount); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = d.Close() })
			var text strings.Builder
			for _, c := range controllers {
				fmt.Fprintf(&text, "32 31 0:29 / %s/%s rw,relatime - cgroup cgroup rw,%s\n", d.mount, c, c)
			}
			if err := d.detectV1(mountsOf(t, text.String())); err != nil {
				t.Fatal(err)
			}
			return d
		}
	}
	v2 := func(controllers ...string) func(*testing.T) *Driver {
		return func(t *testing.T) *Driver {
			t.Helper()
			d := plainV2(t, "pod")
			if err := d.root.WriteFile("cgroup.controllers", []byte(strings.Join(controllers, " ")+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := d.detectV2(); err != nil {
				t.Fatal(err)
			}
			return d
		}
	}
	for name, row := range map[string]struct {
		open     func(*testing.T) *Driver
		required []string
		want     string // missing; empty where nothing is
	}{
		"v1, all":                  {open: v1("cpu,cpuacct", "cpuset", "memory")},
		"v1, and those of no need": {open: v1("cpu", "cpuacct", "cpuset", "memory", "pids", "hugetlb")},
		"v1 without cpuset":        {open: v1("cpu,cpuacct", "memory", "pids"), want: `cgroup v1 without the controllers ["cpuset"]`},
		"v1 without cpuacct":       {open: v1("cpu", "cpuset", "memory"), want: `cgroup v1 without the controllers ["cpuacct"]`},
		"v1 with next to nothing": {open: v1("pids"),
			want: `cgroup v1 without the controllers ["cpu" "cpuset" "memory" "cpuacct"], only ["pids"]`},
		"v2, all":                    {open: v2("cpu", "cpuset", "memory")},
		"v2 without memory":          {open: v2("cpu", "cpuset", "io", "pids"), want: `cgroup v2 without the controllers ["memory"]`},
		"v2 beside v1, with nothing": {open: v2(), want: `cgroup v2 without the controllers ["cpu" "cpuset" "memory"], only []`},
		"nothing is asked for":       {open: v2(), required: []string{}},
		"something else is": {open: v2("cpu"), required: []string{"cpu", "gravity"},
			want: `cgroup v2 without the controllers ["gravity"]`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := row.open(t).require(row.required)
			switch {
			case row.want == "":
				if err != nil {
					t.Error(err)
				}
			case errdefs.ClassOf(err) != errdefs.Unsupported || !strings.Contains(err.Error(), row.want):
				t.Errorf("%v (%s), want %s of class unsupported", err, errdefs.ClassOf(err), row.want)
			}
		})
	}
}

func TestHugePageSizes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{"hugepages-1048576kB", "hugepages-2048kB", "other"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := hugePageSizes(dir); err != nil || !reflect.DeepEqual(got, []int64{2 << 20, 1 << 30}) {
		t.Errorf("sizes %v, %v", got, err)
	}
	if got, err := hugePageSizes(filepath.Join(dir, "none")); err != nil || got != nil {
		t.Errorf("no directory: %v, %v, want none", got, err)
	}
	if err := os.Mkdir(filepath.Join(dir, "hugepages-manykB"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := hugePageSizes(dir); err == nil {
		t.Error("a size that is no number was accepted")
	}
}

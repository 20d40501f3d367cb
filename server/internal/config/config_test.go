package config_test

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/pflag"

	document "github.com/berthd/berth/api/config"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/memory"
	"github.com/berthd/berth/managers/workload"
	"github.com/berthd/berth/server/internal/config"
	"github.com/berthd/berth/server/internal/socket"
)

// load builds a configuration from the texts of files and from flags.
func load(t *testing.T, kubelet, berth string, args ...string) (document.Config, []string, error) {
	t.Helper()
	fs := pflag.NewFlagSet("berthd", pflag.ContinueOnError)
	s := config.AddFlags(fs)
	if err := fs.Parse(args); err != nil {
		t.Fatal(err)
	}
	write := func(name, text string) string {
		if text == "" {
			return ""
		}
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	s.KubeletFile, s.BerthFile = write("kubelet.yaml", kubelet), write("berth.yaml", berth)
	return config.Load(*s)
}

const (
	kubeletHead = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
	berthHead   = "apiVersion: config.berthd.github.io/v1alpha1\nkind: BerthConfiguration\n"
)

func TestDefaultsAreTheKubeletsPaths(t *testing.T) {
	t.Parallel()
	c, notes, err := load(t, "", "")
	if err != nil || len(notes) != 0 {
		t.Fatal(notes, err)
	}
	for got, want := range map[string]string{
		c.Listen:                  "/run/berth/berth.sock",
		c.StateDir:                "/var/lib/berth",
		c.DevicePluginSocket():    "/var/lib/kubelet/device-plugins/kubelet.sock",
		c.PodResourcesSocket():    "/var/lib/kubelet/pod-resources/kubelet.sock",
		c.CPU.Policy:              "none",
		string(c.Topology.Policy): "none",
	} {
		if got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

// TestBesideKubelet: one switch leaves the kubelet what is the kubelet's, and each part can still be
// set by itself.
func TestBesideKubelet(t *testing.T) {
	t.Parallel()
	kubelet := kubeletHead + "reservedSystemCPUs: \"0\"\ncpuManagerPolicy: none\nfailSwapOn: true\ncgroupDriver: systemd\n"
	for name, berthd := range map[string]struct {
		file string
		args []string
	}{
		"by a flag":  {"", []string{"--beside=kubelet", "--cpu-manager-policy", "static"}},
		"by a field": {berthHead + "beside: kubelet\ncpu: {policy: static}\n", nil},
	} {
		c, notes, err := load(t, kubelet, berthd.file, berthd.args...)
		if err != nil {
			t.Fatal(name, err)
		}
		if c.DevicePluginSocket() != "" || c.PodResourcesSocket() != "/run/berth/pod-resources/kubelet.sock" || *c.PluginRegistryDir != "" {
			t.Errorf("%s: berthd serves the kubelet's sockets, or not its own of podresources: %q, %q, %q", name, c.DevicePluginSocket(),
				c.PodResourcesSocket(), *c.PluginRegistryDir)
		}
		if c.Cgroups.Tree != document.TreeMemory || c.Node.NodeFit || c.Node.FailSwapOn ||
			!slices.Equal(c.Devices.Elsewhere, []string{"*"}) {
			t.Errorf("%s: got tree %s, node fit %v, swap %v, elsewhere %v", name, c.Cgroups.Tree, c.Node.NodeFit, c.Node.FailSwapOn,
				c.Devices.Elsewhere)
		}
		if c.CPU.Policy != "static" || c.Reserved.CPUs.String() != "0" || c.Listen != "/run/berth/berth.sock" {
			t.Errorf("%s: got policy %s, reserved CPUs %s, socket %s", name, c.CPU.Policy, c.Reserved.CPUs, c.Listen)
		}
		if len(notes) != 0 {
			t.Errorf("%s: unexpected notes: %q", name, notes)
		}
	}
	c, _, err := load(t, "", "", "--beside=kubelet", "--device-plugin-dir", "/run/plugins", "--node-fit", "--devices-elsewhere",
		"example.com")
	if err != nil || c.DevicePluginSocket() != "/run/plugins/kubelet.sock" ||
		c.PodResourcesSocket() != "/run/berth/pod-resources/kubelet.sock" || !c.Node.NodeFit || c.Devices.Elsewhere[0] != "example.com" {
		t.Errorf("settings of one's own: got %+v, %v", c, err)
	}
	for want, args := range map[string][]string{
		"": {"--pod-resources-dir", ""}, "/run/readers/kubelet.sock": {"--pod-resources-dir", "/run/readers"},
		"/run/try/pod-resources/kubelet.sock": {"--root-dir", "/run/try"},
	} {
		if c, _, err := load(t, "", "", append(args, "--beside=kubelet")...); err != nil || c.PodResourcesSocket() != want {
			t.Errorf("beside a kubelet with %q: podresources is served at %q, want %q, %v", args, c.PodResourcesSocket(), want, err)
		}
	}
	if c, _, err := load(t, "", "", "--pod-resources-dir", ""); err != nil || c.PodResourcesSocket() != "" || c.DevicePluginSocket() == "" {
		t.Errorf("only one socket is off: got %q, %q, %v", c.PodResourcesSocket(), c.DevicePluginSocket(), err)
	}
	for want, args := range map[string][]string{
		`beside: "docker": expected kubelet`:        {"--beside=docker"},
		"cgroups.tree: \"kernel\": expected memory": {"--beside=kubelet", "--cgroup-tree=kernel"},
		"runtimeEndpoint: expected nothing, because the kubelet": {"--beside=kubelet",
			"--runtime-endpoint=/run/containerd/containerd.sock"},
		`devicePluginDir: "/var/lib/kubelet/device-plugins"`: {"--beside=kubelet",
			"--device-plugin-dir=/var/lib/kubelet/../kubelet/device-plugins"},
		`pluginRegistryDir: "/var/lib/kubelet/plugins_registry"`: {"--beside=kubelet",
			"--plugin-registry-dir=/var/lib/kubelet/plugins_registry"},
		`podResourcesDir: "/var/lib/kubelet/pod-resources"`: {"--beside=kubelet",
			"--pod-resources-dir=/var/lib/kubelet/pod-resources"},
	} {
		if _, _, err := load(t, "", "", args...); errdefs.ClassOf(err) != errdefs.Invalid || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", args, err, want)
		}
	}
}

// TestKubeletManagers: a kubelet that assigns CPUs itself is noticed, by its file and by its state.
func TestKubeletManagers(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"cpuManagerPolicy: static\nreservedSystemCPUs: \"0\"\n": "cpuManagerPolicy: the kubelet's file says static",
		"memoryManagerPolicy: Static\n":                         "memoryManagerPolicy: the kubelet's file says Static",
	} {
		_, _, err := load(t, kubeletHead+text, "", "--beside=kubelet")
		if errdefs.ClassOf(err) != errdefs.Invalid || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
		if _, _, err := load(t, kubeletHead+text, ""); err != nil && strings.Contains(err.Error(), "the kubelet's file says") {
			t.Errorf("without a kubelet beside: %v", err)
		}
	}
	_, notes, err := load(t, kubeletHead+"topologyManagerPolicy: restricted\n", "", "--beside=kubelet")
	if err != nil || len(notes) != 1 || !strings.Contains(notes[0], "topologyManagerPolicy: the kubelet's file says restricted") {
		t.Errorf("got %q, %v", notes, err)
	}
	dir := t.TempDir()
	for name, text := range map[string]string{
		"cpu_manager_state":    `{"policyName":"static","defaultCpuSet":"0,2","entries":{"p":{"c":"1"}},"checksum":1}`,
		"memory_manager_state": `{"policyName":"None","checksum":1}`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	beside := func(c *document.Config) error { c.Beside = document.Kubelet; return nil }
	_, notes, err = config.Load(config.Sources{KubeletState: dir, Flags: beside})
	if err != nil || len(notes) != 1 || !strings.Contains(notes[0], `cpu_manager_state: the kubelet's policy is "static"`) {
		t.Errorf("got %q, %v", notes, err)
	}
	// A kubelet that runs assigns them.
	l, err := socket.Listen(filepath.Join(dir, "pod-resources", "kubelet.sock"), socket.Options{DirMode: 0o750})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err = config.Load(config.Sources{KubeletState: dir, Flags: beside}); errdefs.ClassOf(err) != errdefs.Invalid ||
		!strings.Contains(err.Error(), `cpu_manager_state: the kubelet's policy is "static"`) {
		t.Errorf("beside a kubelet that runs: got %v", err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	// A pipe without a writer has no content, and does not block the start.
	if err := os.Remove(filepath.Join(dir, "memory_manager_state")); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "memory_manager_state"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, notes, err = config.Load(config.Sources{KubeletState: dir, Flags: beside}); err != nil || len(notes) != 1 {
		t.Errorf("beside a file that nobody writes to: got %q, %v", notes, err)
	}
	if _, notes, err = config.Load(config.Sources{KubeletState: dir}); err != nil || len(notes) != 0 {
		t.Errorf("without a kubelet beside: got %q, %v", notes, err)
	}
}

func TestRootDirHoldsEveryPath(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	c, _, err := load(t, "", "", "--root-dir", root, "--listen", "/tmp/other.sock")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{c.StateDir, c.DevicePluginSocket(), c.PodResourcesSocket()} {
		if !strings.HasPrefix(p, root+"/") {
			t.Errorf("%s is outside %s", p, root)
		}
	}
	if c.Listen != "/tmp/other.sock" {
		t.Errorf("the socket set by itself is at %s", c.Listen)
	}
}

func TestLaterSourcesWin(t *testing.T) {
	t.Parallel()
	kubelet := kubeletHead + `
cpuManagerPolicy: static
topologyManagerPolicy: restricted
topologyManagerScope: pod
cpuManagerPolicyOptions: {full-pcpus-only: "true"}
systemReserved: {cpu: 500m}
kubeReserved: {cpu: 600m}
podPidsLimit: 77
cpuCFSQuota: false
featureGates: {CPUManagerPolicyAlphaOptions: true, DisableCPUQuotaWithExclusiveCPUs: false, SomethingElse: true}
bogusField: 1
`
	berth := berthHead + "topology: {policy: best-effort}\nproviders: {order: [cpu, memory, device]}\n"
	c, notes, err := load(t, kubelet, berth, "--topology-manager-scope", "container")
	if err != nil {
		t.Fatal(err)
	}
	if c.CPU.Policy != "static" || c.Topology.Policy != "best-effort" || c.Topology.Scope != "container" {
		t.Errorf("cpu %s, topology %s, scope %s", c.CPU.Policy, c.Topology.Policy, c.Topology.Scope)
	}
	if c.Cgroups.PodPIDsLimit != 77 || c.Cgroups.CPUCFSQuota || !c.Cgroups.QuotaWithExclusiveCPUs || !c.Features.CPUAlphaOptions {
		t.Errorf("kubelet's settings were lost: %+v %+v", c.Cgroups, c.Features)
	}
	if got := c.Providers; !reflect.DeepEqual(got.Order, []string{"cpu", "memory", "device"}) || got.CallTimeout.Duration == 0 {
		t.Errorf("providers %+v", got)
	}
	cpu, err := c.CPUConfig()
	if err != nil || cpu.ReservedMilliCPU != 1100 || cpu.Options["full-pcpus-only"] != "true" {
		t.Errorf("cpu %+v, %v", cpu, err)
	}
	if len(notes) != 1 || !strings.Contains(notes[0], "bogusField") {
		t.Errorf("notes %q, want one about the unknown field", notes)
	}
}

// TestGatesWithoutEffect: gates about berth's job that change nothing are named, those
// with what berth does anyway and those of others are not.
func TestGatesWithoutEffect(t *testing.T) {
	t.Parallel()
	for gate, want := range map[string]string{
		"InPlacePodVerticalScalingExclusiveCPUs: true":   "",
		"InPlacePodVerticalScalingExclusiveCPUs: false":  "",
		"InPlacePodVerticalScalingExclusiveMemory: true": "",
		"InPlacePodVerticalScalingInitContainers: false": "featureGates.InPlacePodVerticalScalingInitContainers: false has no effect: in berth ordinary init containers can be resized in place",
		"DRANodeAllocatableResources: true":              "featureGates.DRANodeAllocatableResources: true has no effect: in berth dra.from decides whether claims get allocatable resources",
		"KubeletPodResourcesListUseActivePods: false":    "featureGates.KubeletPodResourcesListUseActivePods: false has no effect",
		"KubeletPodResourcesListUseActivePods: true":     "",
		"PodLevelResourceManagers: true":                 "",
		"GracefulNodeShutdown: true":                     "",
	} {
		t.Run(gate, func(t *testing.T) {
			t.Parallel()
			_, notes, err := load(t, kubeletHead+"featureGates: {"+gate+"}\n", "")
			if err != nil {
				t.Fatal(err)
			}
			if want == "" && len(notes) > 0 || want != "" && (len(notes) != 1 || !strings.Contains(notes[0], "kubelet.yaml: "+want)) {
				t.Errorf("notes %q, want %q", notes, want)
			}
		})
	}
}

// TestDevicesAndVerdicts: where a kubelet's file is given the answers are the
// kubelet's, unless set otherwise.
func TestDevicesAndVerdicts(t *testing.T) {
	t.Parallel()
	own := func(sections string) string { return berthHead + sections + "\n" }
	for name, row := range map[string]struct {
		kubelet, berth string
		args           []string
		deferred       bool
		unknown        string
		elsewhere      []string
	}{
		"nothing":     {deferred: true, unknown: "defer"},
		"a kubelet's": {kubelet: kubeletHead, unknown: "ignore"},
		"both files":  {kubelet: kubeletHead, berth: own("devices: {registrationGrace: 5s}"), unknown: "ignore"},
		"own file wins": {kubelet: kubeletHead, berth: own("verdicts: {deferred: true}\ndevices: {unknown: reject}"), deferred: true,
			unknown: "reject"},
		"flags win": {kubelet: kubeletHead, berth: own("devices: {unknown: reject}"), args: []string{"--devices-unknown", "defer"},
			unknown: "defer"},
		"own file alone": {berth: own("verdicts: {deferred: false}"), unknown: "defer"},
		"elsewhere": {berth: own("devices: {elsewhere: [example.com/gpu, example.org]}"), deferred: true, unknown: "defer",
			elsewhere: []string{"example.com/gpu", "example.org"}},
		"elsewhere, flag": {berth: own("devices: {elsewhere: [example.org]}"), args: []string{"--devices-elsewhere", "*"}, deferred: true,
			unknown: "defer", elsewhere: []string{"*"}},
		"flag, several": {args: []string{"--devices-elsewhere", "example.org,example.com/a"}, deferred: true, unknown: "defer",
			elsewhere: []string{"example.org", "example.com/a"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, _, err := load(t, row.kubelet, row.berth, row.args...)
			if err != nil {
				t.Fatal(err)
			}
			if c.Verdicts.Deferred != row.deferred || c.Devices.Unknown != row.unknown ||
				!slices.Equal(c.Devices.Elsewhere, row.elsewhere) {
				t.Errorf("%+v %+v", c.Verdicts, c.Devices)
			}
			at := time.Unix(5, 0)
			if r := c.Resources(at); r.Started != at || string(r.Unknown) != row.unknown ||
				r.Grace != c.Devices.RegistrationGrace.Duration || !slices.Equal(r.Elsewhere, row.elsewhere) {
				t.Errorf("the engine gets %+v", r)
			}
		})
	}
}

func TestExplicitCPUsStandInPlaceOfAmounts(t *testing.T) {
	t.Parallel()
	c, _, err := load(t, kubeletHead+"reservedSystemCPUs: 0-1\nsystemReserved: {cpu: 5}\n", "")
	if err != nil {
		t.Fatal(err)
	}
	cpu, err := c.CPUConfig()
	if err != nil || cpu.ReservedCPUs.String() != "0-1" || cpu.ReservedMilliCPU != 0 {
		t.Errorf("%+v, %v", cpu, err)
	}
}

// TestReservedMemory: a kubelet's file and flags mean the same, and a flag replaces
// what the file has, however often it is given.
func TestReservedMemory(t *testing.T) {
	t.Parallel()
	const file = kubeletHead + `
memoryManagerPolicy: Static
systemReserved: {memory: 1Gi}
kubeReserved: {memory: 500Mi, cpu: "1"}
evictionHard: {memory.available: "25%"}
reservedMemory:
- {numaNode: 0, limits: {memory: 1Gi}}
- {numaNode: 1, limits: {memory: 1524Mi}}
`
	m := machinetest.Build("2n2c,mem=2Gi")
	inFile := []memory.Reservation{
		{Node: 0, Resource: "memory", Bytes: 1 << 30},
		{Node: 1, Resource: "memory", Bytes: 1524 << 20},
	}
	withPages := slices.Insert(slices.Clone(inFile), 1, memory.Reservation{Node: 1, Resource: "hugepages-2Mi", Bytes: 4 << 20})
	for name, row := range map[string]struct {
		args []string
		want []memory.Reservation
	}{
		"file":   {nil, inFile},
		"empty":  {[]string{"--reserved-memory", ""}, nil},
		"flag":   {[]string{"--reserved-memory", "0:memory=1Gi;1:hugepages-2Mi=4Mi,memory=1524Mi"}, withPages},
		"two":    {[]string{"--reserved-memory", "0:memory=1Gi", "--reserved-memory", "1:memory=1524Mi,hugepages-2Mi=4Mi"}, withPages},
		"others": {[]string{"--reserved-memory", "1:memory=1"}, []memory.Reservation{{Node: 1, Resource: "memory", Bytes: 1}}},
	} {
		c, notes, err := load(t, file, "", row.args...)
		if err != nil || len(notes) > 0 {
			t.Fatalf("%s: %q, %v", name, notes, err)
		}
		got, err := c.MemoryConfig(m)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		want := memory.Config{
			Policy: memory.PolicyStatic, Reserved: row.want,
			SystemReserved: map[workload.Resource]uint64{workload.Memory: 1 << 30},
			KubeReserved:   map[workload.Resource]uint64{workload.Memory: 500 << 20},
			HardEviction:   map[workload.Resource]uint64{workload.Memory: 1 << 30},
			Features:       workload.Features{PodLevelResources: true},
		}
		if strings.Contains(fmt.Sprint(row.want), "hugepages") {
			want.SystemReserved["hugepages-2Mi"] = 4 << 20
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s:\n got %+v\nwant %+v", name, got, want)
		}
	}
}

func TestBadInputNamesTheField(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		kubelet, berth string
		args           []string
		want           string
	}{
		"other kind":         {berth: "apiVersion: v1\nkind: Pod\n", want: "expected apiVersion config.berthd.github.io/v1alpha1"},
		"kubelet other kind": {kubelet: berthHead, want: "expected apiVersion kubelet.config.k8s.io/v1beta1"},
		"unknown field":      {berth: berthHead + "cpus: 1\n", want: "cpus: unknown field"},
		"no yaml":            {berth: "a: [", want: "berth.yaml"},
		"policy":             {args: []string{"--cpu-manager-policy", "dynamic"}, want: "cpu.policy: expected one of none, static"},
		"topology": {args: []string{"--topology-manager-policy", "x"},
			want: `topology.policy: expected one of none, best-effort, restricted, single-numa-node, got "x"`},
		"scope": {args: []string{"--topology-manager-scope", "x"},
			want: `topology.scope: expected one of container, pod, got "x"`},
		"topology option": {berth: berthHead + "topology: {policy: restricted, options: {frob: 1}}\n",
			want: `topology.options: unknown Topology Manager Policy option: "frob"`},
		"two documents": {berth: berthHead + "---\ncpu: {policy: static}\n", want: "expected one document, found 2"},
		"no object":     {berth: "hello\n", want: "expected an object with apiVersion config.berthd.github.io/v1alpha1"},
		"twice":         {berth: berthHead + "cpu: {}\ncpu: {}\n", want: `line 4: key "cpu" already set`},
		"nested field": {berth: berthHead + "cpu: {polic: static}\n",
			want: "cpu.polic: unknown field, expected any of options, policy"},
		"field of a list": {berth: berthHead + "access: [{uid: 1, roles: [read], team: 2}]\n", want: "access[0].team: unknown field"},
		"upper case":      {berth: berthHead + "CPU: {policy: static}\n", want: "CPU: unknown field, expected cpu"},
		"bad duration": {berth: berthHead + "cgroups: {reconcilePeriod: ten}\n",
			want: `cgroups.reconcilePeriod: expected a duration such as 10s, found "ten"`},
		"number as duration": {berth: berthHead + "cgroups: {reconcilePeriod: 1}\n",
			want: "cgroups.reconcilePeriod: expected a duration such as 10s, found 1"},
		"period": {berth: berthHead + "hotplug: {poll: 1ns}\n", want: "hotplug.poll: 1ns: expected at least 10ms, such as 10s"},
		"period of cgroups": {berth: berthHead + "cgroups: {reconcilePeriod: 0s}\n",
			want: "cgroups.reconcilePeriod: 0s: expected at least 10ms"},
		"bad CPUs": {berth: berthHead + "reserved: {cpus: 0-x}\n", want: `reserved.cpus: cpu list "0-x": expected a cpu number`},
		"number as CPUs": {berth: berthHead + "reserved: {cpus: 0}\n",
			want: `reserved.cpus: expected a list of CPUs as text, such as "0-3", found 0`},
		"text as number":   {berth: berthHead + "node: {maxPods: lots}\n", want: `node.maxPods: expected a whole number, found "lots"`},
		"text as object":   {berth: berthHead + "verdicts: yes\n", want: "verdicts: expected an object, found true"},
		"object as text":   {berth: berthHead + "http: {port: 1}\n", want: "http: expected a text, found an object"},
		"list as text":     {berth: berthHead + "cpu: {options: {a: [b]}}\n", want: `cpu.options["a"]: expected a text, found a list`},
		"text as list":     {berth: berthHead + "access: x\n", want: `access: expected a list, found "x"`},
		"kubelet's number": {kubelet: kubeletHead + "maxPods: lots\n", want: `maxPods: expected a whole number, found "lots"`},
		"cgroup root":      {berth: berthHead + "cgroups: {root: a/../b}\n", want: "cgroups.root"},
		"throttling":       {berth: berthHead + "cgroups: {memoryThrottlingFactor: 7}\n", want: "cgroups.memoryThrottlingFactor"},
		"no throttling": {berth: berthHead + "cgroups: {memoryThrottlingFactor: 0}\n",
			want: "cgroups.memoryThrottlingFactor: is 0, expected more than 0"},
		"throttling of none": {kubelet: kubeletHead + "featureGates: {MemoryQoS: false}\nmemoryThrottlingFactor: 0.8\n",
			want: "cgroups.memoryThrottlingFactor: is 0.8, and cgroups.memoryQoS is off"},
		"swap": {berth: berthHead + "cgroups: {swapBehavior: x}\n", want: "cgroups.swapBehavior"},
		"rate": {berth: berthHead + "limits: {podResourcesPerSecond: -1}\n",
			want: "limits.podResourcesPerSecond: expected a positive number"},
		"HTTP":              {berth: berthHead + "http: nonsense\n", want: "http: expected HOST:PORT"},
		"HTTP port":         {args: []string{"--http", ":99999"}, want: "http: expected HOST:PORT"},
		"reserved":          {args: []string{"--system-reserved", "cpu=-1"}, want: `reserved.system["cpu"]`},
		"reserved list":     {args: []string{"--reserved-cpus", "3-1"}, want: "--reserved-cpus"},
		"both reservations": {kubelet: kubeletHead + "reservedSystemCPUs: 0\nkubeReservedCgroup: /k\n", want: "cannot be used with"},
		"no pod cgroups": {kubelet: kubeletHead + "cgroupsPerQOS: false\n",
			want: `node.enforceNodeAllocatable: "pods" needs cgroupsPerQOS to be true`},
		"runtime's cgroup": {args: []string{"--runtime-cgroups", "/runtime"},
			want: "node.runtimeCgroups: needs node.runtimePidFile or runtimeEndpoint"},
		"agent's cgroup": {args: []string{"--agent-cgroups", "/agent"}, want: "node.agentCgroups: needs node.agentPidFile"},
		"pid file":       {args: []string{"--agent-pid-file", "agent.pid"}, want: "node.agentPidFile"},
		"kept in the root": {args: []string{"--runtime-cgroups", "/", "--runtime-pid-file", "/run/pid"},
			want: "node.runtimeCgroups: is the root cgroup"},
		"no pod cgroups, 2": {args: []string{"--cgroups-per-qos=false", "--enforce-node-allocatable=kube-reserved",
			"--kube-reserved-cgroup=/kube"}, want: `"kube-reserved" needs cgroupsPerQOS to be true`},
		"eviction signal":   {args: []string{"--eviction-hard", "memory.free<1Gi"}, want: "unknown eviction signal"},
		"eviction twice":    {args: []string{"--eviction-hard", "memory.available<1Gi,memory.available<2Gi"}, want: "is listed twice"},
		"eviction form":     {args: []string{"--eviction-hard", "memory.available=1Gi"}, want: "expected a signal and a value"},
		"enforcement":       {args: []string{"--enforce-node-allocatable", "podz"}, want: "expected any of pods"},
		"reserved resource": {args: []string{"--kube-reserved", "hugepages-2Mi=1Gi"}, want: "cannot reserve"},
		"kernel settings":   {args: []string{"--kernel-tunables", "maybe"}, want: "node.kernelTunables"},
		"own score":         {args: []string{"--oom-score-adj", "1001"}, want: "node.oomScoreAdj"},
		"drift":             {berth: berthHead + "cgroups: {driftPolicy: cry}\n", want: "cgroups.driftPolicy"},
		"allowed twice": {berth: berthHead + "providers: {external: {allow: [{provider: nic}, {provider: nic}]}}\n",
			want: "providers.external.allow[1].provider"},
		"allowed builtin": {berth: berthHead + "providers: {external: {allow: [{provider: cpu}]}}\n",
			want: "providers.external.allow[0].provider"},
		"unknown edits": {berth: berthHead + "providers: {external: {allow: [{provider: nic, edits: [all]}]}}\n",
			want: "providers.external.allow[0].edits[0]"},
		"order":         {berth: berthHead + "providers: {order: [cpu]}\n", want: "providers.order"},
		"memory policy": {args: []string{"--memory-manager-policy", "static"}, want: "memory.policy: expected one of None, Static"},
		"reserved memory": {args: []string{"--reserved-memory", "0=memory:1Gi"},
			want: `--reserved-memory: "0=memory:1Gi": expected numaNodeID:type=quantity`},
		"reserved twice": {args: []string{"--reserved-memory", "0:memory=1,memory=1"}, want: "expected numaNodeID:type=quantity"},
		"reserved amount": {args: []string{"--reserved-memory", "0:memory=1Xi"},
			want: `reserved[0].limits["memory"]: "1Xi": expected a quantity`},
		"free pages": {berth: berthHead + "memory: {checkFreeHugePages: sometimes}\n",
			want: "memory.checkFreeHugePages: expected one of ignore, defer, reject"},
		"pages to wait for": {berth: berthHead + "verdicts: {deferred: false}\nmemory: {checkFreeHugePages: defer}\n",
			want: "requires verdicts.deferred"},
		"unknown resources": {args: []string{"--devices-unknown", "wait"},
			want: `devices.unknown: expected one of defer, reject, ignore, got "wait"`},
		"grace": {berth: berthHead + "devices: {registrationGrace: -1s}\n",
			want: "devices.registrationGrace: -1s: expected a duration such as 60s, or 0 for none"},
		"forgetting": {berth: berthHead + "devices: {forgetAfter: -5m}\n",
			want: "devices.forgetAfter: -5m0s: expected a duration such as 5m, or 0"},
		"elsewhere, native": {berth: berthHead + "devices: {elsewhere: [example.com, kubernetes.io]}\n",
			want: `devices.elsewhere[1]: "kubernetes.io": expected an extended resource`},
		"elsewhere, no name": {args: []string{"--devices-elsewhere", "example.com/"},
			want: `devices.elsewhere[0]: "example.com/": expected an extended resource such as example.com/gpu, a domain such as example.com, or "*" for all`},
		"elsewhere, twice": {args: []string{"--devices-elsewhere", "example.com,example.com"},
			want: `devices.elsewhere[1]: "example.com" is listed twice`},
		"duration":  {berth: berthHead + "limits: {call: 0s}\n", want: "limits.call"},
		"grant":     {berth: berthHead + "access: [{uid: 5, roles: [king]}]\n", want: "access[0].roles[0]"},
		"long path": {args: []string{"--root-dir", "/" + strings.Repeat("r", 100)}, want: "the kernel takes at most 107"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, _, err := load(t, row.kubelet, row.berth, row.args...)
			if errdefs.ClassOf(err) != errdefs.Invalid || !strings.Contains(err.Error(), row.want) {
				t.Errorf("%v; want class invalid with %q", err, row.want)
			}
		})
	}
}

func TestDumpLoadsAsTheSame(t *testing.T) {
	t.Parallel()
	first, _, err := load(t, "", berthHead+`
rootDir: /r
reserved: {cpus: 0-3, kube: {cpu: "1"}}
access: [{uid: 1000, roles: [read, agent]}]
cpu: {policy: static, options: {strict-cpu-reservation: "true"}}
memory: {policy: Static, disjointNUMAGroups: true, reserved: [{numaNode: 3, limits: {memory: 100Mi}}]}
`)
	if err != nil {
		t.Fatal(err)
	}
	text, err := first.Dump()
	if err != nil {
		t.Fatal(err)
	}
	second, _, err := load(t, "", string(text))
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	if !reflect.DeepEqual(first, second) {
		t.Errorf("dumped and loaded:\n%+v\n%+v", first, second)
	}
	a, _ := first.Digest()
	second.CPU.Policy = "none"
	if b, _ := second.Digest(); a == b || a == "" {
		t.Error("the digest does not see another policy")
	}
}

func TestNodeFromTheKubeletsFile(t *testing.T) {
	t.Parallel()
	c, notes, err := load(t, kubeletHead+`
evictionHard: {memory.available: 5%}
mergeDefaultEvictionSettings: true
enforceNodeAllocatable: [pods, system-reserved]
systemReserved: {cpu: 500m, memory: 1Gi, pid: "1000"}
systemReservedCgroup: /system
maxPods: 50
podsPerCore: 4
failSwapOn: false
failCgroupV1: true
protectKernelDefaults: true
localStorageCapacityIsolation: false
oomScoreAdj: -500
cgroupRoot: /
systemCgroups: /other
kubeletCgroups: /agents/kubelet
`, "", "--max-pods", "60")
	if err != nil {
		t.Fatal(err)
	}
	want := document.Node{
		Enforce: []string{"pods", "system-reserved"}, SystemReservedCgroup: "/system", MaxPods: 60, PodsPerCore: 4,
		NodeFit: true, FailCgroupV1: true, KernelTunables: "require", OOMScoreAdj: -500,
		SystemCgroup: "/other", OwnCgroup: "/agents/kubelet",
	}
	if !reflect.DeepEqual(c.Node, want) {
		t.Errorf("got %+v, want %+v", c.Node, want)
	}
	if got := c.Reserved.EvictionHard; got["memory.available"] != "5%" || got["nodefs.available"] != "10%" {
		t.Errorf("eviction %v", got)
	}
	if len(notes) != 0 {
		t.Errorf("notes %q", notes)
	}
	n, err := c.NodeConfig()
	if err != nil || n.SystemReserved[workload.CPU] != 500 || n.SystemReserved["pid"] != 1000 || n.EvictionHard[workload.Memory].Part == 0 {
		t.Errorf("%+v, %v", n, err)
	}
}

func TestCgroupsOfTheSystem(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		kubeletHead + "systemCgroups: /other\n":           "systemCgroups needs cgroupRoot",
		kubeletHead + "cgroupRoot: /\nsystemCgroups: /\n": "node.systemCgroups: is the root cgroup",
		kubeletHead + "kubeletCgroups: /a/../b\n":         "node.kubeletCgroups",
	} {
		if _, _, err := load(t, text, ""); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want a word of %q", text, err, want)
		}
	}
}

func TestEvictionIsDumped(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{"{}": 0, "{memory.available: 1Gi}": 1} {
		c, _, err := load(t, "", berthHead+"reserved: {evictionHard: "+text+"}\n")
		if err != nil {
			t.Fatal(err)
		}
		dump, err := c.Dump()
		if err != nil {
			t.Fatal(err)
		}
		again, _, err := load(t, "", string(dump))
		if err != nil || again.Reserved.EvictionHard == nil || len(again.Reserved.EvictionHard) != want {
			t.Errorf("%s comes back as %v, %v", text, again.Reserved.EvictionHard, err)
		}
		if n, err := again.NodeConfig(); err != nil || len(n.EvictionHard) != want {
			t.Errorf("%s: thresholds %v, %v", text, n.EvictionHard, err)
		}
	}
	c, _, err := load(t, "", "", "--eviction-hard", "")
	if n, nerr := c.NodeConfig(); err != nil || nerr != nil || len(n.EvictionHard) != 0 {
		t.Errorf("none on the command line: %v, %v, %v", n.EvictionHard, err, nerr)
	}
}

// TestGrantsByName: names of users and groups become numbers; who is not there is an error.
func TestGrantsByName(t *testing.T) {
	t.Parallel()
	root, none := uint32(0), "nobody-of-this-name"
	c, _, err := load(t, "", berthHead+"access: [{user: root, roles: [read]}, {group: root, roles: [agent]}]\n")
	if err != nil || len(c.Access) != 2 || c.Access[0].UID == nil || *c.Access[0].UID != root || c.Access[1].GID == nil ||
		*c.Access[1].GID != root {
		t.Errorf("%+v, %v", c.Access, err)
	}
	if text, err := c.Dump(); err != nil || strings.Contains(string(text), "user: root") || !strings.Contains(string(text), "uid: 0") {
		t.Errorf("%s, %v", text, err)
	}
	for grant, want := range map[string]string{
		"{user: " + none + ", roles: [read]}":          "access[0].user: there is no user",
		"{group: " + none + ", roles: [read]}":         "access[0].group: there is no group",
		"{user: root, group: root, roles: [read]}":     "exactly one of",
		"{user: root, uid: 5, roles: [read]}":          "exactly one of",
		"{roles: [read]}":                              "exactly one of",
		"{group: \"\", user: \"\", gid: 0, roles: []}": "expected at least one of",
	} {
		if _, _, err := load(t, "", berthHead+"access: ["+grant+"]\n"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", grant, err, want)
		}
	}
}

// TestKubeletDropIns: the directory of a kubelet's drop-ins is read as the kubelet reads it: in the order of the names, with
// subdirectories, and without other files. A kubelet may have drop-ins only.
func TestKubeletDropIns(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"00-base.conf":      kubeletHead + "reservedSystemCPUs: \"0\"\ncgroupDriver: systemd\nevictionHard: {nodefs.available: 5%}\n",
		"50-more/site.conf": kubeletHead + "reservedSystemCPUs: \"1\"\n",
		"60-off.conf.old":   "no yaml: [",
		"99-last.conf":      kubeletHead + "systemReserved: {memory: 1Gi}\n",
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c, notes, err := load(t, "", "", "--kubelet-config-dir", dir, "--beside=kubelet", "--cpu-manager-policy=static")
	if err != nil || len(notes) != 1 || !strings.Contains(notes[0], "60-off.conf.old: the kubelet ignores files") {
		t.Errorf("%q, %v", notes, err)
	}
	if c.Reserved.CPUs.String() != "1" || c.Cgroups.Driver != "systemd" || c.Reserved.System["memory"] != "1Gi" ||
		len(c.Reserved.Eviction()) != 1 {
		t.Errorf("%+v, %s", c.Reserved, c.Cgroups.Driver)
	}
	c, _, err = load(t, kubeletHead+"reservedSystemCPUs: \"5\"\nkubeReserved: {memory: 2Gi}\n", "", "--kubelet-config-dir", dir,
		"--beside=kubelet")
	if err != nil || c.Reserved.CPUs.String() != "1" || c.Reserved.Kube["memory"] != "2Gi" || len(c.Reserved.Eviction()) != 5 {
		t.Errorf("with a file: %+v, %v", c.Reserved, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "99-static.conf"), []byte(kubeletHead+"cpuManagerPolicy: static\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := load(t, "", "", "--kubelet-config-dir", dir, "--beside=kubelet"); err == nil ||
		!strings.Contains(err.Error(), "cpuManagerPolicy: the kubelet's file says static") {
		t.Errorf("a policy of a drop-in: %v", err)
	}
	for what, path := range map[string]string{"no directory": filepath.Join(dir, "none"), "a link to a directory": ""} {
		if path == "" {
			path = filepath.Join(t.TempDir(), "x.conf")
			if err := os.Symlink(dir, path); err != nil {
				t.Fatal(err)
			}
		}
		if _, _, err := load(t, "", "", "--kubelet-config-dir", path); err == nil ||
			!strings.Contains(err.Error(), "--kubelet-config-dir") {
			t.Errorf("%s: %v", what, err)
		}
	}
}

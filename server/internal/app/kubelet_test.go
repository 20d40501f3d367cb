package app_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protojson"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	devicev1 "github.com/berthd/berth/api/berth/device/v1"
	inspectv1 "github.com/berthd/berth/api/berth/inspect/v1"
	lifecyclev1 "github.com/berthd/berth/api/berth/lifecycle/v1"
	qosv1 "github.com/berthd/berth/api/berth/qos/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	apiconfig "github.com/berthd/berth/api/config"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/hack/testing/script"
	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/cgroup/memtree"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/ledger/kubelet"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/server/internal/app"
	"github.com/berthd/berth/server/internal/config"
	"github.com/berthd/berth/server/internal/metrics"
	"github.com/berthd/berth/server/internal/system/real"
)

// recording is what a kubelet 1.36.3 did in a virtual machine, one line of
// testdata/kubelet.jsonl.gz: its machine and configurations, what happened to it in
// order, and the control files and state files that it left.
//
// hack/captures makes the lines, and lists what is left out of them.
type recording struct {
	Name    string
	Shape   string
	Version cgroup.Version
	Driver  cgroup.Driver
	// MaxPIDs is how many processes the captured kernel had room for.
	MaxPIDs int64
	Machine json.RawMessage
	Configs map[string]json.RawMessage
	Pods    map[string]json.RawMessage
	Plugins []plugin
	Steps   []step
}

type plugin struct {
	Resource            string
	Devices             []string
	Preferred, PreStart bool
}

// step is one of: start with a Config (Error: the kubelet refused it; Again: pods
// ran and were admitted again), admit or remove a Pod, stop, reset (stop, and lose
// everything), compare.
type step struct {
	Do, Config, Pod, Label string
	Error, Again, Rejected bool
	Reason                 string
	// Cgroups holds control files by cgroup: pods, burstable, besteffort, the
	// reserved ones system and kube, else a pod's name.
	Cgroups      map[string]map[string]string
	Podresources *answers
	// CPU and Memory are state files.
	CPU, Memory string
	// Decided is what an admission decided, in order.
	Decided []decided
	// Created is what the kubelet sent to the runtime for the pod's containers.
	Created []created
}

func recordings(t *testing.T) (all []recording) {
	t.Helper()
	data, err := os.ReadFile("testdata/kubelet.jsonl.gz")
	if err != nil {
		t.Fatal(err)
	}
	text, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(text)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var r recording
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			t.Fatal(err)
		}
		all = append(all, r)
	}
	if err := lines.Err(); err != nil || len(all) == 0 {
		t.Fatalf("%d recordings, %v", len(all), err)
	}
	return all
}

// TestDaemonIsLikeTheKubelet replays every recording through berthd, on a tree in
// memory.
func TestDaemonIsLikeTheKubelet(t *testing.T) {
	t.Parallel()
	var all totals
	t.Cleanup(func() { all.expect(t) })
	for _, r := range recordings(t) {
		all.runs++
		t.Run(r.Name, func(t *testing.T) {
			t.Parallel()
			m, err := machine.Load(r.Machine)
			if err != nil {
				t.Fatal(err)
			}
			facts := memtree.V2()
			if r.Version == cgroup.V1 {
				facts = memtree.V1()
			}
			facts.Driver = r.Driver
			tree := memtree.New(facts, m.CPUs(), m.NodeMask()).TakeAny()
			p := newReplay(t, r, "/", memoryTree{tree})
			p.run()
			all.add(p.decisions)
		})
	}
}

// tree is where cgroups are, and how their files are read.
type tree interface {
	cgroup.Tree
	Facts() cgroup.Facts
	// File gives the text of a control file; false if the tree has no such file.
	File(t *testing.T, name cgroup.Name, file string) (string, bool)
}

// memoryTree gives the files that would hold a group's values.
type memoryTree struct{ *memtree.Tree }

func (m memoryTree) File(t *testing.T, name cgroup.Name, file string) (string, bool) {
	t.Helper()
	seen, err := m.Observe(t.Context(), name, 0)
	if err != nil {
		t.Fatal(err)
	}
	o := seen.Find(name)
	if o.State != cgroup.Valid {
		return "is " + o.State.String(), true
	}
	for _, f := range o.Values.Files(m.Facts()) {
		if f.Name == file {
			return f.Text, true
		}
	}
	return "", !strings.Contains(file, ".rsvd.")
}

// replay is a recording on its way.
type replay struct {
	recording
	t      *testing.T
	tree   tree
	layout cgroup.Layout
	// root is the cgroup below which everything lies, dir where the daemon has its
	// files, the machine's file among them.
	root, dir string
	live      map[string]bool // pods that are admitted
	rejected  map[string]bool // pods that were rejected, and not admitted since
	again     bool            // the captured kubelet had been started beside running pods
	daemon    *daemon         // nil while none runs
	compared  int             // control files
	decisions decisions       // what was compared of them
}

// daemon is a running berthd.
type daemon struct {
	end  func()
	conn *grpc.ClientConn
	// podResources is the directory of the podresources socket.
	podResources string
}

// timeout bounds everything that is waited for.
const timeout = time.Minute

func newReplay(t *testing.T, r recording, root string, tree tree) *replay {
	t.Helper()
	dir, err := os.MkdirTemp("", "berth") // sockets need short paths
	if err != nil {
		t.Fatal(err)
	}
	layout, err := cgroup.NewLayout(root, tree.Facts().Driver)
	if err != nil {
		t.Fatal(err)
	}
	p := &replay{recording: r, t: t, tree: tree, layout: layout, root: root, dir: dir, live: map[string]bool{}, rejected: map[string]bool{}}
	t.Cleanup(func() {
		p.stop()
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	p.write("machine.json", r.Machine)
	return p
}

func (p *replay) write(name string, data []byte) string {
	p.t.Helper()
	path := filepath.Join(p.dir, name)
	if err := os.WriteFile(path, data, 0o600); err != nil {
		p.t.Fatal(err)
	}
	return path
}

// run takes the steps one after the other.
func (p *replay) run() {
	for _, s := range p.Steps {
		switch s.Do {
		case "start":
			p.start(s)
		case "admit":
			p.admit(s)
		case "remove":
			p.remove(s.Pod)
		case "stop":
			p.stop()
		case "reset":
			for pod := range p.live {
				p.remove(pod)
			}
			p.stop()
			if err := os.RemoveAll(filepath.Join(p.dir, "state")); err != nil {
				p.t.Fatal(err)
			}
		case "compare":
			if p.daemon != nil { // the kubelet's files while it did not run have nothing new
				p.compare(s)
			}
		default:
			p.t.Fatalf("a step %q", s.Do)
		}
	}
	if p.compared == 0 {
		p.t.Error("the recording has no cgroups")
	}
}

// load makes a configuration of the kubelet's own file.
// memoryQoSOn matches the feature gate in a configuration.
var memoryQoSOn = regexp.MustCompile(`MemoryQoS"?:\s*true`)

func (p *replay) load(name string) (apiconfig.Config, error) {
	c, _, err := config.Load(config.Sources{
		KubeletFile: p.write(name, p.Configs[name]),
		Flags: func(c *apiconfig.Config) error {
			c.RootDir, c.Machine, c.Cgroups.Root = p.dir, filepath.Join(p.dir, "machine.json"), p.root
			c.Node.KernelTunables = apiconfig.TunablesIgnore
			c.Limits.PodResourcesBurst = 1000 // a comparison reads all pods at once
			c.Memory.CheckFreeHugePages = apiconfig.PagesIgnore
			c.Features.AsKubelet = true
			// As the captured kubelets, which are of 1.36.
			if c.Cgroups.MemoryQoS = memoryQoSOn.Match(p.Configs[name]); c.Cgroups.MemoryQoS && c.Cgroups.MemoryThrottlingFactor == nil {
				c.Cgroups.MemoryThrottlingFactor = new(0.9)
			}
			if _, ok := p.tree.(memoryTree); ok {
				c.Cgroups.Tree = apiconfig.TreeMemory
			}
			for kind, reserved := range map[string]*string{"system": &c.Node.SystemReservedCgroup, "kube": &c.Node.KubeReservedCgroup} {
				if *reserved == "" {
					continue
				}
				name := p.reserved(kind)
				literal, err := p.layout.Literal(name)
				if err != nil {
					return err
				}
				*reserved = literal
				if _, err := p.tree.Ensure(p.t.Context(), cgroup.Node{Name: name}); err != nil {
					return err
				}
			}
			return nil
		},
	})
	return c, err
}

// reserved is the cgroup that stands for one that the captured system had.
func (p *replay) reserved(kind string) cgroup.Name {
	return append(slices.Clone(p.layout.Root()), kind+"reserved")
}

// start runs a daemon, waits until it answers, and brings its plugins.
func (p *replay) start(s step) {
	p.t.Helper()
	p.again = s.Again
	c, err := p.load(s.Config)
	if s.Error {
		if err == nil {
			err = app.Validate(real.System(), c)
		}
		if err == nil {
			p.t.Errorf("%s: the kubelet refused it", s.Config)
		}
		return
	}
	if err != nil {
		p.t.Fatal(err)
	}
	log := slog.New(slog.NewTextHandler(p.t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	d := runDaemon(p.t, c, log, &app.Stage{Tree: p.tree, MaxPIDs: p.MaxPIDs, Grace: timeout})
	endPlugins := p.startPlugins(*c.DevicePluginDir)
	p.daemon = &daemon{conn: d.conn, podResources: *c.PodResourcesDir, end: func() {
		endPlugins()
		d.end()
	}}
	p.expectPlugins()
}

// runDaemon runs a daemon until its end is called, and returns when it answers.
func runDaemon(t *testing.T, c apiconfig.Config, log *slog.Logger, stage *app.Stage) *daemon {
	t.Helper()
	return runDaemonAt(t, c, log, stage, time.Now)
}

// runDaemonAt is runDaemon with a clock.
func runDaemonAt(t *testing.T, c apiconfig.Config, log *slog.Logger, stage *app.Stage, now func() time.Time) *daemon {
	t.Helper()
	a, err := app.Build(t.Context(), c, app.Environment{Log: log, Now: now, Stage: stage, System: real.System(), Metrics: metrics.New()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- a.Run(ctx, func() { close(ready) }) }()
	select {
	case <-ready:
	case err := <-ended:
		cancel()
		t.Fatalf("berthd ended: %v", err)
	}
	conn, err := grpc.NewClient("unix://"+c.Listen, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	return &daemon{conn: conn, end: func() {
		cancel()
		if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("berthd ended: %v", err)
		}
		_ = conn.Close() // calls under way have had their answers
	}}
}

// startPlugins runs the recorded plugins.
func (p *replay) startPlugins(dir string) (end func()) {
	p.t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(p.t.Context()))
	ended := make(chan error, len(p.Plugins))
	for _, r := range p.Plugins {
		devices, err := script.ParseDevices(strings.Join(r.Devices, ","))
		if err != nil {
			p.t.Fatal(err)
		}
		plugin := script.New(script.Config{
			Dir: dir, Resource: r.Resource, Devices: devices, Preferred: r.Preferred, PreStart: r.PreStart,
			Answer: captured(path.Base(r.Resource)),
		})
		go func() { ended <- plugin.Run(ctx) }()
	}
	return func() {
		cancel()
		for range p.Plugins {
			<-ended
		}
	}
}

// expectPlugins waits until every device is known.
func (p *replay) expectPlugins() {
	p.t.Helper()
	want := map[string]int64{}
	for _, r := range p.Plugins {
		want[r.Resource] = int64(len(r.Devices))
	}
	awaitDevices(p.t, p.daemon.conn, want)
}

// awaitDevices waits until resources have as many devices as expected.
func awaitDevices(t *testing.T, conn *grpc.ClientConn, want map[string]int64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		resp, err := devicev1.NewDeviceServiceClient(conn).ListResources(ctx, &devicev1.ListResourcesRequest{})
		if err != nil {
			t.Fatal(err)
		}
		known := map[string]int64{}
		for _, r := range resp.GetResources() {
			if _, wanted := want[r.GetName()]; wanted {
				known[r.GetName()] = r.GetAllocatable()
			}
		}
		if maps.Equal(known, want) {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("plugins are not known: %v, want %v", known, want)
		}
	}
}

func (p *replay) stop() {
	if p.daemon != nil {
		p.daemon.end()
		p.daemon = nil
	}
}

// pod reads a recorded pod. The recorded ones were static pods, which the kubelet
// takes for critical.
func (p *replay) pod(name string) *typesv1.Pod {
	p.t.Helper()
	pod := &typesv1.Pod{}
	if err := protojson.Unmarshal(p.Pods[name], pod); err != nil {
		p.t.Fatal(err)
	}
	pod.Spec.PriorityClassName = "system-node-critical"
	return pod
}

func (p *replay) admit(s step) {
	p.t.Helper()
	offered := p.offered(s)
	resp, err := admissionv1.NewAdmissionServiceClient(p.daemon.conn).Admit(p.t.Context(), &admissionv1.AdmitRequest{
		Subject: &admissionv1.AdmitRequest_Pod{Pod: p.pod(s.Pod)}, TraceLevel: admissionv1.TraceLevel_TRACE_LEVEL_FULL,
	})
	if err != nil {
		p.t.Fatalf("admit %s: %v", s.Pod, err)
	}
	p.compareDecided(s, offered, resp.GetTrace())
	admitted := resp.GetVerdict() == admissionv1.Verdict_VERDICT_ADMITTED
	if admitted && s.Rejected && p.requestsNothing(s.Pod) { // admitted since 1.37 (difference U5)
		p.live[s.Pod] = true
		p.remove(s.Pod)
		return
	}
	p.rejected[s.Pod] = !admitted
	if admitted {
		p.live[s.Pod] = true
		p.startContainers(s)
	}
	// Where it lacks something, the kubelet tries to evict others for a critical pod
	// first, and gives another reason.
	reason := resp.GetReason()
	if s.Reason == "UnexpectedAdmissionError" && strings.HasPrefix(reason, "OutOf") {
		reason = s.Reason
	}
	if admitted == s.Rejected || reason != s.Reason {
		p.t.Errorf("%s is %s %q (%s), the kubelet rejects it: %t %q", s.Pod, resp.GetVerdict(), resp.GetReason(), resp.GetMessage(),
			s.Rejected, s.Reason)
	}
}

// requestsNothing reports whether a container of a pod with pod-level resources requests nothing itself.
func (p *replay) requestsNothing(pod string) bool {
	spec := p.pod(pod).GetSpec()
	return spec.GetResources() != nil && slices.ContainsFunc(slices.Concat(spec.GetInitContainers(), spec.GetContainers()),
		func(c *typesv1.Container) bool {
			return len(c.GetResources().GetLimits()) == 0
		})
}

// startContainers starts the containers of a pod in the order in which a kubelet
// does, those that run to their end before others too.
func (p *replay) startContainers(s step) {
	p.t.Helper()
	name, pod := s.Pod, p.pod(s.Pod)
	client := lifecyclev1.NewLifecycleServiceClient(p.daemon.conn)
	for _, c := range slices.Concat(pod.GetSpec().GetInitContainers(), pod.GetSpec().GetContainers()) {
		p.compareCreated(s, c.GetName())
		id := name + "-" + c.GetName()
		_, err := client.PreStartContainer(p.t.Context(), &lifecyclev1.PreStartContainerRequest{
			PodUid: pod.GetMetadata().GetUid(), ContainerName: c.GetName(), ContainerId: id,
		})
		if err != nil {
			p.t.Fatalf("start %s/%s: %v", name, c.GetName(), err)
		}
		if !p.ends(name, c.GetName()) {
			continue
		}
		if _, err := client.PostStopContainer(p.t.Context(), &lifecyclev1.PostStopContainerRequest{ContainerId: id}); err != nil {
			p.t.Fatalf("stop %s/%s: %v", name, c.GetName(), err)
		}
	}
}

// ends reports whether a container runs to its end before the next one starts.
func (p *replay) ends(pod, container string) bool {
	p.t.Helper()
	return slices.ContainsFunc(p.pod(pod).GetSpec().GetInitContainers(), func(c *typesv1.Container) bool {
		return c.GetName() == container && c.GetRestartPolicy() != "Always"
	})
}

func (p *replay) remove(pod string) {
	p.t.Helper()
	if !p.live[pod] {
		return // rejected, and forgotten at once
	}
	_, err := admissionv1.NewAdmissionServiceClient(p.daemon.conn).RemovePod(p.t.Context(),
		&admissionv1.RemovePodRequest{PodUid: p.pod(pod).GetMetadata().GetUid()})
	if err != nil {
		p.t.Fatalf("remove %s: %v", pod, err)
	}
	delete(p.live, pod)
}

// compare holds the tree and the state files against the recorded ones.
func (p *replay) compare(s step) {
	p.t.Helper()
	if s.Cgroups != nil {
		p.compareCgroups(s)
	}
	p.comparePodresources(s)
	if s.CPU != "" {
		want, err := kubelet.ParseCPU([]byte(s.CPU), nil)
		if err != nil {
			p.t.Fatal(err)
		}
		p.mendCPU(&want)
		got, err := kubelet.ParseCPU(p.export("cpu", want.Format), nil)
		if err != nil || !reflect.DeepEqual(got, want) {
			p.t.Errorf("%s: cpu_manager_state:\n got %+v, %v\nwant %+v", s.Label, got, err, want)
		}
	}
	if s.Memory != "" {
		want, err := kubelet.ParseMemory([]byte(s.Memory))
		if err != nil {
			p.t.Fatal(err)
		}
		p.mend(&want)
		got, err := kubelet.ParseMemory(p.export("memory", want.Format))
		if err != nil || !reflect.DeepEqual(inOrder(got), inOrder(want)) {
			p.t.Errorf("%s: memory_manager_state, %v:\n%s", s.Label, err, difference(got, want))
		}
	}
}

// difference returns the difference of memory states, line by line.
func difference(got, want kubelet.MemoryState) string {
	lines := func(s kubelet.MemoryState) (out []string) {
		for id, n := range s.Nodes {
			for resource, table := range n.Tables {
				out = append(out, fmt.Sprintf("node %d, %s: %d blocks, with nodes %v, %+v", id, resource, n.Blocks, n.Group.IDs(), table))
			}
		}
		for uid, containers := range s.Containers {
			for name, blocks := range containers {
				out = append(out, fmt.Sprintf("%s/%s: %+v", uid, name, blocks))
			}
		}
		for uid, blocks := range s.Pods {
			out = append(out, fmt.Sprintf("%s: %+v", uid, blocks))
		}
		slices.Sort(out)
		return out
	}
	mine, theirs := lines(got), lines(want)
	var text []string
	for _, l := range mine {
		if !slices.Contains(theirs, l) {
			text = append(text, "+ "+l)
		}
	}
	for _, l := range theirs {
		if !slices.Contains(mine, l) {
			text = append(text, "- "+l)
		}
	}
	return strings.Join(text, "\n")
}

func (p *replay) export(kind string, format int) []byte {
	p.t.Helper()
	resp, err := inspectv1.NewInspectServiceClient(p.daemon.conn).Export(p.t.Context(),
		&inspectv1.ExportRequest{Kind: convert.EnumOf[inspectv1.StateFileKind](kind), Format: uint32(format)})
	if err != nil {
		p.t.Fatalf("export %s: %v", kind, err)
	}
	return resp.GetState()
}

// names gives the recorded pods by uid.
func (p *replay) names() map[string]string {
	names := map[string]string{}
	for name := range p.Pods {
		names[p.pod(name).GetMetadata().GetUid()] = name
	}
	return names
}

// mendCPU takes out of a CPU state what a kubelet has kept of pods that it rejected
// (difference A1).
func (p *replay) mendCPU(s *kubelet.CPUState) {
	names := p.names()
	for uid, containers := range s.Containers {
		if !p.rejected[names[uid]] {
			continue
		}
		for _, set := range containers {
			s.Shared = s.Shared.Union(set)
		}
		delete(s.Containers, uid)
	}
	for uid, set := range s.Pods {
		if p.rejected[names[uid]] {
			s.Shared = s.Shared.Union(set)
			delete(s.Pods, uid)
		}
	}
}

// mend takes out of a memory state what a kubelet has kept of pods that it rejected
// (difference A1), and what one counts wrongly that was started beside running pods: init
// containers that have ended, once more (N6), and pods that have gone, until the next pod
// comes (N11).
func (p *replay) mend(s *kubelet.MemoryState) {
	names := p.names()
	for uid, containers := range s.Containers {
		for container, blocks := range containers {
			name := names[uid]
			if !p.rejected[name] && !(p.again && (!p.live[name] || p.ends(name, container))) {
				continue
			}
			delete(containers, container)
			for _, b := range blocks {
				node := b.Nodes.IDs()[0] // none of them is larger than a node
				n := s.Nodes[node]
				n.Blocks--
				table := n.Tables[b.Resource]
				table.Reserved -= b.Bytes
				table.Free += b.Bytes
				n.Tables[b.Resource] = table
				s.Nodes[node] = n
			}
		}
	}
}

// inOrder sorts the blocks of containers, whose order is that of a map, and leaves
// out who has none.
func inOrder(s kubelet.MemoryState) kubelet.MemoryState {
	for uid, containers := range s.Containers {
		for name, blocks := range containers {
			slices.SortFunc(blocks, func(a, b kubelet.MemoryBlock) int { return strings.Compare(a.Resource, b.Resource) })
			if len(blocks) == 0 {
				delete(containers, name)
			}
		}
		if len(containers) == 0 {
			delete(s.Containers, uid)
		}
	}
	return s
}

func (p *replay) compareCgroups(s step) {
	p.t.Helper()
	// A pass between a pod's cgroup and its commit gives the tiers the values that they had
	// without it, until the next pass; a kubelet's were captured some time after.
	if _, err := qosv1.NewQOSServiceClient(p.daemon.conn).UpdateCgroups(p.t.Context(), &qosv1.UpdateCgroupsRequest{}); err != nil {
		p.t.Fatal(err)
	}
	pods := map[string]bool{}
	for key, files := range s.Cgroups {
		name := p.name(key)
		if _, ok := p.layout.PodUID(name); ok {
			pods[key] = true
		}
		for file, want := range files {
			got, ok := p.tree.File(p.t, name, file)
			p.compared++
			if want = normal(want); ok && normal(got) != want && !p.passing(key, file, want) {
				p.t.Errorf("%s: %s of %s is %q, the kubelet left %q", s.Label, file, key, got, want)
			}
		}
	}
	if !reflect.DeepEqual(pods, p.live) {
		p.t.Errorf("%s: pods %v, the kubelet has cgroups of %v", s.Label, p.live, pods)
	}
}

// passing reports whether a value is one that the kubelet replaces within a minute: the
// node's huge pages in the cgroup of all pods (difference G16), and the tiers of a
// kubelet that has just been started and knows no pods yet (G17).
func (p *replay) passing(key, file, want string) bool {
	const unbounded = "4611686018427387904"
	switch {
	case key == "pods" && file == "memory.low": // set since 1.37 (U6)
		return true
	case key == "pods" && strings.HasPrefix(file, "hugetlb."):
		return want != unbounded
	case key == "burstable" && file == "cpu.weight":
		return p.again && want == "1"
	}
	return false
}

// normal spells no limit in one way.
func normal(text string) string {
	switch text {
	case "-1", "9223372036854771712":
		return "max"
	}
	return text
}

// name finds the cgroup of a key.
func (p *replay) name(key string) cgroup.Name {
	p.t.Helper()
	switch key {
	case "pods":
		return p.layout.Pods()
	case "burstable", "besteffort":
		return append(slices.Clone(p.layout.Pods()), key)
	case "system", "kube":
		return p.reserved(key)
	}
	uid := p.pod(key).GetMetadata().GetUid()
	seen, err := p.tree.Observe(p.t.Context(), p.layout.Pods(), 2)
	if err != nil {
		p.t.Fatal(err)
	}
	names := p.layout.PodCgroups(seen)[uid]
	if len(names) != 1 {
		p.t.Errorf("pod %s has the cgroups %v, want one", key, names)
		return append(slices.Clone(p.layout.Pods()), fmt.Sprintf("pod%s", uid))
	}
	return names[0]
}

// TestRejectedPodsAreForgiven: what a kubelet keeps of a pod that it rejected is no
// difference at any comparison, and what it keeps of another one is.
func TestRejectedPodsAreForgiven(t *testing.T) {
	t.Parallel()
	all := recordings(t)
	r := all[slices.IndexFunc(all, func(r recording) bool { return r.Name == "v2-cgroupfs-restricted" })]
	const lost, here = "p03-g1", "p10-gfill"
	p := &replay{recording: r, t: t, live: map[string]bool{here: true}, rejected: map[string]bool{lost: true}}
	uid := func(name string) string { return p.pod(name).GetMetadata().GetUid() }
	set := func(list string) cpuset.Set {
		s, err := cpuset.Parse(list)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	cpus := kubelet.CPUState{Shared: set("0,4-7"), Containers: map[string]map[string]cpuset.Set{
		uid(lost): {"c": set("1")}, uid(here): {"c": set("2-3")},
	}}
	p.mendCPU(&cpus)
	if want := set("0-1,4-7"); cpus.Shared != want || len(cpus.Containers) != 1 || cpus.Containers[uid(here)]["c"] != set("2-3") {
		t.Errorf("CPUs: %+v", cpus)
	}
	block := func() []kubelet.MemoryBlock {
		return []kubelet.MemoryBlock{{Nodes: numa.Of(0), Resource: "memory", Bytes: 10}}
	}
	memory := kubelet.MemoryState{
		Nodes:      map[int]kubelet.MemoryNode{0: {Blocks: 2, Tables: map[string]kubelet.MemoryTable{"memory": {Reserved: 20, Free: 80}}}},
		Containers: map[string]map[string][]kubelet.MemoryBlock{uid(lost): {"c": block()}, uid(here): {"c": block()}},
	}
	p.mend(&memory)
	if n := memory.Nodes[0]; n.Blocks != 1 || n.Tables["memory"].Reserved != 10 || n.Tables["memory"].Free != 90 ||
		len(memory.Containers[uid(here)]) != 1 || len(memory.Containers[uid(lost)]) != 0 {
		t.Errorf("memory: %+v", memory)
	}
}

// TestPodThatComesBackIsNew: a pod that was removed leaves nothing to which one with
// the same uid would be tied. The kubelet keeps its memory until another pod is
// admitted, and then holds it to the NUMA node that it had.
func TestPodThatComesBackIsNew(t *testing.T) {
	t.Parallel()
	all := recordings(t)
	r := all[slices.IndexFunc(all, func(r recording) bool { return r.Name == "v2-cgroupfs-restricted" })]
	m, err := machine.Load(r.Machine)
	if err != nil {
		t.Fatal(err)
	}
	p := newReplay(t, r, "/", memoryTree{memtree.New(memtree.V2(), m.CPUs(), m.NodeMask()).TakeAny()})
	p.start(step{Config: "kubelet.json"})
	place := func() string {
		t.Helper()
		p.admit(step{Pod: "p03-g1"})
		s, err := kubelet.ParseMemory(p.export("memory", 0))
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(s.Containers[p.pod("p03-g1").GetMetadata().GetUid()]["c"])
	}
	for _, pod := range []string{"p10-gfill", "p26-gtwomem"} { // three of the four nodes
		p.admit(step{Pod: pod})
	}
	if got := place(); !strings.HasSuffix(got, "NUMA nodes 3]") {
		t.Fatalf("beside two others it has %s", got)
	}
	p.remove("p26-gtwomem")
	p.remove("p03-g1")
	if got := place(); !strings.HasSuffix(got, "NUMA nodes 0]") {
		t.Errorf("where there is room again it has %s", got)
	}
}

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	devicev1 "github.com/berthd/berth/api/berth/device/v1"
	inspectv1 "github.com/berthd/berth/api/berth/inspect/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/hack/testing/script"
	"github.com/berthd/berth/managers/ledger/kubelet"
)

// runPlugin runs a device plugin until the test ends or the plugin dies; the
// result waits for that.
func (n *node) runPlugin(cfg script.Config, devices string) (p *script.Plugin, end func()) {
	n.t.Helper()
	list, err := script.ParseDevices(devices)
	if err != nil {
		n.t.Fatal(err)
	}
	folder := "device-plugins"
	if cfg.Watched {
		folder = "plugins_registry"
	}
	cfg.Dir, cfg.Devices = filepath.Join(n.root, folder), list
	p = script.New(cfg)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	end = func() { cancel(); <-ended; ended <- nil }
	n.t.Cleanup(end)
	return p, end
}

// expectResource waits until a resource is in a state, with a capacity and a
// number of healthy devices.
func (d *daemon) expectResource(name, plugin string, capacity, allocatable int64) {
	d.t.Helper()
	var last *devicev1.ListResourcesResponse
	d.t.Cleanup(func() {
		if d.t.Failed() {
			d.t.Logf("the last resources that were seen while waiting for %s: %v", name, last)
		}
	})
	d.eventually(name+" is "+plugin, func() bool {
		resp, err := devicev1.NewDeviceServiceClient(d.conn).ListResources(d.ctx(), &devicev1.ListResourcesRequest{})
		if err != nil {
			return false
		}
		last = resp
		for _, r := range resp.GetResources() {
			if r.GetName() == name {
				return convert.Word(r.GetPluginState()) == plugin && r.GetCapacity() == capacity && r.GetAllocatable() == allocatable
			}
		}
		return false
	})
}

// withDevice is a pod on the shared CPUs with one device.
func withDevice(uid, resource string) *typesv1.Pod {
	r := map[string]string{resource: "1"}
	return pod(uid, r, r)
}

// devicesOf returns the ids that a pod's only container holds of a resource.
func (d *daemon) devicesOf(uid, resource string) (ids []string) {
	d.t.Helper()
	resp, err := d.allocation.Get(d.ctx(), &allocationv1.GetRequest{Subject: &allocationv1.GetRequest_PodUid{PodUid: uid}})
	if err != nil {
		d.t.Fatal(err)
	}
	for _, c := range resp.GetPod().GetContainers()[0].GetClaims() {
		for _, dev := range c.GetDevice().GetDevices() {
			if c.GetResource() == resource {
				ids = append(ids, dev.GetId())
			}
		}
	}
	return ids
}

// TestPluginsNoticeARestart runs plugins that know one signal each: their own
// socket is gone, kubelet.sock is new, they are found. Whether berthd was killed
// or stopped, all come back, and the pods that hold their devices keep them,
// also while no plugin is there.
func TestPluginsNoticeARestart(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	d := n.start()
	const own, kubelet, found, once = "example.com/own", "example.com/kubelet", "example.com/found", "example.com/once"
	resources := []string{own, kubelet, found, once}
	for name, cfg := range map[string]script.Config{
		own:     {Signal: script.OwnSocket},
		kubelet: {Signal: script.ServerSocket},
		found:   {Watched: true},
		once:    {Signal: script.NoSignal},
	} {
		cfg.Resource = name
		n.runPlugin(cfg, "d0 d1 d2")
	}
	for _, name := range resources {
		d.expectResource(name, "connected", 3, 3)
		d.admitted(withDevice("of-"+filepath.Base(name), name))
	}
	for _, end := range []func(*daemon){(*daemon).kill, (*daemon).stop} {
		end(d)
		d = n.start()
		for _, name := range resources {
			uid := "of-" + filepath.Base(name)
			if ids := d.devicesOf(uid, name); len(ids) != 1 || ids[0] != "d0" {
				t.Errorf("after the restart pod %s holds %q", uid, ids)
			}
			// The same pod again is the same answer, plugin or not.
			d.admitted(withDevice(uid, name))
		}
		for _, name := range resources[:3] {
			d.expectResource(name, "connected", 3, 3)
		}
		d.expectResource(once, "expected", 0, 0)
		d.check()
	}
}

// TestPluginIsFound is the life of a plugin that does not register: found, used,
// dead, back with other devices, its socket removed.
func TestPluginIsFound(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	d := n.start()
	p, end := n.runPlugin(script.Config{Resource: gpu, Watched: true, PreStart: true}, "g0 g1")
	d.expectResource(gpu, "connected", 2, 2)
	d.admitted(withDevice("pod", gpu))
	if ids := d.devicesOf("pod", gpu); len(ids) != 1 || ids[0] != "g0" {
		t.Errorf("the pod holds %q", ids)
	}
	if calls := p.Calls(script.Allocate); len(calls) != 1 {
		t.Errorf("the plugin was asked %+v", calls)
	}
	p.Die()
	d.expectResource(gpu, "stopped", 2, 0)
	end()
	_, end = n.runPlugin(script.Config{Resource: gpu, Watched: true}, "g1 g2 g3")
	d.expectResource(gpu, "connected", 3, 3)
	end()
	d.expectResource(gpu, "stopped", 3, 0)
	d.remove("pod")
	d.check()
}

// configure writes a BerthConfiguration and makes daemons of the node use it.
func (n *node) configure(text string) {
	n.t.Helper()
	path := filepath.Join(n.root, "berth.yaml")
	if err := os.WriteFile(path, []byte("apiVersion: config.berthd.github.io/v1alpha1\nkind: BerthConfiguration\n"+text),
		0o600); err != nil {
		n.t.Fatal(err)
	}
	n.args = append(n.args, "--config", path)
}

// TestPodsWaitForTheirPlugin requests a device while its plugin is away: the pod is
// deferred, and the condition names the plugin.
func TestPodsWaitForTheirPlugin(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	d := n.start()
	waits := func(condition string) {
		t.Helper()
		answer := d.admit(withDevice("pod", gpu))
		if answer.GetVerdict() != admissionv1.Verdict_VERDICT_DEFERRED || answer.GetRetryAfter().AsDuration() <= 0 {
			t.Errorf("%s, again after %s", answer.GetVerdict(), answer.GetRetryAfter().AsDuration())
		}
		want := &admissionv1.Condition{Reason: condition, Domain: "berthd.github.io",
			Metadata: map[string]string{"provider": "device", "resource": gpu}}
		if !proto.Equal(answer.GetCondition(), want) {
			t.Errorf("waits for %v, want %v", answer.GetCondition(), want)
		}
		if !strings.Contains(answer.GetMessage(), "no healthy devices present; cannot allocate unhealthy devices "+gpu) {
			t.Errorf("message %q", answer.GetMessage())
		}
	}
	silent := script.New(script.Config{Resource: gpu, Dir: filepath.Join(n.root, "device-plugins"), Endpoint: "silent.sock"})
	silent.Behave(script.ListAndWatch, script.Hang)
	if err := errors.Join(silent.Serve(), silent.Register(d.ctx())); err != nil {
		t.Fatal(err)
	}
	waits("PluginAway") // it has registered and not listed anything yet
	silent.Stop()
	silent.Wait()

	p, end := n.runPlugin(script.Config{Resource: gpu}, "g0 g1")
	d.expectResource(gpu, "connected", 2, 2)
	p.SetHealth("g0", false)
	p.SetHealth("g1", false)
	d.expectResource(gpu, "connected", 2, 0)
	waits("NoHealthyDevice")
	end()
	d.expectResource(gpu, "stopped", 2, 0)
	waits("PluginAway")
	d.kill()
	d = n.start()
	waits("PluginAway")
	if pods := d.pods(); len(pods) > 0 {
		t.Errorf("pods that wait: %v", pods)
	}
	n.runPlugin(script.Config{Resource: gpu}, "g0 g1")
	d.expectResource(gpu, "connected", 2, 2)
	d.admitted(withDevice("pod", gpu))
	d.check()
}

// TestResourcesThatNobodyProvides requests a device before its plugin was ever here:
// the pod waits, is refused, or goes without and has a note about it for as long as it lives.
func TestResourcesThatNobodyProvides(t *testing.T) {
	t.Parallel()
	noted := func(notes []string, text string) bool {
		return slices.ContainsFunc(notes, func(n string) bool { return strings.Contains(n, text) })
	}
	t.Run("waits", func(t *testing.T) {
		t.Parallel()
		n := newNode(t)
		n.configure("devices: {registrationGrace: 1h}\n")
		d := n.start()
		answer := d.admit(withDevice("pod", gpu))
		want := &admissionv1.Condition{Reason: "ResourceUnknown", Domain: "berthd.github.io", Metadata: map[string]string{"resource": gpu}}
		if answer.GetVerdict() != admissionv1.Verdict_VERDICT_DEFERRED || answer.GetRetryAfter().AsDuration() <= 0 ||
			!proto.Equal(answer.GetCondition(), want) {
			t.Errorf("%s, again after %s, for %v", answer.GetVerdict(), answer.GetRetryAfter().AsDuration(), answer.GetCondition())
		}
		n.runPlugin(script.Config{Resource: gpu}, "g0 g1")
		d.expectResource(gpu, "connected", 2, 2)
		if answer := d.admitted(withDevice("pod", gpu)); len(answer.GetNotes()) > 0 {
			t.Errorf("notes %q", answer.GetNotes())
		}
		d.check()
	})
	t.Run("is refused", func(t *testing.T) {
		t.Parallel()
		n := newNode(t)
		n.configure("devices: {registrationGrace: 0s}\n")
		d := n.start()
		n.runPlugin(script.Config{Resource: "example.com/nic"}, "n0")
		d.expectResource("example.com/nic", "connected", 1, 1)
		answer := d.admit(withDevice("pod", gpu))
		if answer.GetVerdict() != admissionv1.Verdict_VERDICT_REJECTED || answer.GetReason() != "OutOf"+gpu ||
			!strings.Contains(answer.GetMessage(), "known are example.com/nic.") {
			t.Errorf("%s %s: %s", answer.GetVerdict(), answer.GetReason(), answer.GetMessage())
		}
		d.says("pod rejected")
	})
	t.Run("goes without", func(t *testing.T) {
		t.Parallel()
		n := newNode(t)
		d := n.start("--devices-unknown", "ignore")
		allocated := func() []string {
			t.Helper()
			answer, err := d.allocation.Allocate(d.ctx(),
				&allocationv1.AllocateRequest{Subject: &allocationv1.AllocateRequest_PodUid{PodUid: "pod"}, ContainerName: "main"})
			if err != nil {
				t.Fatal(err)
			}
			return answer.GetNotes()
		}
		for _, notes := range [][]string{d.admitted(withDevice("pod", gpu)).GetNotes(), allocated()} {
			if !noted(notes, "has no provider here") {
				t.Errorf("notes %q", notes)
			}
		}
		d.says("pod admitted without a resource that it requests")
		n.runPlugin(script.Config{Resource: gpu}, "g0 g1")
		d.expectResource(gpu, "connected", 2, 2)
		for _, notes := range [][]string{d.admitted(withDevice("pod", gpu)).GetNotes(), allocated()} {
			if !noted(notes, "admitted without the 1 "+gpu) {
				t.Errorf("after the plugin came: notes %q", notes)
			}
		}
	})
	t.Run("is left to others", func(t *testing.T) {
		t.Parallel()
		d := newNode(t).start("--devices-elsewhere", "example.com")
		if notes := d.admitted(withDevice("pod", gpu)).GetNotes(); !noted(notes, "another program allocates") {
			t.Errorf("notes %q", notes)
		}
	})
}

// TestForgottenResources: a resource whose plugin is gone permanently is forgotten when
// ForgetResource is called, or after its time, but never while it is held; then no restart
// waits for it.
func TestForgottenResources(t *testing.T) {
	t.Parallel()
	unknown := func(d *daemon) {
		t.Helper()
		d.eventually("the resource is forgotten", func() bool {
			list, err := devicev1.NewDeviceServiceClient(d.conn).ListResources(d.ctx(), &devicev1.ListResourcesRequest{})
			return err == nil && len(list.GetResources()) == 0
		})
	}
	forget := func(d *daemon) error {
		_, err := devicev1.NewDeviceServiceClient(d.conn).ForgetResource(d.ctx(), &devicev1.ForgetResourceRequest{Resource: gpu})
		return err
	}
	// missing returns the resources for which a reader of a berthd would wait which
	// has just started.
	missing := func(d *daemon) []string {
		t.Helper()
		ctx, end := context.WithTimeout(d.ctx(), 3*time.Second)
		defer end()
		var header metadata.MD
		if _, err := d.readers().GetAllocatableResources(ctx, &podresources.AllocatableResourcesRequest{},
			grpc.Header(&header)); err != nil {
			t.Fatal(err)
		}
		return header.Get("berth-missing-resources")
	}
	t.Run("by a person", func(t *testing.T) {
		t.Parallel()
		n := newNode(t)
		n.configure("limits: {podResourcesWait: 1h}\n")
		d := n.start()
		_, end := n.runPlugin(script.Config{Resource: gpu}, "g0")
		d.expectResource(gpu, "connected", 1, 1)
		if err := forget(d); status.Code(err) != codes.FailedPrecondition {
			t.Errorf("with a plugin: %v", err)
		}
		d.admitted(withDevice("pod", gpu))
		end()
		d.expectResource(gpu, "stopped", 1, 0)
		if err := forget(d); status.Code(err) != codes.FailedPrecondition ||
			!strings.Contains(err.Error(), "held by container main of pod default/pod") {
			t.Errorf("held: %v", err)
		}
		d.kill()
		d = n.start()
		if got := missing(d); !slices.Equal(got, []string{gpu}) {
			t.Errorf("readers are told that %q is missing", got)
		}
		d.remove("pod")
		if err := forget(d); err != nil {
			t.Fatal(err)
		}
		unknown(d)
		if err := forget(d); status.Code(err) != codes.NotFound {
			t.Errorf("again: %v", err)
		}
		d.kill()
		d = n.start()
		unknown(d)
		if got := missing(d); len(got) > 0 {
			t.Errorf("after a restart readers are told that %q is missing", got)
		}
		d.check()
	})
	t.Run("after its time", func(t *testing.T) {
		t.Parallel()
		n := newNode(t)
		n.configure("devices: {forgetAfter: 100ms}\nlimits: {podResourcesWait: 1h}\n")
		d := n.start()
		_, end := n.runPlugin(script.Config{Resource: gpu}, "g0")
		d.expectResource(gpu, "connected", 1, 1)
		end()
		unknown(d)
		d.kill()
		d = n.start()
		if got := missing(d); len(got) > 0 {
			t.Errorf("after a restart readers are told that %q is missing", got)
		}
	})
}

// follower knows pods only from Watch, and lists when Watch requires it.
type follower struct {
	d        *daemon
	revision uint64
	pods     map[string]bool
	resource map[string]string
	lists    int
}

// until reads events until a condition holds, whatever happens to the stream.
func (f *follower) until(what string, done func() bool) {
	f.d.t.Helper()
	ctx := f.d.ctx()
	for !done() {
		stream, err := f.d.allocation.Watch(ctx, &allocationv1.WatchRequest{FromRevision: f.revision})
		for err == nil && !done() {
			var m *allocationv1.WatchResponse
			if m, err = stream.Recv(); err == nil {
				f.take(m)
			}
		}
		switch {
		case status.Code(err) == codes.OutOfRange:
			f.lists++
			f.revision, f.pods = 0, map[string]bool{}
		case ctx.Err() != nil:
			f.d.t.Fatalf("never seen: %s; pods %v, resources %v at revision %d", what, f.pods, f.resource, f.revision)
		}
	}
}

func (f *follower) take(m *allocationv1.WatchResponse) {
	f.revision = m.GetRevision()
	for _, e := range m.GetEvents() {
		switch e := e.GetEvent().(type) {
		case *allocationv1.Event_Added:
			f.pods[e.Added.GetUid()] = true
		case *allocationv1.Event_Removed:
			delete(f.pods, e.Removed.GetUid())
		case *allocationv1.Event_DeviceResource:
			r := e.DeviceResource
			f.resource[r.GetName()] = fmt.Sprintf("%s %d/%d", convert.Word(r.GetPluginState()), r.GetAllocatable(), r.GetCapacity())
		}
	}
}

// TestWatchOverARestart follows pods and plugins through a life with a crash, and
// repeats the admission of a waiting pod after the event of its devices.
func TestWatchOverARestart(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.configure("verdicts: {deferred: true}\n")
	d := n.start()
	f := &follower{d: d, pods: map[string]bool{}, resource: map[string]string{}}
	d.admitted(burstable("first"))
	f.until("the first pod", func() bool { return f.pods["first"] })
	_, end := n.runPlugin(script.Config{Resource: gpu}, "g0 g1")
	f.until("the plugin", func() bool { return f.resource[gpu] == "connected 2/2" })
	d.admitted(withDevice("second", gpu))
	f.until("the second pod", func() bool { return f.pods["second"] })
	end()
	f.until("the plugin's end", func() bool { return f.resource[gpu] == "stopped 0/2" })
	if answer := d.admit(withDevice("third", gpu)); answer.GetVerdict() != admissionv1.Verdict_VERDICT_DEFERRED {
		t.Fatalf("without a plugin: %s", answer.GetVerdict())
	}
	d.kill()
	d = n.start()
	f.d = d
	d.remove("first")
	f.until("the removal", func() bool { return !f.pods["first"] && f.pods["second"] })
	n.runPlugin(script.Config{Resource: gpu}, "g0 g1")
	f.until("the plugin again", func() bool { return f.resource[gpu] == "connected 2/2" })
	d.admitted(withDevice("third", gpu))
	f.until("the third pod", func() bool { return f.pods["third"] })
	lists := f.lists
	f.revision = 1 // from before the restart
	f.until("a list", func() bool { return f.lists == lists+1 && f.pods["second"] && f.pods["third"] })
}

// TestWatchOverALostLedger: a reader from before a ledger was lost has to list,
// also when the new one has had more commits than the old one.
func TestWatchOverALostLedger(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	d := n.start()
	d.admitted(burstable("lost"))
	before := d.revision()
	d.kill()
	n.damageLedger()
	d = n.start()
	generation := func() uint64 {
		check, err := d.inspect.Check(d.ctx(), &inspectv1.CheckRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return check.GetRevision()
	}
	for i, enough := 0, generation()+10; generation() < enough; i++ {
		d.admitted(burstable(fmt.Sprintf("new%d", i)))
	}
	if now := d.revision(); now <= before {
		t.Errorf("revision %d after %d", now, before)
	}
	for range 2 {
		stream, err := d.allocation.Watch(d.ctx(), &allocationv1.WatchRequest{FromRevision: before})
		if err != nil {
			t.Fatal(err)
		}
		if e, err := stream.Recv(); status.Code(err) != codes.OutOfRange {
			t.Errorf("%v, %v: want to be told to list", e, err)
		}
		d.kill()
		d = n.start()
	}
}

// TestWatchersDoNotDelayTheEnd stops a daemon in order while a client watches.
func TestWatchersDoNotDelayTheEnd(t *testing.T) {
	t.Parallel()
	d := newNode(t).start()
	stream, err := d.allocation.Watch(d.ctx(), &allocationv1.WatchRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	d.stop()
	for err == nil {
		_, err = stream.Recv()
	}
	if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "berthd ends") {
		t.Errorf("the stream ended with %v", err)
	}
}

// TestDevicesMoveFromAKubelet imports the device checkpoint of a kubelet, first
// tried dry, and gives it back.
func TestDevicesMoveFromAKubelet(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	d := n.start()
	state := kubelet.DeviceState{
		Registered: map[string][]string{gpu: {"g1", "g0"}},
		Entries: []kubelet.DeviceEntry{{
			Pod: "moved", Container: "main", Resource: gpu, IDs: map[int64][]string{0: {"g1"}},
			Response: []byte("\x0a\x06\x0a\x01A\x12\x01B"), // envs A=B
		}},
	}
	file, err := state.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	req := &inspectv1.ImportRequest{Kind: inspectv1.StateFileKind_STATE_FILE_KIND_DEVICE, State: file,
		Pods: []*typesv1.Pod{withDevice("moved", gpu)}, DryRun: true}
	for _, req.DryRun = range []bool{true, false} {
		answer, err := d.inspect.Import(d.ctx(), req)
		if err != nil || len(answer.GetPods()) != 1 || answer.GetPods()[0].GetOutcome() != inspectv1.ImportOutcome_IMPORT_OUTCOME_NEW {
			t.Fatalf("dry run %v: %v, %v", req.GetDryRun(), answer, err)
		}
	}
	d.expectResource(gpu, "expected", 0, 0)
	if ids := d.devicesOf("moved", gpu); len(ids) != 1 || ids[0] != "g1" {
		t.Errorf("the pod holds %q", ids)
	}
	p, _ := n.runPlugin(script.Config{Resource: gpu}, "g0@0 g1@0")
	d.expectResource(gpu, "connected", 2, 2)
	got, err := d.allocation.Allocate(d.ctx(),
		&allocationv1.AllocateRequest{Subject: &allocationv1.AllocateRequest_PodUid{PodUid: "moved"}, ContainerName: "main"})
	if err != nil || len(got.GetEdits().GetEnvs()) != 1 || got.GetEdits().GetEnvs()["A"] == "" || len(p.Calls(script.Allocate)) != 0 {
		t.Errorf("what the container starts with: %v, %v; the plugin was asked %v", got.GetEdits().GetEnvs(), err, p.Calls(script.Allocate))
	}
	d.admitted(withDevice("other", gpu))
	if ids := d.devicesOf("other", gpu); len(ids) != 1 || ids[0] != "g0" {
		t.Errorf("the other pod holds %q", ids)
	}
	d.remove("other")
	if _, err := os.Lstat(filepath.Join(n.root, "device-plugins", "kubelet_internal_checkpoint")); !os.IsNotExist(err) {
		t.Errorf("a checkpoint was written where a kubelet looks for its own: %v", err)
	}
	out, err := d.inspect.Export(d.ctx(), &inspectv1.ExportRequest{Kind: inspectv1.StateFileKind_STATE_FILE_KIND_DEVICE})
	if err != nil || out.GetFileName() != "device-plugins/kubelet_internal_checkpoint" {
		t.Fatalf("%v, %v", out, err)
	}
	state.Registered[gpu] = []string{"g0", "g1"}
	want, err := state.Marshal()
	if err != nil || string(out.GetState()) != string(want) {
		t.Errorf("given back: %s\nwant %s", out.GetState(), want)
	}
}

package agent_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/podspec"
	"github.com/berthd/berth/clients/berth"
	"github.com/berthd/berth/clients/berthlet/agent"
	"github.com/berthd/berth/clients/berthlet/container"
	"github.com/berthd/berth/clients/berthlet/container/containertest"
	"github.com/berthd/berth/clients/berthlet/lifecycle"
	"github.com/berthd/berth/clients/berthlet/volume"
)

// fakeNode is a berthd without a machine.
type fakeNode struct {
	mu    sync.Mutex // guards what is below
	pods  map[string]bool
	bound map[string]string // the uids of their pods, by container ids
	calls []string
	// answers are taken by Admit, one at each call; then pods are admitted.
	answers []*admissionv1.AdmitResponse
	// fail lets a call fail, and lose the answer of one that has had its effect.
	fail, lose func(call string) error
	lost       chan struct{}
	// noDevices is what NoDevices answers.
	noDevices bool
}

func newFakeNode() *fakeNode {
	return &fakeNode{pods: map[string]bool{}, bound: map[string]string{}, lost: make(chan struct{})}
}

// call notes a call, for callers that hold mu.
func (f *fakeNode) call(words ...any) error {
	text := strings.TrimSpace(fmt.Sprintln(words...))
	if f.fail != nil {
		if err := f.fail(text); err != nil {
			return err
		}
	}
	f.calls = append(f.calls, text)
	return nil
}

// answer is the error of a call that has had its effect, for callers that hold mu.
func (f *fakeNode) answer(words ...any) error {
	if f.lose == nil {
		return nil
	}
	return f.lose(strings.TrimSpace(fmt.Sprintln(words...)))
}

func (f *fakeNode) Ready(context.Context) error { return nil }

func (f *fakeNode) Lost(ctx context.Context) {
	f.mu.Lock()
	lost := f.lost
	f.mu.Unlock()
	select {
	case <-lost:
	case <-ctx.Done():
	}
}

// restart is what a crash of berthd looks like; with forget it has lost its ledger.
func (f *fakeNode) restart(forget bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if forget {
		clear(f.pods)
		clear(f.bound)
	}
	close(f.lost)
	f.lost = make(chan struct{})
}

func (f *fakeNode) Sync(ctx context.Context, living func(context.Context) ([]string, error)) error {
	uids, err := living(ctx)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.call("Sync", strings.Join(uids, ",")); err != nil {
		return err
	}
	for uid := range f.pods {
		if !slices.Contains(uids, uid) {
			f.forget(uid)
		}
	}
	return f.answer("Sync")
}

func (f *fakeNode) Admit(_ context.Context, pod *typesv1.Pod) (*admissionv1.AdmitResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.call("Admit", pod.GetMetadata().GetUid()); err != nil {
		return nil, err
	}
	if len(f.answers) > 0 {
		answer := f.answers[0]
		f.answers = f.answers[1:]
		return answer, nil
	}
	f.pods[pod.GetMetadata().GetUid()] = true
	if err := f.answer("Admit", pod.GetMetadata().GetUid()); err != nil {
		return nil, err
	}
	return &admissionv1.AdmitResponse{Verdict: admissionv1.Verdict_VERDICT_ADMITTED, QosClass: typesv1.QOSClass_QOS_CLASS_BURSTABLE}, nil
}

func (f *fakeNode) Knows(_ context.Context, uid string) (known bool, bound []string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for id, of := range f.bound {
		if of == uid {
			bound = append(bound, id)
		}
	}
	return f.pods[uid], bound, f.call("Knows", uid)
}

func (f *fakeNode) Remove(_ context.Context, uid string) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	known := f.pods[uid]
	if err := f.call("Remove", uid); err != nil {
		return false, err
	}
	f.forget(uid)
	return known, f.answer("Remove", uid)
}

// forget removes a pod with its containers, for callers that hold mu.
func (f *fakeNode) forget(uid string) {
	delete(f.pods, uid)
	maps.DeleteFunc(f.bound, func(_, of string) bool { return of == uid })
}

func (f *fakeNode) known(uid string) error {
	if !f.pods[uid] {
		return &berth.Error{Code: codes.NotFound, Message: "pod " + uid + " is not admitted"}
	}
	return nil
}

func (f *fakeNode) Allocate(_ context.Context, uid, container string) (*allocationv1.AllocateResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := errors.Join(f.call("Allocate", uid, container), f.answer("Allocate", uid, container)); err != nil {
		return nil, err
	}
	return &allocationv1.AllocateResponse{
		Resources: &typesv1.LinuxResources{
			CpusetCpus: &typesv1.CPUSet{List: "3"}, CpusetMems: &typesv1.NUMANodeSet{Ids: []uint32{1}}, CpuShares: proto.Uint64(5),
			CpuQuotaMicroseconds: proto.Int64(-1), CpuPeriodMicroseconds: proto.Uint64(6), MemoryLimitBytes: proto.Int64(8),
			MemorySwapLimitBytes: proto.Int64(9),
			HugepageLimits:       []*typesv1.HugepageLimit{{PageSizeBytes: 2 << 20, LimitBytes: proto.Int64(10)}},
			Unified:              map[string]string{"memory.min": "1"},
			OomScoreAdj:          proto.Int32(7),
		},
		CgroupPath: "/pods/" + uid + "/" + container, CgroupParent: "/pods/" + uid,
		Edits: &typesv1.ContainerEdits{
			Envs:    map[string]string{"DEVICE": "d0", "MINE": "plugin"},
			Mounts:  []*typesv1.Mount{{ContainerPath: "/lib/d", HostPath: "/host/d", ReadOnly: true}},
			Devices: []*typesv1.DeviceNode{{ContainerPath: "/dev/d", HostPath: "/dev/null", Permissions: "rw"}},
		},
	}, f.known(uid)
}

func (f *fakeNode) NoDevices(context.Context) (bool, error) { return f.noDevices, nil }

func (f *fakeNode) ReservedCPUs(context.Context) (string, error) { return "0", nil }

func (f *fakeNode) PreStart(_ context.Context, uid, container, id string, _ int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.call("PreStart", uid, container, id); err != nil {
		return err
	}
	if err := f.known(uid); err != nil {
		return err
	}
	f.bound[id] = uid
	return f.answer("PreStart", uid, container, id)
}

func (f *fakeNode) PostStop(_ context.Context, id string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.call("PostStop", id); err != nil {
		return err
	}
	delete(f.bound, id)
	return f.answer("PostStop", id)
}

// said lists the calls with one of some prefixes.
func (f *fakeNode) said(words ...string) []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []string
	for _, call := range f.calls {
		first, _, _ := strings.Cut(call, " ")
		if len(words) == 0 || slices.Contains(words, first) {
			out = append(out, call)
		}
	}
	return out
}

// fakePins are pins without mounts: a path is where it is.
type fakePins struct {
	mu   sync.Mutex // guards held
	held map[volume.Holder]int
}

func (f *fakePins) Pin(h volume.Holder, _ int, dir, path string) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.held == nil {
		f.held = map[volume.Holder]int{}
	}
	f.held[h]++
	return "/pinned" + dir + "/" + path, nil
}

func (f *fakePins) Release(h volume.Holder) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.held, h)
	return nil
}

func (f *fakePins) ReleasePod(uid string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	maps.DeleteFunc(f.held, func(h volume.Holder, _ int) bool { return h.PodUID == uid })
	return nil
}

func (f *fakePins) Holders() (uids []string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for h := range f.held {
		uids = append(uids, h.PodUID)
	}
	return uids, nil
}

// fixture is a machine without anything real: a node, a runtime, a directory.
type fixture struct {
	t       *testing.T
	dir     string
	node    *fakeNode
	runtime *containertest.Fake
	agent   *agent.Agent
	pins    fakePins
	// features are what the runtime can enforce, from the next begin on.
	features container.Features
	stop     func()
	log      logBuffer
}

// logBuffer keeps the text of a log.
type logBuffer struct {
	mu   sync.Mutex
	text strings.Builder // guarded by mu
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// within runs a test under testing/synctest, whose clock is the test's.
func within(t *testing.T, test func(h *fixture)) {
	t.Helper()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		h := &fixture{t: t, dir: dir, node: newFakeNode()}
		h.runtime = containertest.NewFake(time.Now, func(uid string) { h.agent.Changed(uid) })
		h.begin()
		defer func() { h.stop() }()
		test(h)
	})
}

// begin starts an agent; stop ends it, as a crash does: without a word to anybody.
func (h *fixture) begin() {
	h.t.Helper()
	ctx, cancel := context.WithCancel(h.t.Context())
	h.agent = agent.New(agent.Config{
		Node: h.node, Runtime: h.runtime, Dir: h.dir, LogDir: h.dir + "/logs", StatusFile: h.dir + "/status.json",
		Volumes: &h.pins, Features: h.features, SeccompDir: h.dir + "/seccomp",
		Crash: lifecycle.Crash, Retry: lifecycle.Retry, Now: time.Now, Log: slog.New(slog.NewTextHandler(&h.log, nil)),
	})
	done := make(chan error, 1)
	go func() { done <- h.agent.Run(ctx) }()
	h.stop = func() {
		cancel()
		if err := <-done; err != nil {
			h.t.Error(err)
		}
		h.stop = func() {}
	}
	synctest.Wait()
}

func decode(t *testing.T, texts ...string) []podspec.Manifest {
	t.Helper()
	out, err := podspec.DecodeManifests(strings.NewReader(strings.Join(texts, "\n---\n")), podspec.Options{GenerateUID: true})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// want hands manifests to the agent and waits until it has nothing to do.
func (h *fixture) want(texts ...string) {
	h.t.Helper()
	var manifests []podspec.Manifest
	if len(texts) > 0 {
		manifests = decode(h.t, texts...)
	}
	h.agent.Want(manifests, true)
	synctest.Wait()
}

// pass lets time pass on synctest's clock, which moves only while
// everything in it waits: no test is slower for it, and none depends on how fast
// the machine is.
func (h *fixture) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// pod gives the status of a pod; a pod that is not there fails the test.
func (h *fixture) pod(name string) agent.PodStatus {
	h.t.Helper()
	for _, p := range h.agent.Status().Pods {
		if p.Name == name {
			return p
		}
	}
	h.t.Fatalf("there is no pod %s in %+v", name, h.agent.Status())
	return agent.PodStatus{}
}

// statesText writes the states of a pod's containers in a line.
func statesText(p agent.PodStatus) string {
	words := []string{p.Phase}
	for _, c := range slices.Concat(p.InitContainerStatuses, p.ContainerStatuses) {
		word := c.Name + "#" + fmt.Sprint(c.RestartCount) + " "
		switch s := c.State; {
		case s.Running != nil:
			word += "running"
		case s.Terminated != nil:
			word += fmt.Sprintf("%s %d", s.Terminated.Reason, s.Terminated.ExitCode)
		default:
			word += s.Waiting.Reason
		}
		words = append(words, word)
	}
	return strings.Join(words, ", ")
}

func (h *fixture) expect(name, want string) {
	h.t.Helper()
	if got := statesText(h.pod(name)); got != want {
		h.t.Errorf("pod %s: got  %s\nwant %s", name, got, want)
	}
}

func (h *fixture) id(pod, container string) string {
	h.t.Helper()
	p := h.pod(pod)
	for _, c := range slices.Concat(p.InitContainerStatuses, p.ContainerStatuses) {
		if c.Name == container {
			return c.ContainerID
		}
	}
	h.t.Fatalf("pod %s has no container %s", pod, container)
	return ""
}

// opened lists the pods that are open in the runtime.
func (h *fixture) opened() []string {
	h.t.Helper()
	uids, err := h.runtime.Opened(h.t.Context())
	if err != nil {
		h.t.Fatal(err)
	}
	return uids
}

// empty checks that nothing is left of any pod.
func (h *fixture) empty() {
	h.t.Helper()
	statuses, err := h.runtime.List(h.t.Context(), "")
	if err != nil || len(statuses) > 0 || len(h.opened()) > 0 || len(h.agent.Status().Pods) > 0 {
		h.t.Errorf("left: containers %v, %v; open pods %v; status %+v", statuses, err, h.opened(), h.agent.Status())
	}
	if uids, _ := h.pins.Holders(); len(uids) > 0 {
		h.t.Errorf("left: pins of %v", uids)
	}
	h.node.mu.Lock()
	defer h.node.mu.Unlock()
	if len(h.node.pods) > 0 || len(h.node.bound) > 0 {
		h.t.Errorf("left in berthd: %v, %v", h.node.pods, h.node.bound)
	}
}

func deferred(reason string, after time.Duration) *admissionv1.AdmitResponse {
	return &admissionv1.AdmitResponse{
		Verdict: admissionv1.Verdict_VERDICT_DEFERRED, Reason: reason, Message: "not now",
		RetryAfter: durationpb.New(after), Condition: &admissionv1.Condition{Reason: reason},
	}
}

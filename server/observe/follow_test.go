package observe_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	inspectv1 "github.com/berthd/berth/api/berth/inspect/v1"
	topologyv1 "github.com/berthd/berth/api/berth/topology/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/api/podspec"
	"github.com/berthd/berth/hack/testing/nodetest"
	"github.com/berthd/berth/managers/errdefs"
	kubelets "github.com/berthd/berth/server/internal/kubeletnode/nodetest"
	"github.com/berthd/berth/server/observe"
)

// observed is a berthd that observes a node's directory.
type observed struct {
	t       *testing.T
	root    string
	conn    *grpc.ClientConn
	log     *lockedBuffer
	changed func()
	reload  chan os.Signal
	// told is what the kubelet tells of its configuration; nil: its files are read. Guarded by mu.
	told func() ([]byte, error)
	// pods answers the follower; guarded by mu.
	mu   sync.Mutex
	pods func() ([]podspec.NodePod, error)
}

type lockedBuffer struct {
	mu sync.Mutex
	bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.String()
}

// serveNode starts a berthd that observes the node below a root, whose pods are those of the file there.
func serveNode(t *testing.T, root string) *observed {
	t.Helper()
	o := &observed{t: t, root: root, log: &lockedBuffer{}, reload: make(chan os.Signal, 1)}
	o.pods = o.ofFile
	c := config.Default()
	c.Observe.Root, c.Listen = root, filepath.Join(t.TempDir(), "berth.sock")
	c.Observed()
	ctx, end := context.WithCancel(context.Background())
	ready, watched, ended := make(chan struct{}), make(chan func(), 1), make(chan error, 1)
	go func() {
		ended <- observe.Serve(ctx, observe.ServeOptions{
			Config: c, Log: slog.New(slog.NewTextHandler(o.log, nil)), Now: time.Now, Reloads: o.reload,
			Ready: func() { close(ready) },
			Sources: observe.Sources{
				Pods: func(context.Context, string) ([]podspec.NodePod, error) {
					o.mu.Lock()
					defer o.mu.Unlock()
					return o.pods()
				},
				Told: func(context.Context) ([]byte, error) {
					o.mu.Lock()
					defer o.mu.Unlock()
					if o.told == nil {
						return nil, errdefs.Unavailablef("no web server")
					}
					return o.told()
				},
				Watch: func(ctx context.Context, _ string, changed func()) {
					select {
					case watched <- changed:
					default:
					}
					<-ctx.Done()
				},
			},
		})
	}()
	t.Cleanup(func() {
		end()
		if err := <-ended; err != nil {
			t.Errorf("it ends with %v", err)
		}
		if t.Failed() {
			t.Logf("log:\n%s", o.log)
		}
	})
	select {
	case <-ready:
	case err := <-ended:
		ended <- nil
		t.Fatal(err)
	}
	o.changed = <-watched
	var err error
	if o.conn, err = grpc.NewClient("unix://"+c.Listen, grpc.WithTransportCredentials(insecure.NewCredentials())); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = o.conn.Close() })
	return o
}

// ofFile reads the pods of the file in the node's directory.
func (o *observed) ofFile() ([]podspec.NodePod, error) {
	return recorded(filepath.Join(o.root, kubelets.PodsFile))
}

// setPods changes the pods, and the CPU manager's state file if it is not empty.
func (o *observed) setPods(pods []podspec.NodePod, state string) {
	o.t.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	o.pods = func() ([]podspec.NodePod, error) { return pods, nil }
	if state != "" {
		writeAll(o.t, o.root, map[string]string{"var/lib/kubelet/cpu_manager_state": state})
	}
	o.changed()
}

// smallNode makes a node with two NUMA nodes of eight CPUs, and a pod u-a with three of them.
func smallNode(t *testing.T) (root string) {
	t.Helper()
	root = t.TempDir()
	files := machineFiles(2, 8)
	files["var/lib/kubelet/config.yaml"] = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n" +
		"cpuManagerPolicy: static\nreservedSystemCPUs: \"0\"\ntopologyManagerPolicy: single-numa-node\n"
	files["var/lib/kubelet/cpu_manager_state"] =
		`{"policyName":"static","defaultCpuSet":"0,4-15","entries":{"u-a":{"app":"1-3"}},"checksum":0}`
	files[kubelets.PodsFile] = podList(t, "u-a 2026-01-02T03:04:05Z Running - 3")
	writeAll(t, root, files)
	return root
}

// podList makes a list of pods with one container: uid, start, phase, reason (or a hyphen), and CPUs.
func podList(t *testing.T, pods ...string) string {
	t.Helper()
	var items []string
	for _, text := range pods {
		f := strings.Fields(text)
		reason := strings.Trim(f[3], "-")
		items = append(items, fmt.Sprintf(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": %q, "namespace": "shop", "uid": %q},
			"spec": {"containers": [{"name": "app", "resources": {"limits": {"cpu": %q, "memory": "64Mi"}}}]},
			"status": {"startTime": %q, "phase": %q, "reason": %q}}`, f[0], f[0], f[4], f[1], f[2], reason))
	}
	return `{"apiVersion": "v1", "kind": "List", "items": [` + strings.Join(items, ",") + "]}"
}

func nodePods(t *testing.T, pods ...string) []podspec.NodePod {
	t.Helper()
	return decodePods(t, podList(t, pods...))
}

func decodePods(t *testing.T, text string) []podspec.NodePod {
	t.Helper()
	out, err := podspec.DecodeNode(strings.NewReader(text), podspec.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// answers is what podresources says of each pod.
func answers(t *testing.T, conn grpc.ClientConnInterface) (out []string) {
	t.Helper()
	got, err := podresourcesv1.NewPodResourcesListerClient(conn).List(t.Context(), &podresourcesv1.ListPodResourcesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range got.GetPodResources() {
		out = append(out, textOf(t, p))
	}
	slices.Sort(out)
	return out
}

// TestFollowsRecordings: a berthd that observes a node has, after each recorded moment, what a reading of that moment has.
func TestFollowsRecordings(t *testing.T) {
	t.Parallel()
	byKubelet := map[string][]kubelets.Recording{}
	for _, r := range kubelets.Recordings(t) {
		byKubelet[filepath.Dir(r.Name)] = append(byKubelet[filepath.Dir(r.Name)], r)
	}
	for name, list := range byKubelet {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := list[0].Write(t)
			o := serveNode(t, root)
			for i, r := range list {
				if i > 0 {
					o.mu.Lock() // between two readings
					r.Rewrite(t, root)
					o.mu.Unlock()
					o.changed()
				}
				n, err := observe.Open(t.Context(), observe.Options{Root: root, Pods: podsOf(t, filepath.Join(root, kubelets.PodsFile))})
				if err != nil {
					t.Fatal(err)
				}
				want := answers(t, n)
				nodetest.Eventually(t, 30*time.Second, r.Name+" is seen", func() bool { return slices.Equal(answers(t, o.conn), want) })
			}
		})
	}
}

// TestServesOnlyReads: what would change something is refused with the reason, and a dry run is not.
func TestServesOnlyReads(t *testing.T) {
	t.Parallel()
	o := serveNode(t, smallNode(t))
	pod := &typesv1.Pod{
		Metadata: &typesv1.PodMetadata{Name: "new", Namespace: "shop", Uid: "u-new"},
		Spec: &typesv1.PodSpec{Containers: []*typesv1.Container{{Name: "app", Resources: &typesv1.ResourceRequirements{
			Limits: map[string]string{"cpu": "2", "memory": "1Gi"},
		}}}},
	}
	admission := admissionv1.NewAdmissionServiceClient(o.conn)
	of := &admissionv1.AdmitRequest_Pod{Pod: pod}
	if v, err := admission.Admit(t.Context(), &admissionv1.AdmitRequest{Subject: of, DryRun: true}); err != nil ||
		v.GetVerdict() != admissionv1.Verdict_VERDICT_ADMITTED {
		t.Errorf("a dry run: %v, %v", v, err)
	}
	refused := map[string]func() error{
		"Admit": func() error {
			_, err := admission.Admit(t.Context(), &admissionv1.AdmitRequest{Subject: of})
			return err
		},
		"Remove": func() error {
			_, err := admission.RemovePod(t.Context(), &admissionv1.RemovePodRequest{PodUid: "u-a"})
			return err
		},
		"SetPolicy": func() error {
			_, err := topologyv1.NewTopologyServiceClient(o.conn).SetPolicy(t.Context(), &topologyv1.SetPolicyRequest{})
			return err
		},
		"Defragment": func() error {
			stream, err := admission.Defragment(t.Context(), &admissionv1.DefragmentRequest{Pod: pod})
			if err == nil {
				_, err = stream.Recv()
			}
			return err
		},
	}
	for name, call := range refused {
		if err := call(); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "berth only reads it") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestFollows: pods come, change and go; who watches sees each change once, and nothing if nothing has changed.
func TestFollows(t *testing.T) {
	t.Parallel()
	root := smallNode(t)
	o := serveNode(t, root)
	stream, err := allocationv1.NewAllocationServiceClient(o.conn).Watch(t.Context(), &allocationv1.WatchRequest{})
	if err != nil {
		t.Fatal(err)
	}
	next := func(want string) {
		t.Helper()
		for {
			e, err := stream.Recv()
			if err != nil {
				t.Fatal(err)
			}
			text := compact(t, e)
			if strings.Contains(text, want) {
				return
			}
			if strings.Contains(text, `"pod"`) && !strings.Contains(text, "u-a") {
				t.Fatalf("want %s, got %s", want, text)
			}
		}
	}
	next("u-a")
	revision := func() uint64 {
		list, err := allocationv1.NewAllocationServiceClient(o.conn).List(t.Context(), &allocationv1.ListRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return list.GetRevision()
	}
	before := revision()
	o.setPods(nodePods(t, "u-a 2026-01-02T03:04:05Z Running - 3", "u-b 2026-01-02T03:04:06Z Running - 1"),
		`{"policyName":"static","defaultCpuSet":"0,4-7,9-15","entries":{"u-a":{"app":"1-3"},"u-b":{"app":"8"}},"checksum":0}`)
	next("u-b")
	if now := revision(); now != before+1 {
		t.Errorf("revision %d after %d", now, before)
	}
	// The third pod needs eight CPUs of one node: with the others it does not fit.
	o.setPods(nodePods(t, "u-a 2026-01-02T03:04:05Z Running - 3", "u-b 2026-01-02T03:04:06Z Running - 1",
		"u-c 2026-01-02T03:04:07Z Failed TopologyAffinityError 8"), "")
	trace := func(uid string) *typesv1.Trace {
		answer, err := inspectv1.NewInspectServiceClient(o.conn).GetTrace(t.Context(), &inspectv1.GetTraceRequest{
			Subject: &inspectv1.GetTraceRequest_PodUid{PodUid: uid},
		})
		if err != nil {
			return nil
		}
		return answer.GetTrace()
	}
	nodetest.Eventually(t, 30*time.Second, "the rejection is explained", func() bool { return trace("u-c") != nil })
	text := compact(t, trace("u-c"))
	if !strings.Contains(text, "on the state that berthd had read at ") {
		t.Errorf("the explanation: %s", text)
	}
	// Several pods at once: one is rejected because of two that no reading has seen before.
	o.setPods(nodePods(t, "u-d 2026-01-02T03:05:05Z Running - 7", "u-g 2026-01-02T03:05:05Z Running - 1",
		"u-e 2026-01-02T03:05:06Z Failed TopologyAffinityError 7", "u-f 2026-01-02T03:05:07Z Running - 1"),
		`{"policyName":"static","defaultCpuSet":"0,2-7","checksum":0,
			"entries":{"u-d":{"app":"8-14"},"u-f":{"app":"15"},"u-g":{"app":"1"}}}`)
	nodetest.Eventually(t, 30*time.Second, "the other rejection is explained", func() bool { return trace("u-e") != nil })
	if text := compact(t, trace("u-e")); !strings.Contains(text, "reconstructed from the ") {
		t.Errorf("the explanation: %s", text)
	}
	if got := strings.Join(answers(t, o.conn), " "); strings.Contains(got, "u-a") || !strings.Contains(got, "u-f") {
		t.Errorf("pods: %s", got)
	}
	// A kubelet that does not answer, or restarts: the pods stay with their names, and berthd says why.
	for text, err := range map[string]error{
		"no kubelet": status.Error(codes.Unavailable, "no kubelet"), "no socket": errdefs.Unsupportedf("there is no socket"),
	} {
		o.mu.Lock()
		o.pods = func() ([]podspec.NodePod, error) { return nil, err }
		o.mu.Unlock()
		o.changed()
		nodetest.Eventually(t, 30*time.Second, "it is logged: "+text, func() bool { return strings.Contains(o.log.String(), text) })
		if got := strings.Join(answers(t, o.conn), " "); !strings.Contains(got, `"name":"u-f"`) ||
			!strings.Contains(got, `"namespace":"shop"`) {
			t.Errorf("pods: %s", got)
		}
	}
}

// TestWaitsForTheKubelet: a kubelet that does not answer yet is waited for, and berthd ends in order meanwhile.
func TestWaitsForTheKubelet(t *testing.T) {
	t.Parallel()
	c := config.Default()
	c.Observe.Root, c.Listen = smallNode(t), filepath.Join(t.TempDir(), "berth.sock")
	c.Observed()
	ctx, end := context.WithCancel(t.Context())
	tried := make(chan struct{}, 8)
	ended := make(chan error, 1)
	go func() {
		ended <- observe.Serve(ctx, observe.ServeOptions{
			Config: c, Log: slog.New(slog.DiscardHandler), Now: time.Now,
			Sources: observe.Sources{Pods: func(context.Context, string) ([]podspec.NodePod, error) {
				tried <- struct{}{}
				return nil, errdefs.Preconditionf("it initializes")
			}},
		})
	}()
	<-tried
	<-tried
	end()
	if err := <-ended; err != nil {
		t.Errorf("it ends with %v", err)
	}
}

// TestKubeletComesBack: a kubelet that was away may have another configuration, so that is read at once, too.
func TestKubeletComesBack(t *testing.T) {
	t.Parallel()
	root := smallNode(t)
	o := serveNode(t, root)
	o.mu.Lock()
	o.pods = func() ([]podspec.NodePod, error) { return nil, status.Error(codes.Unavailable, "no kubelet") }
	o.mu.Unlock()
	o.changed()
	o.logs("no kubelet")
	file := filepath.Join(root, "var/lib/kubelet/config.yaml")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	writeAll(t, root, map[string]string{"var/lib/kubelet/config.yaml": strings.Replace(string(text), "single-numa-node", "restricted", 1)})
	o.mu.Lock()
	o.pods = o.ofFile
	o.mu.Unlock()
	o.changed()
	nodetest.Eventually(t, 30*time.Second, "the other policy", func() bool {
		answer, err := topologyv1.NewTopologyServiceClient(o.conn).GetPolicy(t.Context(), &topologyv1.GetPolicyRequest{})
		return err == nil && strings.Contains(compact(t, answer), "restricted")
	})
}

// TestFollowsAnotherMachine: when the kubelet's configuration changes, berthd answers with the new one.
func TestFollowsAnotherMachine(t *testing.T) {
	t.Parallel()
	root := smallNode(t)
	o := serveNode(t, root)
	policy := func() string {
		answer, err := topologyv1.NewTopologyServiceClient(o.conn).GetPolicy(t.Context(), &topologyv1.GetPolicyRequest{})
		if err != nil {
			return ""
		}
		return compact(t, answer)
	}
	if got := policy(); !strings.Contains(got, "single-numa-node") {
		t.Fatal(got)
	}
	file := filepath.Join(root, "var/lib/kubelet/config.yaml")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, bytes.Replace(text, []byte("single-numa-node"), []byte("restricted"), 1), 0o600); err != nil {
		t.Fatal(err)
	}
	o.reload <- os.Interrupt
	nodetest.Eventually(t, 30*time.Second, "the other policy", func() bool { return strings.Contains(policy(), "restricted") })
	// What the kubelet runs with comes before its files, also while it does not answer.
	tells := func(text string, err error) {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.told = func() ([]byte, error) { return []byte(text), err }
	}
	tells(`{"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration", "cpuManagerPolicy": "static",
		"reservedSystemCPUs": "0", "topologyManagerPolicy": "best-effort"}`, nil)
	o.reload <- os.Interrupt
	nodetest.Eventually(t, 30*time.Second, "the policy that the kubelet tells", func() bool {
		return strings.Contains(policy(), "best-effort")
	})
	tells("", errdefs.Unavailablef("it restarts"))
	o.reload <- os.Interrupt
	nodetest.Eventually(t, 30*time.Second, "it is logged", func() bool { return strings.Contains(o.log.String(), "it restarts") })
	if got := policy(); !strings.Contains(got, "best-effort") {
		t.Errorf("while the kubelet does not answer: %s", got)
	}
	// It is asked again with the next change, because it may tell something else.
	tells(`{"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration", "cpuManagerPolicy": "static",
		"reservedSystemCPUs": "0", "topologyManagerPolicy": "none"}`, nil)
	writeAll(t, root, map[string]string{"var/lib/kubelet/cpu_manager_state": `{"policyName":"none","defaultCpuSet":"","checksum":0}`})
	nodetest.Eventually(t, 30*time.Second, "what the kubelet tells then", func() bool { return strings.Contains(policy(), `"none"`) })
}

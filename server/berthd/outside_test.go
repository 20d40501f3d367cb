package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	hintv1 "github.com/berthd/berth/api/berth/hint/v1"
	inspectv1 "github.com/berthd/berth/api/berth/inspect/v1"
	lifecyclev1 "github.com/berthd/berth/api/berth/lifecycle/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/hack/testing/nodetest"
)

// card is the resource of the network card provider.
const card = "example.com/nic"

// programs are the example provider.
var programs = nodetest.NewPrograms(map[string]string{"nic": "clients/hintprovider/nic"})

// requiredNIC has the configuration require the provider, which may set a variable.
const requiredNIC = "providers: {external: {required: [nic], allow: [{provider: nic, edits: [env]}]}}\n"

// externalNode is a node of two NUMA nodes with two cards on the first and one on
// the second, for a provider in a process of its own.
func externalNode(t *testing.T) *node {
	t.Helper()
	n := newNode(t, "--machine", "1s2n4c1t", "--topology-manager-policy", "single-numa-node", "--cgroup-tree", "memory")
	n.kernel = false
	n.configure(requiredNIC)
	for name, at := range map[string]string{"eth0": "0", "eth1": "0", "eth2": "1"} {
		dir := filepath.Join(n.root, "sys/class/net", name, "device")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(dir+"/numa_node", []byte(at+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return n
}

// nic is a running provider process.
type nic struct {
	*node
	cmd    *exec.Cmd
	out    *syncBuffer
	log    *syncBuffer
	killed func()
}

// nic runs the provider. It registers with an endpoint itself unless that is
// "none".
func (n *node) nic(endpoint string) *nic {
	n.t.Helper()
	built, err := programs.Dir()
	if errors.Is(err, exec.ErrNotFound) {
		n.t.Skipf("the provider is built for the test: %v", err)
	}
	if err != nil {
		n.t.Fatal(err)
	}
	p := &nic{node: n, out: new(syncBuffer), log: new(syncBuffer)}
	p.cmd = exec.Command(filepath.Join(built, "nic"), "--sysfs", n.root+"/sys", "--socket", n.root+"/nic.sock", "--berth", endpoint,
		"--deadline", "20s")
	p.cmd.Stdout, p.cmd.Stderr = p.out, p.log
	if err := p.cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
	p.killed = sync.OnceFunc(func() {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
	})
	n.t.Cleanup(func() {
		p.killed()
		if n.t.Failed() {
			n.t.Logf("usage and log of nic %d:\n%s%s", p.cmd.Process.Pid, p.out, p.log)
		}
	})
	n.eventually("the provider listens", func() bool {
		c, err := net.Dial("unix", n.root+"/nic.sock")
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	})
	return p
}

// nicUsage are what the provider itself counts.
type nicUsage struct {
	Held     map[string]string            `json:"held"`
	Reserved map[string]map[string]string `json:"reserved"`
}

// expectUsage waits until the provider knows of exactly these cards, by owner, and
// has nothing reserved.
func (p *nic) expectUsage(held map[string]string) {
	p.t.Helper()
	p.eventually(fmt.Sprintf("the provider holds %v and has nothing reserved", held), func() bool {
		lines := strings.Split(strings.TrimSpace(p.out.String()), "\n")
		var b nicUsage
		if err := json.Unmarshal([]byte(lines[len(lines)-1]), &b); err != nil {
			return false
		}
		return len(b.Reserved) == 0 && (len(held) == 0 && len(b.Held) == 0 || reflect.DeepEqual(b.Held, held))
	})
}

// externalProvider returns the daemon's status of the provider.
func (d *daemon) externalProvider() *hintv1.Provider {
	d.t.Helper()
	resp, err := hintv1.NewHintBusServiceClient(d.conn).ListProviders(d.ctx(), &hintv1.ListProvidersRequest{})
	if err != nil {
		d.t.Fatal(err)
	}
	for _, p := range resp.GetProviders() {
		if p.GetName() == "nic" {
			return p
		}
	}
	return nil
}

func (d *daemon) expectExternalProvider(s hintv1.State) {
	d.t.Helper()
	d.eventually("the provider is "+s.String(), func() bool { return d.externalProvider().GetState() == s })
}

// expectNoLease waits until the ledger has no lease.
func (d *daemon) expectNoLease() {
	d.t.Helper()
	d.eventually("no lease is left", func() bool {
		resp, err := d.inspect.Dump(d.ctx(), &inspectv1.DumpRequest{})
		if err != nil {
			return false
		}
		for _, e := range resp.GetEntries() {
			if e.GetBucket() == "leases" {
				return false
			}
		}
		return true
	})
}

// networked is a pod with a CPU of its own and cards.
func networked(uid string, cards int) *typesv1.Pod {
	p := guaranteed(uid, 1, 0)
	p.Spec.Containers[0].Resources.Limits[card] = fmt.Sprint(cards)
	return p
}

// cardsOf returns the cards that a pod's container holds, and the node that card
// and CPUs share.
func (d *daemon) cardsOf(uid string) (cards []string, at string) {
	d.t.Helper()
	c := d.pods()[uid].GetContainers()[0]
	for _, claim := range c.GetClaims() {
		if claim.GetProvider() == "nic" {
			for _, dev := range claim.GetDevice().GetDevices() {
				cards = append(cards, dev.GetId())
			}
			if !reflect.DeepEqual(claim.GetAffinity().GetNumaNodes().GetIds(), c.GetAffinity().GetNumaNodes().GetIds()) {
				d.t.Errorf("pod %s: the cards follow %v, the CPUs %v", uid, claim.GetAffinity(), c.GetAffinity())
			}
		}
	}
	return cards, fmt.Sprint(c.GetAffinity().GetNumaNodes().GetIds())
}

// explained spells what a refused pod lacked and which other pods are in its way.
func explained(trace *typesv1.Trace) string {
	var parts []string
	for _, step := range trace.GetSteps() {
		for _, s := range step.GetShortages() {
			var holders []string
			for _, h := range s.GetHolders() {
				holders = append(holders, convert.OwnerOf(h).String())
			}
			parts = append(parts, fmt.Sprintf("%s on %s: %d needed, %d free, %d held by %v", s.GetResource(),
				convert.Nodes(s.GetNumaNodes()), s.GetNeed(), s.GetFree(), s.GetHeld(), holders))
		}
	}
	for _, s := range trace.GetSuggestions() {
		if s.GetKind() == typesv1.SuggestionKind_SUGGESTION_KIND_REMOVAL {
			parts = append(parts, s.GetText())
		}
	}
	return strings.Join(parts, "; ")
}

// A provider in a process of its own takes part in admissions over the socket.
func TestExternalProvider(t *testing.T) {
	t.Parallel()
	n := externalNode(t)
	d := n.start()
	p := n.nic(n.root + "/berth.sock")
	d.expectExternalProvider(hintv1.State_STATE_CONNECTED)

	d.admitted(networked("pair", 2))
	if cards, at := d.cardsOf("pair"); fmt.Sprint(cards) != "[eth0 eth1]" || at != "[0]" {
		t.Errorf("cards %v on nodes %s; only node 0 has two", cards, at)
	}
	d.admitted(networked("single", 1))
	if cards, at := d.cardsOf("single"); fmt.Sprint(cards) != "[eth2]" || at != "[1]" {
		t.Errorf("the last card is %v on nodes %s", cards, at)
	}
	if resp := d.admit(networked("toomuch", 1)); resp.GetReason() != "TopologyAffinityError" {
		t.Errorf("no card is left: %s %s: %s", resp.GetVerdict(), resp.GetReason(), resp.GetMessage())
	} else if text := explained(resp.GetTrace()); text != "example.com/nic on 0-1: 1 needed, 0 free, 3 held by [pair/main single/main]" {
		t.Errorf("no card is left, because %s", text)
	}
	p.expectUsage(map[string]string{"eth0": "pair/main", "eth1": "pair/main", "eth2": "single/main"})
	d.expectNoLease()
	d.check()

	alloc, err := d.allocation.Allocate(d.ctx(),
		&allocationv1.AllocateRequest{Subject: &allocationv1.AllocateRequest_PodUid{PodUid: "pair"}, ContainerName: "main"})
	if err != nil {
		t.Fatal(err)
	}
	var env []string
	for name, value := range alloc.GetEdits().GetEnvs() {
		env = append(env, name+"="+value)
	}
	if fmt.Sprint(env) != "[EXAMPLE_COM_NIC=eth0,eth1]" {
		t.Errorf("the container is told %q", env)
	}
	if _, err := d.lifecycle.PreStartContainer(d.ctx(), &lifecyclev1.PreStartContainerRequest{
		PodUid: "pair", ContainerName: "main", ContainerId: "id",
	}); err != nil {
		t.Errorf("start a container with cards: %v", err)
	}

	// The next daemon knows the provider, and the provider registers again.
	d.kill()
	d = n.start()
	d.expectExternalProvider(hintv1.State_STATE_CONNECTED)
	d.remove("pair")
	d.admitted(networked("next", 1))
	p.expectUsage(map[string]string{"eth0": "next/main", "eth2": "single/main"})
	d.remove("next")
	d.remove("single")
	p.expectUsage(nil)
	d.expectNoLease()
	d.check()
	d.stop()
}

// relay is between the daemon and the provider and reports the moments of an
// admission apart.
type relay struct {
	hintv1.UnimplementedHintProviderServiceServer
	t      *testing.T
	server *grpc.Server
	conn   *grpc.ClientConn
	to     hintv1.HintProviderServiceClient

	mu   sync.Mutex
	trap func(moment string) error
}

// relay listens at relay.sock and passes calls on to nic.sock.
func (n *node) relay() *relay {
	n.t.Helper()
	path := n.root + "/relay.sock"
	_ = os.Remove(path)
	l, err := net.Listen("unix", path)
	if err != nil {
		n.t.Fatal(err)
	}
	conn, err := grpc.NewClient("unix://"+n.root+"/nic.sock", grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		n.t.Fatal(err)
	}
	r := &relay{t: n.t, server: grpc.NewServer(), conn: conn, to: hintv1.NewHintProviderServiceClient(conn)}
	hintv1.RegisterHintProviderServiceServer(r.server, r)
	go func() { _ = r.server.Serve(l) }()
	n.t.Cleanup(r.stop)
	return r
}

func (r *relay) stop() {
	r.server.Stop()
	_ = r.conn.Close()
}

// set makes the relay call a trap at each moment from now on. Where the trap returns
// an error, the call goes no further.
func (r *relay) set(trap func(moment string) error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.trap = trap
}

func (r *relay) at(moment string) error {
	r.mu.Lock()
	trap := r.trap
	r.mu.Unlock()
	if trap == nil {
		return nil
	}
	return trap(moment)
}

func pass[Q, A any](ctx context.Context, r *relay, name string, q Q, on func(context.Context, Q,
	...grpc.CallOption) (A, error)) (a A, err error) {
	if err := r.at("before " + name); err != nil {
		return a, err
	}
	if a, err = on(ctx, q); err != nil {
		return a, err
	}
	return a, r.at("after " + name)
}

func (r *relay) GetHints(ctx context.Context, q *hintv1.GetHintsRequest) (*hintv1.GetHintsResponse, error) {
	return pass(ctx, r, "GetHints", q, r.to.GetHints)
}

func (r *relay) Plan(ctx context.Context, q *hintv1.PlanRequest) (*hintv1.PlanResponse, error) {
	return pass(ctx, r, "Plan", q, r.to.Plan)
}

func (r *relay) Reserve(ctx context.Context, q *hintv1.ReserveRequest) (*hintv1.ReserveResponse, error) {
	return pass(ctx, r, "Reserve", q, r.to.Reserve)
}

func (r *relay) Commit(ctx context.Context, q *hintv1.CommitRequest) (*hintv1.CommitResponse, error) {
	return pass(ctx, r, "Commit", q, r.to.Commit)
}

func (r *relay) Abort(ctx context.Context, q *hintv1.AbortRequest) (*hintv1.AbortResponse, error) {
	return pass(ctx, r, "Abort", q, r.to.Abort)
}

// registerRelay registers the relay as the provider.
func (d *daemon) registerRelay() {
	d.t.Helper()
	_, err := hintv1.NewHintBusServiceClient(d.conn).Register(d.ctx(), &hintv1.RegisterRequest{
		Provider: "nic", Endpoint: d.root + "/relay.sock", Mode: hintv1.Mode_MODE_REQUIRED, Resources: []string{card},
		Deadline: durationpb.New(30 * time.Second), // no call is late on a busy machine
	})
	if err != nil {
		d.t.Fatal(err)
	}
}

var errDead = errors.New("dead")

// moments are those of an admission at which a process may die, and whether the pod
// is admitted all the same if that is the provider.
var moments = []struct {
	name     string
	admitted bool
}{
	{"before GetHints", false}, {"after GetHints", false},
	{"before Plan", false}, {"after Plan", false},
	{"before Reserve", false}, {"after Reserve", false},
	{"before Commit", true}, {"after Commit", true},
}

// The provider is killed at each moment of an admission. The pod is refused in its
// name, or stays admitted; nothing is lost and nothing is left, and the provider
// that comes back knows what is held.
func TestExternalProviderDies(t *testing.T) {
	t.Parallel()
	for _, moment := range moments {
		t.Run(moment.name, func(t *testing.T) {
			t.Parallel()
			n := externalNode(t)
			d := n.start()
			p, r := n.nic("none"), n.relay()
			d.registerRelay()
			d.admitted(networked("earlier", 1))
			d.expectNoLease()
			p.expectUsage(map[string]string{"eth0": "earlier/main"})

			dead := make(chan struct{})
			die := sync.OnceFunc(func() { p.killed(); close(dead) })
			r.set(func(at string) error {
				if at == moment.name {
					die()
				}
				select {
				case <-dead:
					return status.Error(codes.Unavailable, errDead.Error())
				default:
					return nil
				}
			})
			resp := d.admit(networked("victim", 1))
			<-dead
			r.stop() // what died was all that answered
			held := map[string]string{"eth0": "earlier/main"}
			if moment.admitted {
				held["eth1"] = "victim/main"
				if resp.GetVerdict() != admissionv1.Verdict_VERDICT_ADMITTED {
					t.Errorf("%s: %s", resp.GetVerdict(), resp.GetMessage())
				}
			} else if resp.GetVerdict() != admissionv1.Verdict_VERDICT_REJECTED || !strings.Contains(resp.GetMessage(), "provider nic") {
				t.Errorf("%s: %s", resp.GetVerdict(), resp.GetMessage())
			}
			if len(d.pods()) != len(held) {
				t.Errorf("pods %v", d.pods())
			}
			d.check()

			d.expectExternalProvider(hintv1.State_STATE_AWAY)
			if resp := d.admit(networked("unserved", 1)); resp.GetVerdict() == admissionv1.Verdict_VERDICT_ADMITTED ||
				!strings.Contains(resp.GetMessage(), "provider nic") {
				t.Errorf("while the provider is away: %s: %s", resp.GetVerdict(), resp.GetMessage())
			}
			d.admitted(guaranteed("unconcerned", 1, 0))

			p, _ = n.nic("none"), n.relay()
			d.expectExternalProvider(hintv1.State_STATE_CONNECTED)
			p.expectUsage(held)
			d.expectNoLease()
			d.admitted(networked("after", 1))
			for uid := range d.pods() {
				d.remove(uid)
			}
			p.expectUsage(nil)
			d.expectNoLease()
			d.check()
		})
	}
}

// The daemon is killed at each moment of an admission. The next one knows the pod
// whole or not at all, and the provider what the ledger knows; without a next one
// what is reserved ends with the lease.
func TestDaemonDiesUnderExternalProvider(t *testing.T) {
	t.Parallel()
	for _, moment := range moments {
		t.Run(moment.name, func(t *testing.T) {
			t.Parallel()
			n := externalNode(t)
			d := n.start()
			p, r := n.nic("none"), n.relay()
			d.registerRelay()
			d.admitted(networked("earlier", 1))
			d.expectNoLease()

			dead := make(chan struct{})
			die := sync.OnceFunc(func() { d.kill(); close(dead) })
			r.set(func(at string) error {
				if at == moment.name {
					die()
					return status.Error(codes.Unavailable, errDead.Error())
				}
				return nil
			})
			// The answer may or may not have got out before the end.
			_, _ = d.admission.Admit(d.ctx(),
				&admissionv1.AdmitRequest{Subject: &admissionv1.AdmitRequest_Pod{Pod: networked("victim", 1)}})
			<-dead
			r.set(nil)
			d = n.start()
			d.expectExternalProvider(hintv1.State_STATE_CONNECTED)
			held := map[string]string{"eth0": "earlier/main"}
			if d.pods()["victim"] != nil {
				held["eth1"] = "victim/main"
			}
			if moment.admitted != (len(held) == 2) {
				t.Errorf("killed %s, pods %v", moment.name, d.pods())
			}
			p.expectUsage(held)
			d.expectNoLease()
			d.check()
			d.admitted(networked("victim", 1)) // a repeated call is safe
			p.expectUsage(map[string]string{"eth0": "earlier/main", "eth1": "victim/main"})
			for uid := range d.pods() {
				d.remove(uid)
			}
			p.expectUsage(nil)
			d.expectNoLease()
			d.check()
		})
	}
}

// No berthd comes back after one that has reserved: the lease ends by itself.
func TestLeaseEndsWithoutDaemon(t *testing.T) {
	t.Parallel()
	n := externalNode(t)
	n.configure(strings.Replace(requiredNIC, "{required", "{lease: 200ms, required", 1))
	d := n.start()
	p, r := n.nic("none"), n.relay()
	d.registerRelay()
	r.set(func(at string) error {
		if at == "after Reserve" {
			d.kill()
			return status.Error(codes.Unavailable, errDead.Error())
		}
		return nil
	})
	if resp, err := d.admission.Admit(d.ctx(),
		&admissionv1.AdmitRequest{Subject: &admissionv1.AdmitRequest_Pod{Pod: networked("victim", 1)}}); err == nil {
		t.Fatalf("answered %v", resp)
	}
	n.eventually("the provider has reserved", func() bool { return strings.Contains(p.out.String(), `"event":"reserved"`) })
	p.expectUsage(nil)
}

// A provider that the configuration requires and that has never registered is
// missed by name; where the configuration has deferrals the pod is deferred.
func TestRequiredProviderIsAwaited(t *testing.T) {
	t.Parallel()
	n := externalNode(t)
	n.configure("verdicts: {deferred: true}\n" + requiredNIC)
	d := n.start()
	resp := d.admit(networked("pod", 1))
	if c := resp.GetCondition(); resp.GetVerdict() != admissionv1.Verdict_VERDICT_DEFERRED || c.GetReason() != "ProviderAway" ||
		c.GetMetadata()["provider"] != "nic" || !strings.Contains(resp.GetMessage(), "it has not registered") {
		t.Errorf("%s, waits for %v: %s", resp.GetVerdict(), c, resp.GetMessage())
	}
	n.nic(n.root + "/berth.sock")
	d.expectExternalProvider(hintv1.State_STATE_CONNECTED)
	d.admitted(networked("pod", 1))
	d.check()
}

//go:build linux

package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	hintv1 "github.com/berthd/berth/api/berth/hint/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/hack/testing/script"
)

// neighbourhood is a daemon with little memory and few descriptors, and users with roles.
type neighbourhood struct {
	*daemon
	base int // the first of the users' ids
}

// The users, by what is added to base.
const (
	roleNone = iota
	roleReader
	roleAgent
	roleProvider
)

// open returns the descriptors that the daemon has open.
func (n *neighbourhood) open() int {
	n.t.Helper()
	list, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", n.Cmd.Process.Pid))
	if err != nil {
		n.t.Fatal(err)
	}
	return len(list)
}

// connects opens so many connections as a user, which stay open until the test ends or over is called.
func (n *neighbourhood) connects(user, count int, socket string) (over func()) {
	n.t.Helper()
	var all []net.Conn
	for range count {
		if c, err := dialAs(user, socket); err == nil {
			all = append(all, c)
		}
	}
	return func() {
		for _, c := range all {
			_ = c.Close()
		}
	}
}

// greedy claims as many bytes as it can for each container.
type greedy struct {
	hintv1.UnimplementedHintProviderServiceServer
}

func (greedy) GetHints(context.Context, *hintv1.GetHintsRequest) (*hintv1.GetHintsResponse, error) {
	return &hintv1.GetHintsResponse{}, nil
}

func (greedy) Plan(_ context.Context, req *hintv1.PlanRequest) (*hintv1.PlanResponse, error) {
	q, claims := req.GetRequest(), []*typesv1.Claim{}
	for i := range 60 {
		claims = append(claims, &typesv1.Claim{
			Provider: q.GetProvider(), PodUid: q.GetPod().GetMetadata().GetUid(), ContainerName: q.GetContainerName(), Resource: slots,
			Payload: &typesv1.Claim_Opaque{Opaque: []byte(strings.Repeat(string(rune('a'+i%26)), 4<<10))},
		})
	}
	return &hintv1.PlanResponse{Outcome: &hintv1.PlanResponse_Plan{Plan: &hintv1.Plan{Claims: claims}}}, nil
}

func (greedy) Reserve(_ context.Context, req *hintv1.ReserveRequest) (*hintv1.ReserveResponse, error) {
	out := &hintv1.Reservation{}
	for range req.GetClaims() {
		out.Grants = append(out.Grants, &hintv1.Grant{})
	}
	return &hintv1.ReserveResponse{Outcome: &hintv1.ReserveResponse_Reservation{Reservation: out}}, nil
}

func (greedy) Commit(context.Context, *hintv1.CommitRequest) (*hintv1.CommitResponse, error) {
	return &hintv1.CommitResponse{}, nil
}

func (greedy) Abort(context.Context, *hintv1.AbortRequest) (*hintv1.AbortResponse, error) {
	return &hintv1.AbortResponse{}, nil
}

// sums are what a neighbour may make berthd hold, by role: each takes as much as it gets, and returns how it lets go.
var sums = map[string]func(n *neighbourhood) (over func()){
	"nobody: connections": func(n *neighbourhood) func() { return n.connects(n.base+roleNone, 2000, n.socket()) },
	"reader: connections": func(n *neighbourhood) func() { return n.connects(n.base+roleReader, 2000, n.socket()) },
	"podresources: connections": func(n *neighbourhood) func() {
		return n.connects(0, 2000, n.root+"/pod-resources/kubelet.sock")
	},
	"podresources: large requests": func(n *neighbourhood) func() {
		conn, err := grpc.NewClient("unix://"+n.root+"/pod-resources/kubelet.sock",
			grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			n.t.Fatal(err)
		}
		for range 200 {
			_, _ = podresources.NewPodResourcesListerClient(conn).Get(n.ctx(),
				&podresources.GetPodResourcesRequest{PodName: strings.Repeat("x", 1<<20)})
		}
		return func() { _ = conn.Close() }
	},
	"reader: streams": func(n *neighbourhood) func() {
		ctx, cancel := context.WithCancel(context.Background())
		for range 20 {
			conn := n.as(n.base + roleReader)
			for range 20 {
				if stream, err := allocationv1.NewAllocationServiceClient(conn).Watch(ctx, &allocationv1.WatchRequest{}); err == nil {
					_, _ = stream.Recv()
				}
			}
			context.AfterFunc(ctx, func() { _ = conn.Close() })
		}
		return cancel
	},
	"agent: admissions and refusals": func(n *neighbourhood) func() {
		conn := n.as(n.base + roleAgent)
		a := admissionv1.NewAdmissionServiceClient(conn)
		for i := range 300 {
			large := guaranteed(fmt.Sprint("refused-", i), 10_000, 0)
			large.Metadata.Labels = map[string]string{"label": strings.Repeat("x", 32<<10)}
			_, _ = a.Admit(n.ctx(), &admissionv1.AdmitRequest{Subject: &admissionv1.AdmitRequest_Pod{Pod: large}})
			_, _ = a.Admit(n.ctx(), &admissionv1.AdmitRequest{Subject: &admissionv1.AdmitRequest_Pod{Pod: burstable("loop")}})
			_, _ = a.RemovePod(n.ctx(), &admissionv1.RemovePodRequest{PodUid: "loop"})
		}
		return func() { _ = conn.Close() }
	},
	"provider: registrations": func(n *neighbourhood) func() {
		dir, p := n.userDir(n.base+roleProvider), &party{t: n.t}
		conn := n.as(n.base + roleProvider)
		registered := 0
		for i := range 12 {
			socket := fmt.Sprintf("%s/%d.sock", dir, i)
			p.serve(socket, func(s *grpc.Server) { hintv1.RegisterHintProviderServiceServer(s, greedy{}) })
			if _, err := hintv1.NewHintBusServiceClient(conn).Register(n.ctx(), &hintv1.RegisterRequest{
				Provider: fmt.Sprint("greedy-", i), Endpoint: socket, Mode: hintv1.Mode_MODE_ADVISORY,
				Resources: []string{fmt.Sprint("example.com/greedy-", i)},
			}); err == nil {
				registered++
			}
		}
		if registered != 8 {
			n.t.Errorf("%d registrations of a user", registered)
		}
		return func() {
			for i := range 12 {
				_, _ = hintv1.NewHintBusServiceClient(conn).Unregister(n.ctx(),
					&hintv1.UnregisterRequest{Provider: fmt.Sprint("greedy-", i)})
			}
			_ = conn.Close()
		}
	},
	"provider: claims": func(n *neighbourhood) func() {
		dir, p := n.userDir(n.base+roleProvider), &party{t: n.t}
		p.serve(dir+"/p.sock", func(s *grpc.Server) { hintv1.RegisterHintProviderServiceServer(s, greedy{}) })
		conn := n.as(n.base + roleProvider)
		bus := hintv1.NewHintBusServiceClient(conn)
		if _, err := bus.Register(n.ctx(), &hintv1.RegisterRequest{Provider: "greedy", Endpoint: dir + "/p.sock",
			Mode: hintv1.Mode_MODE_ADVISORY, Resources: []string{slots}}); err != nil {
			n.t.Fatal(err)
		}
		for i := range 60 {
			n.admit(withDevice(fmt.Sprint("held-", i), slots))
		}
		return func() {
			for i := range 60 {
				n.remove(fmt.Sprint("held-", i))
			}
			_, _ = bus.Unregister(n.ctx(), &hintv1.UnregisterRequest{Provider: "greedy"})
			_ = conn.Close()
		}
	},
	"plugin: devices": func(n *neighbourhood) func() {
		p := script.New(script.Config{Dir: n.root + "/device-plugins", Resource: gpu})
		var list []script.Device
		for i := range 131_072 { // limits.pluginDevices
			list = append(list, script.Device{ID: fmt.Sprint("device-", i)})
		}
		p.SetDevices(list...)
		served := &party{t: n.t}
		served.serve(p.Socket(), func(s *grpc.Server) { pluginapi.RegisterDevicePluginServer(s, p) })
		if err := p.Register(n.ctx()); err != nil {
			n.t.Fatal(err)
		}
		n.expectResource(gpu, "connected", int64(len(list)), int64(len(list)))
		for i := range 20 {
			p.SetHealth(fmt.Sprint("device-", i), false)
		}
		return func() {}
	},
}

// userDir makes a directory of a user.
func (n *neighbourhood) userDir(uid int) string {
	n.t.Helper()
	dir := fmt.Sprint(n.root, "/user-", uid)
	if err := os.Mkdir(dir, 0o755); err != nil {
		n.t.Fatal(err)
	}
	if err := os.Chown(dir, uid, uid); err != nil {
		n.t.Fatal(err)
	}
	return dir
}

// TestSums: a berthd with 512 MiB and 1,024 descriptors has each kind of neighbour take as much as it gets. It goes on, root's pods are
// admitted meanwhile, the log and the ledger stay small, and the neighbour's descriptors are closed afterwards.
func TestSums(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skipf("needs root, which can act as other users: the effective user is %d", os.Geteuid())
	}
	const memory, descriptors, mostLog = 512 << 20, 1024, 256 << 10
	const mostDisk = 64 << 20 // 4 MiB of claims, as text, in the state and in the history; the file grows in steps of 16 MiB
	names := []string{}
	for name := range sums {
		names = append(names, name)
	}
	slices.Sort(names)
	for i, name := range names {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			node := newNode(t, "--cgroup-tree", "memory", "--machine", "1s1n4c1t")
			node.kernel = false
			if err := os.Chmod(node.root, 0o755); err != nil {
				t.Fatal(err)
			}
			base := 64200 + 10*i
			node.configure(fmt.Sprintf("access: [{uid: %d, roles: [read]}, {uid: %d, roles: [agent]}, {uid: %d, roles: [provider]}]\n"+
				"providers: {external: {lease: 5s}}\n", // a connection stays that long after a registration
				base+roleReader, base+roleAgent, base+roleProvider))
			node.limited(memory)
			n := &neighbourhood{node.start(), base}
			limit := unix.Rlimit{Cur: descriptors, Max: descriptors}
			if err := unix.Prlimit(n.Cmd.Process.Pid, unix.RLIMIT_NOFILE, &limit, nil); err != nil {
				t.Fatal(err)
			}
			n.admitted(burstable("before"))
			before := n.open()
			over := sums[name](n)
			// Root connects anew: a connection needs a descriptor.
			resp, err := admissionv1.NewAdmissionServiceClient(n.as(0)).Admit(n.ctx(),
				&admissionv1.AdmitRequest{Subject: &admissionv1.AdmitRequest_Pod{Pod: burstable("meanwhile")}})
			if err != nil || resp.GetVerdict() != admissionv1.Verdict_VERDICT_ADMITTED {
				t.Errorf("meanwhile: %v, %v", resp, err)
			}
			n.remove("before")
			info, err := os.Stat(n.root + "/state/ledger.db")
			if err != nil {
				t.Fatal(err)
			}
			if info.Size() > mostDisk {
				t.Errorf("the ledger's file has %d bytes", info.Size())
			}
			over()
			n.remove("meanwhile")
			n.admitted(burstable("after"))
			if size := len(n.log.String()); size > mostLog {
				t.Errorf("the log has %d bytes", size)
			}
			most := before
			if name == "plugin: devices" {
				most += 2 // the plugin goes on
			}
			n.eventually("the descriptors are closed", func() bool { return n.open() <= most+2 })
			n.check()
			n.stop()
		})
	}
}

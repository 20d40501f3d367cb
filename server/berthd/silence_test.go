//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	registrationapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	cpuv1 "github.com/berthd/berth/api/berth/cpu/v1"
	hintv1 "github.com/berthd/berth/api/berth/hint/v1"
	inspectv1 "github.com/berthd/berth/api/berth/inspect/v1"
	lifecyclev1 "github.com/berthd/berth/api/berth/lifecycle/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/clients/berth"
	"github.com/berthd/berth/clients/hintprovider/hintserver"
	"github.com/berthd/berth/hack/testing/cri"
	"github.com/berthd/berth/hack/testing/nodetest"
	"github.com/berthd/berth/hack/testing/script"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/hint/hinttest"
)

// party is another program that berthd waits for, and that is silent at one place.
type party struct {
	t      *testing.T
	method string // the last element of the method that is not answered
	again  func() // if not nil, makes berthd wait again after it has given up

	mu         sync.Mutex
	silent     bool
	now, ended int // calls that wait, and calls that berthd gave up
}

// beSilent makes the party silent from now on.
func (p *party) beSilent() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.silent = true
}

// waiting returns how many calls wait, and how many waited before.
func (p *party) waiting() (now, ended int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.now, p.ended
}

// wait waits until over is closed.
func (p *party) wait(over <-chan struct{}) { p.begin()(over) }

// begin counts a call that waits from now on, and returns its wait.
func (p *party) begin() func(over <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.now++
	return p.end
}

func (p *party) end(over <-chan struct{}) {
	<-over
	p.mu.Lock()
	defer p.mu.Unlock()
	p.now--
	p.ended++
}

// at waits if a method is the silent one.
func (p *party) at(ctx context.Context, method string) {
	p.mu.Lock()
	silent := p.silent && path.Base(method) == p.method
	p.mu.Unlock()
	if silent {
		p.wait(ctx.Done())
	}
}

// listen listens as the user who owns the directory of a socket.
func (p *party) listen(socket string) net.Listener {
	p.t.Helper()
	info, err := os.Stat(filepath.Dir(socket))
	if err != nil {
		p.t.Fatal(err)
	}
	l, err := actAs(int(info.Sys().(*syscall.Stat_t).Uid), func() (net.Listener, error) { return net.Listen("unix", socket) })
	if err != nil {
		p.t.Fatal(err)
	}
	return l
}

// serve serves services on a socket until the test ends.
func (p *party) serve(socket string, register func(*grpc.Server)) {
	p.t.Helper()
	l := p.listen(socket)
	s := grpc.NewServer(
		grpc.UnaryInterceptor(func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
			if p.at(ctx, info.FullMethod); ctx.Err() != nil {
				return nil, ctx.Err()
			}
			return handle(ctx, req)
		}),
		grpc.StreamInterceptor(func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
			if p.at(stream.Context(), info.FullMethod); stream.Context().Err() != nil {
				return stream.Context().Err()
			}
			return handle(srv, stream)
		}))
	register(s)
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(l) }()
	p.t.Cleanup(func() { s.Stop(); <-done })
}

// accept listens on a socket whose connections get no answer, until the test ends.
func (p *party) accept(socket string) {
	p.t.Helper()
	l := p.listen(socket)
	stop := make(chan struct{})
	var served sync.WaitGroup
	served.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			served.Go(func() {
				<-stop
				_ = c.Close()
			})
			served.Go(func() {
				over := make(chan struct{})
				go func() { defer close(over); _, _ = io.Copy(io.Discard, c) }()
				p.wait(over)
			})
		}
	})
	p.t.Cleanup(func() {
		close(stop)
		_ = l.Close()
		served.Wait()
	})
}

// gated is a connection that reads until it is shut.
type gated struct {
	net.Conn
	shut, closed chan struct{}
	close        sync.Once
}

func (g *gated) Read(b []byte) (int, error) {
	select {
	case <-g.shut:
		<-g.closed
		return 0, net.ErrClosed
	default:
		return g.Conn.Read(b)
	}
}

func (g *gated) Close() error {
	g.close.Do(func() { close(g.closed) })
	return g.Conn.Close()
}

// control calls a function with the descriptor of a connection that is open.
func control(c net.Conn, f func(fd int)) {
	if raw, err := c.(*net.UnixConn).SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { f(int(fd)) })
	}
}

// unread returns the bytes that wait for the reader.
func (g *gated) unread() (n int) {
	control(g.Conn, func(fd int) { n, _ = unix.IoctlGetInt(fd, unix.TIOCINQ) })
	return n
}

// waitWithout waits until berthd closes a connection that is not read, or the test ends.
func (p *party) waitWithout(c net.Conn) {
	p.t.Helper()
	fd, err := -1, error(nil)
	control(c, func(own int) { fd, err = unix.FcntlInt(uintptr(own), unix.F_DUPFD_CLOEXEC, 0) })
	if err != nil || fd < 0 {
		p.t.Fatalf("the connection cannot be watched: %v", err)
	}
	over, waited := make(chan struct{}), make(chan struct{})
	wait := p.begin()
	go func() { defer close(waited); wait(over) }()
	go func() {
		defer close(over)
		for err := error(unix.EINTR); errors.Is(err, unix.EINTR); {
			_, err = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}, -1)
		}
	}()
	p.t.Cleanup(func() {
		_ = unix.Shutdown(fd, unix.SHUT_RDWR)
		<-waited
		_ = unix.Close(fd)
	})
}

// window is the least that a stream may have unread.
const window = 64 << 10

// noReader makes a call on a connection that is not read any more, and waits until berthd can send nothing more.
// More makes berthd send; it is nil where the call's answer is enough.
func (p *party) noReader(d *daemon, socket string, call func(context.Context, *grpc.ClientConn), more func(i int)) {
	p.t.Helper()
	p.again = func() { p.noReader(d, socket, call, more) }
	g := &gated{shut: make(chan struct{}), closed: make(chan struct{})}
	conn, err := grpc.NewClient("passthrough:///"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithInitialWindowSize(window),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
			c, err := net.Dial("unix", socket)
			g.Conn = c
			return g, err
		}))
	if err != nil {
		p.t.Fatal(err)
	}
	conn.Connect()
	for s := conn.GetState(); s != connectivity.Ready; s = conn.GetState() {
		if !conn.WaitForStateChange(d.ctx(), s) {
			p.t.Fatal("no connection")
		}
	}
	close(g.shut)
	ctx, cancel := context.WithCancel(d.ctx())
	done := make(chan struct{})
	go func() { defer close(done); call(ctx, conn) }()
	p.waitWithout(g.Conn)
	p.t.Cleanup(func() {
		cancel()
		_ = conn.Close()
		<-done
	})
	// What was on its way when the connection was shut may have been read.
	calls := 0
	if err := nodetest.Await(d.ctx(), func() bool {
		if more != nil && g.unread() < window/3 {
			more(calls)
			calls++
		}
		return g.unread() >= window/3
	}); err != nil {
		p.t.Fatalf("%d bytes are unread: %v", g.unread(), err)
	}
}

// silentNode is a daemon and a party beside it.
type silentNode struct {
	*daemon
	*party
	cri *cri.Server
}

// dir is the directory of device plugins.
func (n *silentNode) dir() string { return filepath.Join(n.root, "device-plugins") }

// plugin registers a device plugin that the party serves.
func (n *silentNode) plugin(silentBefore bool) {
	n.daemon.t.Helper()
	p := script.New(script.Config{Dir: n.dir(), Resource: gpu, Preferred: true, PreStart: true,
		Devices: []script.Device{{ID: "g0"}, {ID: "g1"}, {ID: "g2"}}})
	n.serve(p.Socket(), func(s *grpc.Server) { pluginapi.RegisterDevicePluginServer(s, p) })
	if silentBefore {
		n.beSilent()
		n.inBackground(func(ctx context.Context) { _ = p.Register(ctx) })
		return
	}
	if err := p.Register(n.ctx()); err != nil {
		n.daemon.t.Fatal(err)
	}
	n.expectResource(gpu, "connected", 3, 3)
	n.beSilent()
}

// inBackground makes a call that is not answered, until the test ends.
func (n *silentNode) inBackground(call func(ctx context.Context)) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); call(ctx) }()
	n.daemon.t.Cleanup(func() { cancel(); <-done })
}

// admits admits a pod that the silent party delays.
func (n *silentNode) admits(uid, resource string) {
	n.inBackground(func(ctx context.Context) {
		for ctx.Err() == nil { // a call to a party that is not answered is given up, and made again
			_, _ = n.admission.Admit(ctx, &admissionv1.AdmitRequest{Subject: &admissionv1.AdmitRequest_Pod{Pod: withDevice(uid, resource)}})
		}
	})
}

// provider registers a provider of slots that the party serves.
func (n *silentNode) provider(name, socket string, resources ...string) error {
	_, err := hintv1.NewHintBusServiceClient(n.conn).Register(n.ctx(), &hintv1.RegisterRequest{
		Provider: name, Endpoint: socket, Mode: hintv1.Mode_MODE_ADVISORY, Resources: resources, Deadline: durationpb.New(30 * time.Second),
	})
	return err
}

// slots is the resource of the providers.
const slots = string(hinttest.SlotResource)

func (n *silentNode) slots(name, socket string) {
	n.serve(socket, func(s *grpc.Server) {
		// Without Prepare, whose answer is none for a container.
		hintserver.NewServer(struct{ hint.Provider }{&hinttest.Slots{At: map[string]int{"a": 0, "b": 0, "c": 0}, Called: name}},
			time.Now).Register(s)
	})
}

// neighbour is a user with the role provider.
const neighbour = 64102

// theirs is a socket in a directory of the other user's.
func (n *silentNode) theirs() string {
	n.daemon.t.Helper()
	if os.Geteuid() != 0 {
		n.daemon.t.Skipf("a provider of another user needs root: the effective user is %d", os.Geteuid())
	}
	dir := filepath.Join(n.root, "theirs")
	if err := errors.Join(os.Chmod(n.root, 0o755), os.MkdirAll(dir, 0o755), os.Chown(dir, neighbour, neighbour)); err != nil {
		n.daemon.t.Fatal(err)
	}
	return filepath.Join(dir, "silent.sock")
}

// registersAgainAndAgain has the other user register the silent provider. A user has one registration in progress at a time.
func (n *silentNode) registersAgainAndAgain() {
	bus := hintv1.NewHintBusServiceClient(n.as(neighbour))
	n.inBackground(func(ctx context.Context) {
		for ctx.Err() == nil {
			_, _ = bus.Register(ctx, &hintv1.RegisterRequest{
				Provider: "silent", Endpoint: n.theirs(), Mode: hintv1.Mode_MODE_ADVISORY, Resources: []string{slots},
			})
		}
	})
}

// newProvider registers a provider, which is silent from then on.
func (n *silentNode) newProvider() {
	n.slots("silent", n.root+"/silent.sock")
	if err := n.provider("silent", n.root+"/silent.sock", slots); err != nil {
		n.daemon.t.Fatal(err)
	}
	n.beSilent()
}

// silences are the places at which another program can be silent, by what berthd waits for. Each row makes berthd wait there.
var silences = map[string]struct {
	method  string
	runtime bool // it is one beside a container runtime
	make    func(n *silentNode)
}{
	"provider: registration, no answer to the connection": {make: func(n *silentNode) {
		n.accept(n.theirs())
		n.registersAgainAndAgain()
	}},
	"provider: registration, first list": {method: "Commit", make: func(n *silentNode) {
		n.slots("silent", n.theirs())
		n.beSilent()
		n.registersAgainAndAgain()
	}},
	"provider: hints":   {method: "GetHints", make: func(n *silentNode) { n.newProvider(); n.admits("slow", slots) }},
	"provider: plan":    {method: "Plan", make: func(n *silentNode) { n.newProvider(); n.admits("slow", slots) }},
	"provider: reserve": {method: "Reserve", make: func(n *silentNode) { n.newProvider(); n.admits("slow", slots) }},
	"provider: commit": {method: "Commit", make: func(n *silentNode) {
		n.newProvider()
		n.admitted(withDevice("slow", slots))
	}},
	"plugin: registration, no answer to the connection": {make: func(n *silentNode) {
		n.accept(n.dir() + "/silent.sock")
		p := script.New(script.Config{Dir: n.dir(), Resource: gpu, Endpoint: "silent.sock"})
		n.inBackground(func(ctx context.Context) {
			for ctx.Err() == nil {
				_ = p.Register(ctx)
			}
		})
	}},
	"plugin: options":    {method: "GetDevicePluginOptions", make: func(n *silentNode) { n.plugin(true) }},
	"plugin: first list": {method: "ListAndWatch", make: func(n *silentNode) { n.plugin(true) }},
	"plugin: preferred":  {method: "GetPreferredAllocation", make: func(n *silentNode) { n.plugin(false); n.admits("slow", gpu) }},
	"plugin: allocate":   {method: "Allocate", make: func(n *silentNode) { n.plugin(false); n.admits("slow", gpu) }},
	"plugin: before start": {method: "PreStartContainer", make: func(n *silentNode) {
		n.plugin(false)
		n.admitted(withDevice("slow", gpu))
		n.inBackground(func(ctx context.Context) {
			for ctx.Err() == nil {
				_ = n.preStartIn(ctx, "slow", "c-slow")
			}
		})
	}},
	"found plugin: no answer to the connection": {make: func(n *silentNode) { n.accept(n.root + "/plugins_registry/silent.sock") }},
	"found plugin: info": {method: "GetInfo", make: func(n *silentNode) {
		n.beSilent()
		n.serve(n.root+"/plugins_registry/silent.sock", func(s *grpc.Server) {
			registrationapi.RegisterRegistrationServer(s, registrationapi.UnimplementedRegistrationServer{})
		})
	}},
	"found plugin: notification": {method: "NotifyRegistrationStatus", make: func(n *silentNode) {
		n.beSilent()
		n.serve(n.root+"/plugins_registry/silent.sock", func(s *grpc.Server) {
			registrationapi.RegisterRegistrationServer(s, foundPlugin{})
		})
	}},
	"runtime: list": {method: "ListContainers", runtime: true, make: func(n *silentNode) {
		n.beSilent()
		n.resizes("slow")
	}},
	"runtime: update": {method: "UpdateContainerResources", runtime: true, make: func(n *silentNode) {
		n.runs("shared")
		n.beSilent()
		n.admitted(guaranteed("own", 2, 0)) // the shared container has to leave these CPUs
	}},
	"runtime: status": {method: "ContainerStatus", runtime: true, make: func(n *silentNode) {
		n.beSilent()
		n.admitted(burstable("slow"))
		h := &pluginHost{Server: n.cri, t: n.daemon.t}
		id := h.create("slow", 0, n.allocate("slow"))
		n.inBackground(func(ctx context.Context) {
			for ctx.Err() == nil {
				_ = n.preStartIn(ctx, "slow", id)
			}
		})
	}},
	"runtime: events": {method: "GetContainerEvents", runtime: true, make: func(n *silentNode) {
		n.beSilent()
		n.cri.CutEvents() // the next stream is a silent one
	}},
	"reader: watch": {make: func(n *silentNode) {
		n.noReader(n.daemon, n.socket(), func(ctx context.Context, conn *grpc.ClientConn) {
			stream, err := allocationv1.NewAllocationServiceClient(conn).Watch(ctx, &allocationv1.WatchRequest{})
			if err == nil {
				_, _ = stream.Recv()
			}
			<-ctx.Done()
		}, func(i int) {
			n.admitted(burstable(fmt.Sprint("more-", i)))
			n.remove(fmt.Sprint("more-", i))
		})
	}},
	"reader: list": {make: func(n *silentNode) {
		n.many()
		n.noReader(n.daemon, n.socket(), func(ctx context.Context, conn *grpc.ClientConn) {
			_, _ = allocationv1.NewAllocationServiceClient(conn).List(ctx, &allocationv1.ListRequest{})
		}, nil)
	}},
	"reader: dump": {make: func(n *silentNode) {
		n.many()
		n.noReader(n.daemon, n.socket(), func(ctx context.Context, conn *grpc.ClientConn) {
			stream, err := inspectv1.NewInspectServiceClient(conn).StreamDump(ctx, &inspectv1.StreamDumpRequest{})
			if err == nil {
				_, _ = stream.Recv()
			}
			<-ctx.Done()
		}, nil)
	}},
	"reader: bundle": {make: func(n *silentNode) {
		n.many()
		n.noReader(n.daemon, n.socket(), func(ctx context.Context, conn *grpc.ClientConn) {
			stream, err := inspectv1.NewInspectServiceClient(conn).StreamBundle(ctx, &inspectv1.StreamBundleRequest{})
			if err == nil {
				_, _ = stream.Recv()
			}
			<-ctx.Done()
		}, nil)
	}},
	"reader: podresources": {make: func(n *silentNode) {
		n.many()
		n.noReader(n.daemon, n.root+"/pod-resources/kubelet.sock", func(ctx context.Context, conn *grpc.ClientConn) {
			_, _ = podresources.NewPodResourcesListerClient(conn).List(ctx, &podresources.ListPodResourcesRequest{})
		}, nil)
	}},
	"HTTP: half a request": {make: func(n *silentNode) { n.request("GET /metrics HTTP/1.1\r\nHost: localhost\r\n") }},
	"HTTP: no reader": {make: func(n *silentNode) {
		n.request(strings.Repeat("GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", 200))
	}},
}

// foundPlugin is one of another type, whose registration is refused: berthd tells it so.
type foundPlugin struct {
	registrationapi.UnimplementedRegistrationServer
}

func (foundPlugin) GetInfo(context.Context, *registrationapi.InfoRequest) (*registrationapi.PluginInfo, error) {
	return &registrationapi.PluginInfo{Type: registrationapi.DevicePlugin, Name: gpu, SupportedVersions: []string{"v9"}}, nil
}

// resizes changes a pod again and again, which needs the runtime's list of containers.
func (n *silentNode) resizes(uid string) {
	n.admitted(burstable(uid))
	n.inBackground(func(ctx context.Context) {
		for i := 0; ctx.Err() == nil; i++ {
			_, _ = n.admission.Resize(ctx, berth.ResizeTo(larger(uid, i)))
		}
	})
}

// larger is a pod on the shared CPUs that requests more.
func larger(uid string, i int) *typesv1.Pod {
	p := burstable(uid)
	p.Spec.Containers[0].Resources.Requests["cpu"] = fmt.Sprintf("%dm", 110+i%1000)
	return p
}

// runs has a container of a pod on the shared CPUs run in the runtime.
func (n *silentNode) runs(uid string) {
	n.daemon.t.Helper()
	n.admitted(burstable(uid))
	h := &pluginHost{Server: n.cri, t: n.daemon.t}
	id := h.create(uid, 0, n.allocate(uid))
	if err := n.preStart(uid, id); err != nil {
		n.daemon.t.Fatal(err)
	}
	h.start(id)
}

// many admits so many pods that an answer with all of them does not fit into the window of a stream.
func (n *silentNode) many() {
	n.daemon.t.Helper()
	for i := range 100 {
		p := burstable(fmt.Sprintf("many-%d-%s", i, strings.Repeat("x", 100)))
		main := p.Spec.Containers[0]
		for j := range 30 {
			c := proto.CloneOf(main)
			c.Name = fmt.Sprintf("side-%d-%s", j, strings.Repeat("y", 50))
			p.Spec.Containers = append(p.Spec.Containers, c)
		}
		n.admitted(p)
	}
}

// preStartIn is preStart with a context.
func (n *silentNode) preStartIn(ctx context.Context, uid, id string) error {
	_, err := n.lifecycle.PreStartContainer(ctx, &lifecyclev1.PreStartContainerRequest{PodUid: uid, ContainerName: "main", ContainerId: id})
	return err
}

// request sends text to the HTTP server and reads nothing.
func (n *silentNode) request(text string) {
	n.daemon.t.Helper()
	n.again = func() { n.request(text) }
	c, err := net.Dial("unix", n.root+"/http.sock")
	if err != nil {
		n.daemon.t.Fatal(err)
	}
	if _, err := io.WriteString(c, text); err != nil {
		n.daemon.t.Fatal(err)
	}
	n.waitWithout(c)
	n.daemon.t.Cleanup(func() { _ = c.Close() })
}

// rootCalls are what root's agent and root do meanwhile, in this order.
var rootCalls = []struct {
	name string
	do   func(n *silentNode, i int) error
}{
	{"Admit", func(n *silentNode, i int) error { return n.verdict(fmt.Sprint("other-", i)) }},
	{"GetState", func(n *silentNode, _ int) error {
		_, err := cpuv1.NewCPUServiceClient(n.conn).GetState(n.ctx(), &cpuv1.GetStateRequest{})
		return err
	}},
	{"List", func(n *silentNode, _ int) error {
		_, err := n.allocation.List(n.ctx(), &allocationv1.ListRequest{})
		return err
	}},
	{"podresources", func(n *silentNode, _ int) error {
		_, err := n.readers().List(n.ctx(), &podresources.ListPodResourcesRequest{})
		return err
	}},
	{"Check", func(n *silentNode, _ int) error {
		_, err := n.inspect.Check(n.ctx(), &inspectv1.CheckRequest{})
		return err
	}},
	{"Resize", func(n *silentNode, i int) error {
		if n.cri != nil {
			return nil // it needs the runtime
		}
		_, err := n.admission.Resize(n.ctx(), berth.ResizeTo(larger("kept", i)))
		return err
	}},
	{"Register", func(n *silentNode, _ int) error { return n.provider("good", n.root+"/good.sock", "example.com/good") }},
	{"Unregister", func(n *silentNode, _ int) error {
		_, err := hintv1.NewHintBusServiceClient(n.conn).Unregister(n.ctx(), &hintv1.UnregisterRequest{Provider: "good"})
		return err
	}},
	{"a device plugin registers", func(n *silentNode, _ int) error {
		return script.New(script.Config{Dir: n.dir(), Resource: "example.com/good", Endpoint: "good.sock"}).Register(n.ctx())
	}},
	{"RemovePod", func(n *silentNode, i int) error {
		_, err := n.admission.RemovePod(n.ctx(), &admissionv1.RemovePodRequest{PodUid: fmt.Sprint("other-", i)})
		return err
	}},
}

// verdict admits a pod on the shared CPUs.
func (n *silentNode) verdict(uid string) error {
	resp, err := n.admission.Admit(n.ctx(), &admissionv1.AdmitRequest{Subject: &admissionv1.AdmitRequest_Pod{Pod: burstable(uid)}})
	if err == nil && resp.GetVerdict() != admissionv1.Verdict_VERDICT_ADMITTED {
		err = fmt.Errorf("%s %s", resp.GetVerdict(), resp.GetMessage())
	}
	return err
}

// meanwhile makes a call until one was answered during which no silent call ended: it waited for none. A lock that berthd holds over
// a silent call would make each of them end with a silent call.
func (n *silentNode) meanwhile(name string, call func(i int) error) {
	n.daemon.t.Helper()
	deadline := time.Now().Add(timeout)
	for i := 0; ; i++ {
		var before int
		n.eventually("the party is silent", func() bool {
			now, ended := n.waiting()
			if before = ended; now == 0 && n.again != nil {
				n.again()
			}
			return now > 0
		})
		if err := call(i); err != nil {
			n.daemon.t.Errorf("%s: %v", name, err)
			return
		}
		if _, ended := n.waiting(); ended == before {
			return
		}
		if time.Now().After(deadline) {
			n.daemon.t.Errorf("%s is answered only when the silent call has ended", name)
			return
		}
	}
}

// TestSilence has each kind of program that berthd calls, or answers, be silent, one at a time, at each of its calls. Root's calls are
// answered before the silent call ends.
func TestSilence(t *testing.T) {
	t.Parallel()
	for name, row := range silences {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, "--cgroup-tree", "memory", "--machine", "1s1n8c1t")
			n.kernel = false
			n.configure("providers: {callTimeout: 1h, allocateTimeout: 1h, preStartTimeout: 1h, pluginInfoTimeout: 1h}\nhttp: unix://" +
				n.root + "/http.sock\n" +
				fmt.Sprintf("access: [{uid: %d, roles: [provider]}]\n", neighbour))
			s := &silentNode{party: &party{t: t, method: row.method}}
			if row.runtime {
				s.cri = cri.New(cri.Config{Driver: new(criv1.CgroupDriver), Images: []string{"probe"}, Events: true})
				*s.cri.Driver = criv1.CgroupDriver_CGROUPFS
				s.serve(n.root+"/cri.sock", func(g *grpc.Server) { criv1.RegisterRuntimeServiceServer(g, s.cri) })
				n.args = append(n.args, "--runtime-endpoint", "unix://"+n.root+"/cri.sock")
			}
			s.daemon = n.start()
			good := &party{t: t}
			good.serve(n.root+"/good.sock", func(g *grpc.Server) {
				hintserver.NewServer(&hinttest.Slots{Called: "good"}, time.Now).Register(g)
			})
			plugin := script.New(script.Config{Dir: s.dir(), Resource: "example.com/good", Endpoint: "good.sock"})
			good.serve(plugin.Socket(), func(g *grpc.Server) { pluginapi.RegisterDevicePluginServer(g, plugin) })
			s.admitted(burstable("kept"))
			row.make(s)
			for _, c := range rootCalls {
				s.meanwhile(c.name, func(i int) error { return c.do(s, i) })
			}
			s.check()
		})
	}
}

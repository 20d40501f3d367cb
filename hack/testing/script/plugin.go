package script

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	registrationapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// Signal is a plugin's sign of a restart of its server.
type Signal string

const (
	// BothSignals are watched.
	BothSignals Signal = "both"
	// OwnSocket: only the removal of its own socket.
	OwnSocket Signal = "own"
	// ServerSocket: only that kubelet.sock is a new file.
	ServerSocket Signal = "kubelet"
	// CrashSignal: it ends with a panic when kubelet.sock is another one.
	CrashSignal Signal = "crash"
	// NoSignal: it registers once.
	NoSignal Signal = "none"
)

// Config of a plugin.
type Config struct {
	// Dir is the device plugin directory, with kubelet.sock, or the one that the
	// plugin watcher watches.
	Dir string
	// Watched makes it a plugin that does not register but waits to be found
	// (pluginregistration v1); Signal means nothing then.
	Watched bool
	// Info changes the data of a plugin that waits to be found; nil for correct data.
	Info func(*registrationapi.PluginInfo)
	// Resource name, as in example.com/gpu.
	Resource string
	// Also are further resources that it registers with the same socket, as a plugin must not.
	Also []string
	// Endpoint is the name of the plugin's socket; empty makes one of Resource.
	Endpoint string
	Devices  []Device
	// Preferred and PreStart are announced as options.
	Preferred, PreStart bool
	// CDI adds a CDI name for every device to the answers.
	CDI bool
	// Env, if not empty, is the name of the environment variable with the ids;
	// by default it is made of the resource: EXAMPLE_COM_GPU.
	Env string
	// Answer changes what a container is to get; nil leaves it as it is.
	Answer func(*pluginapi.ContainerAllocateResponse)
	// Signal is what makes Run register again; empty means both.
	Signal Signal
	// Log gets a line of JSON for every call; nil for none.
	Log io.Writer
	// Exit is called when the plugin dies; nil for a plugin in a test.
	Exit func()
}

// Plugin is one plugin. Its methods are safe for concurrent use.
type Plugin struct {
	pluginapi.UnimplementedDevicePluginServer
	Config

	mu      sync.Mutex
	devices []Device
	manners map[Method]Manner
	calls   []Call
	changed chan struct{} // closed and replaced when a field above changes
	server  *grpc.Server  // nil while it does not serve
	dying   chan struct{} // closed when the plugin dies
	served  sync.WaitGroup
	lists   int // streams of lists that were opened
	streams int // open now
	hanging int // calls that are not answered
	most    int // open at once, at most
}

// New makes a plugin that does nothing yet.
func New(cfg Config) *Plugin {
	cfg.Endpoint = cmp.Or(cfg.Endpoint, strings.ReplaceAll(cfg.Resource, "/", "-")+".sock")
	cfg.Signal = cmp.Or(cfg.Signal, BothSignals)
	cfg.Env = cmp.Or(cfg.Env, strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' {
			return r - 'a' + 'A'
		}
		if r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' {
			return r
		}
		return '_'
	}, cfg.Resource))
	return &Plugin{
		Config: cfg, devices: slices.Clone(cfg.Devices), manners: map[Method]Manner{},
		changed: make(chan struct{}), dying: make(chan struct{}),
	}
}

// Socket is the path of the plugin's socket.
func (p *Plugin) Socket() string { return filepath.Join(p.Dir, p.Endpoint) }

func (p *Plugin) serverSocket() string { return filepath.Join(p.Dir, "kubelet.sock") }

// Behave sets the manner at a method.
func (p *Plugin) Behave(m Method, how Manner) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if how == Well {
		how = ""
	}
	p.manners[m] = how
	p.wake()
}

// SetDevices replaces the devices and sends the new list.
func (p *Plugin) SetDevices(devices ...Device) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.devices = slices.Clone(devices)
	p.wake()
}

// Present returns the devices as they are now.
func (p *Plugin) Present() []Device {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.devices)
}

// SetHealth changes the health of a device, and sends the new list.
func (p *Plugin) SetHealth(id string, healthy bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.devices {
		if p.devices[i].ID == id {
			p.devices[i].Unhealthy = !healthy
		}
	}
	p.wake()
}

// Streams reports how many lists are being read now, and at most were at a time.
func (p *Plugin) Streams() (now, most int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.streams, p.most
}

// Serve listens on the plugin's socket, and replaces an existing file.
func (p *Plugin) Serve() error {
	if err := os.Remove(p.Socket()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: p.Socket(), Net: "unix"})
	if err != nil {
		return err
	}
	// A plugin that dies leaves its socket behind; one that stops removes it.
	l.SetUnlinkOnClose(false)
	server := grpc.NewServer(grpc.WaitForHandlers(true))
	pluginapi.RegisterDevicePluginServer(server, p)
	if p.Watched {
		registrationapi.RegisterRegistrationServer(server, watched{p: p})
	}
	p.mu.Lock()
	p.server = server
	p.mu.Unlock()
	p.served.Go(func() { _ = server.Serve(l) })
	return nil
}

// Register registers the plugin with the server of its directory, once.
func (p *Plugin) Register(ctx context.Context) error {
	for _, resource := range append([]string{p.Resource}, p.Also...) {
		if err := p.RegisterAs(ctx, &pluginapi.RegisterRequest{
			Version: pluginapi.Version, Endpoint: p.Endpoint, ResourceName: resource, Options: p.options(),
		}); err != nil {
			return err
		}
	}
	return nil
}

// RegisterAs sends any registration.
func (p *Plugin) RegisterAs(ctx context.Context, req *pluginapi.RegisterRequest) error {
	conn, err := grpc.NewClient("unix://"+p.serverSocket(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	_, err = pluginapi.NewRegistrationClient(conn).Register(ctx, req)
	c := Call{Method: Register}
	if err != nil {
		c.Error = err.Error()
	}
	p.note(c)
	return err
}

// Stop ends the plugin gracefully: streams end, and the socket is removed.
func (p *Plugin) Stop() {
	p.halt()
	_ = os.Remove(p.Socket())
}

// Die ends the plugin as if it was killed: connections break, the socket stays,
// nothing more is answered. It does not wait for calls that are being answered.
func (p *Plugin) Die() {
	if p.Exit != nil {
		p.Exit()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.dying:
	default:
		p.served.Go(p.halt) // first: Run waits for it once the plugin is ending
		close(p.dying)
	}
}

func (p *Plugin) halt() {
	p.mu.Lock()
	server := p.server
	p.server = nil
	p.mu.Unlock()
	if server != nil {
		server.Stop()
	}
}

// Wait waits until nothing of the plugin runs any more, after Stop or Die.
func (p *Plugin) Wait() { p.served.Wait() }

// errDied is Run's error for a plugin that was ordered to die.
var errDied = errors.New("the plugin died, as it was told to")

// Run serves and registers, again after each signal, until ctx ends or the plugin dies.
func (p *Plugin) Run(ctx context.Context) error {
	defer p.Wait()
	for {
		if err := p.Serve(); err != nil {
			return fmt.Errorf("serve %s: %w", p.Socket(), err)
		}
		if err := p.session(ctx); err != nil {
			p.halt() // it may have been ordered to die just before it served again
			return err
		}
		p.Stop()
		if ctx.Err() != nil {
			return nil
		}
	}
}

// poll is how often files are looked at, and a failed registration repeated.
const poll = 50 * time.Millisecond

// session registers until it succeeds, and waits for a signal. A plugin that waits to be found
// does neither.
func (p *Plugin) session(ctx context.Context) error {
	if p.Watched {
		select {
		case <-ctx.Done():
			return nil
		case <-p.dying:
			return errDied
		}
	}
	tick := time.NewTicker(poll)
	defer tick.Stop()
	var registeredAt os.FileInfo
	for {
		if registeredAt == nil {
			if p.unlinked() {
				return nil // by a server that starts
			}
			registeredAt = p.registered(ctx)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-p.dying:
			return errDied
		case <-tick.C:
		}
		if registeredAt != nil && p.signalled(registeredAt) {
			return nil
		}
	}
}

// registered registers with the current server and returns the server's socket, or nil after a
// failure. If the server was replaced meanwhile, it registers again immediately. A later
// registration would displace a plugin that has replaced this one.
func (p *Plugin) registered(ctx context.Context) os.FileInfo {
	for {
		at, err := os.Stat(p.serverSocket())
		if err != nil || p.Register(ctx) != nil {
			return nil
		}
		if now, err := os.Stat(p.serverSocket()); err != nil || sameSocket(at, now) {
			return at
		}
	}
}

// sameSocket compares files. Inode numbers are used again, so the time counts too.
func sameSocket(a, b os.FileInfo) bool { return os.SameFile(a, b) && a.ModTime().Equal(b.ModTime()) }

// signalled reports whether the server was restarted since the registration.
func (p *Plugin) signalled(registered os.FileInfo) bool {
	if (p.Signal == BothSignals || p.Signal == OwnSocket) && p.unlinked() {
		return true
	}
	if p.Signal == BothSignals || p.Signal == ServerSocket || p.Signal == CrashSignal {
		now, err := os.Stat(p.serverSocket())
		if err == nil && !sameSocket(now, registered) {
			if p.Signal == CrashSignal {
				go func() { panic("send on closed channel") }() // where no deferred call keeps the process
				return false
			}
			return true
		}
	}
	return false
}

// unlinked reports whether the plugin's socket was removed.
func (p *Plugin) unlinked() bool {
	_, err := os.Stat(p.Socket())
	return errors.Is(err, fs.ErrNotExist)
}

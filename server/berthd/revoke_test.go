//go:build linux

package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	cgroupv1 "github.com/berthd/berth/api/berth/cgroup/v1"
	hintv1 "github.com/berthd/berth/api/berth/hint/v1"
	nodev1 "github.com/berthd/berth/api/berth/node/v1"
	topologyv1 "github.com/berthd/berth/api/berth/topology/v1"
	"github.com/berthd/berth/clients/hintprovider/hintserver"
	"github.com/berthd/berth/hack/testing/nodetest"
	"github.com/berthd/berth/hack/testing/script"
	"github.com/berthd/berth/managers/hint/hinttest"
)

// holder is a user who has something by a role.
type holder struct {
	d    *daemon
	uid  int
	conn *grpc.ClientConn
	page *http.Client
	// session is that of the page.
	session string
}

// watches opens a stream, and returns its end.
func (h *holder) watches() <-chan error {
	h.d.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	h.d.t.Cleanup(cancel)
	stream, err := allocationv1.NewAllocationServiceClient(h.conn).Watch(ctx, &allocationv1.WatchRequest{})
	if err == nil {
		_, err = stream.Recv()
	}
	if err != nil {
		h.d.t.Fatal(err)
	}
	end := make(chan error, 1)
	go func() {
		for {
			resp, err := stream.Recv()
			if err != nil {
				end <- err
				return
			}
			for _, e := range resp.GetEvents() {
				if e.GetAdded().GetUid() == lastPod {
					end <- nil
				}
			}
		}
	}()
	return end
}

// lastPod is one that is admitted after the reload. A watch that goes on tells of it.
const lastPod = "last"

// get reads a path of the page.
func (h *holder) get(method, path, body string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(h.d.ctx(), method, "http://localhost"+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("X-Berth-Session", h.session)
	req.Header.Set("X-Berth-Page", "1")
	return h.page.Do(req)
}

// logsIn opens a session of the page.
func (h *holder) logsIn() error {
	socket := h.d.root + "/http.sock"
	h.page = &http.Client{Transport: &http.Transport{DialContext: func(context.Context, string,
		string) (net.Conn, error) {
		return dialAs(h.uid, socket)
	}}}
	link, err := os.ReadFile(socket + ".login")
	if err != nil {
		return err
	}
	_, key, _ := strings.Cut(strings.TrimSpace(string(link)), "#login=")
	resp, err := h.get(http.MethodPost, "/api/v1/login", key)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode == http.StatusForbidden {
		return status.Errorf(codes.PermissionDenied, "%s", text)
	}
	var answer struct{ Session string }
	if err := json.Unmarshal(text, &answer); err != nil || answer.Session == "" {
		return fmt.Errorf("%s: %s", resp.Status, text)
	}
	h.session = answer.Session
	return nil
}

// pageEvents opens the page's stream of events, and returns its end.
func (h *holder) pageEvents() <-chan error {
	h.d.t.Helper()
	if err := h.logsIn(); err != nil {
		h.d.t.Fatal(err)
	}
	resp, err := h.get(http.MethodGet, "/api/v1/events", "")
	if err != nil || resp.StatusCode != http.StatusOK {
		h.d.t.Fatalf("%v, %v", resp, err)
	}
	lines := bufio.NewReader(resp.Body)
	if _, err := lines.ReadString('\n'); err != nil {
		h.d.t.Fatal(err)
	}
	end := make(chan error, 1)
	go func() {
		defer resp.Body.Close()
		_, err := io.Copy(io.Discard, lines)
		end <- cmp.Or(err, io.EOF)
	}()
	return end
}

// pageStatus is the answer to a request of the page in its session.
func (h *holder) pageStatus() error {
	if h.session == "" {
		if err := h.logsIn(); err != nil {
			return err
		}
	}
	resp, err := h.get(http.MethodGet, "/api/v1/pods", "")
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusOK:
		return nil
	case http.StatusForbidden:
		return status.Error(codes.PermissionDenied, resp.Status)
	}
	return errors.New(resp.Status)
}

// admits begins an admission that waits for a plugin, and returns its end.
func (h *holder) admits(p *script.Plugin) <-chan error {
	h.d.t.Helper()
	end := make(chan error, 1)
	go func() {
		_, err := admissionv1.NewAdmissionServiceClient(h.conn).Admit(h.d.ctx(), &admissionv1.AdmitRequest{
			Subject: &admissionv1.AdmitRequest_Pod{Pod: withDevice(fmt.Sprint("of-", h.uid), gpu)},
		})
		end <- err
	}()
	if err := p.AwaitHanging(h.d.ctx(), 1); err != nil {
		h.d.t.Fatal(err)
	}
	return end
}

// registers registers a provider, and returns the end of its registration.
func (h *holder) registers() <-chan error {
	h.d.t.Helper()
	dir := filepath.Join(h.d.root, fmt.Sprint("user-", h.uid))
	if err := errors.Join(os.Mkdir(dir, 0o755), os.Chown(dir, h.uid, h.uid)); err != nil {
		h.d.t.Fatal(err)
	}
	p := &party{t: h.d.t}
	p.serve(dir+"/p.sock", func(s *grpc.Server) { hintserver.NewServer(&hinttest.Slots{Called: "theirs"}, time.Now).Register(s) })
	if _, err := hintv1.NewHintBusServiceClient(h.conn).Register(h.d.ctx(), &hintv1.RegisterRequest{
		Provider: "theirs", Endpoint: dir + "/p.sock", Mode: hintv1.Mode_MODE_ADVISORY, Resources: []string{"example.com/theirs"},
	}); err != nil {
		h.d.t.Fatal(err)
	}
	end := make(chan error, 1)
	go func() {
		client := hintv1.NewHintBusServiceClient(h.d.conn)
		err := nodetest.Await(h.d.ctx(), func() bool {
			list, err := client.ListProviders(h.d.ctx(), &hintv1.ListProvidersRequest{})
			return err == nil && !slices.ContainsFunc(list.GetProviders(), func(p *hintv1.Provider) bool { return p.GetName() == "theirs" })
		})
		if err == nil {
			end <- io.EOF
		}
	}()
	return end
}

// TestRevocation: whatever a role gave ends when a reload takes the role away, and what another role gave goes on.
func TestRevocation(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skipf("needs root, which can act as other users: the effective user is %d", os.Geteuid())
	}
	const base = 64110
	for i, row := range []struct {
		name, roles, left string
		// begins begins something that goes on, and returns its end. then is a call afterwards; it was possible before.
		begins func(h *holder, p *script.Plugin) <-chan error
		then   func(h *holder) error
		stays  bool
	}{
		{name: "read: watch", roles: "read", begins: func(h *holder, _ *script.Plugin) <-chan error { return h.watches() },
			then: func(h *holder) error {
				_, err := allocationv1.NewAllocationServiceClient(h.conn).List(h.d.ctx(), &allocationv1.ListRequest{})
				return err
			}},
		{name: "read: events of the page", roles: "read",
			begins: func(h *holder, _ *script.Plugin) <-chan error { return h.pageEvents() }, then: (*holder).pageStatus},
		{name: "agent: an admission", roles: "agent", begins: (*holder).admits, then: func(h *holder) error {
			_, err := admissionv1.NewAdmissionServiceClient(h.conn).RemovePod(h.d.ctx(), &admissionv1.RemovePodRequest{PodUid: "none"})
			return err
		}},
		{name: "agent: an admission, with the role read left", roles: "agent, read", left: "read", begins: (*holder).admits,
			then: func(h *holder) error {
				_, err := admissionv1.NewAdmissionServiceClient(h.conn).RemovePod(h.d.ctx(), &admissionv1.RemovePodRequest{PodUid: "none"})
				return err
			}},
		{name: "agent: watch, with the role read left", roles: "agent, read", left: "read", stays: true,
			begins: func(h *holder, _ *script.Plugin) <-chan error { return h.watches() }},
		{name: "provider: a registration", roles: "provider",
			begins: func(h *holder, _ *script.Plugin) <-chan error { return h.registers() }, then: func(h *holder) error {
				_, err := hintv1.NewHintBusServiceClient(h.conn).Unregister(h.d.ctx(), &hintv1.UnregisterRequest{Provider: "none"})
				return err
			}},
		{name: "admin: a policy", roles: "admin", then: func(h *holder) error {
			_, err := topologyv1.NewTopologyServiceClient(h.conn).SetPolicy(h.d.ctx(), &topologyv1.SetPolicyRequest{DryRun: true})
			return err
		}},
		{name: "admin: a cgroup", roles: "admin", then: func(h *holder) error {
			_, err := cgroupv1.NewCgroupServiceClient(h.conn).Create(h.d.ctx(), &cgroupv1.CreateRequest{})
			return err
		}},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			n, write := configured(t, "1s1n4c1t")
			if err := os.Chmod(n.root, 0o755); err != nil {
				t.Fatal(err)
			}
			uid := base + i
			grant := func(roles string) {
				if roles != "" {
					roles = fmt.Sprintf("access: [{uid: %d, roles: [%s]}]\n", uid, roles)
				}
				write("reserved: {cpus: \"0\"}\nproviders: {allocateTimeout: 1h}\nhttp: unix://" + n.root +
					"/http.sock\nhttpMode: \"0666\"\n" + roles)
			}
			grant(row.roles)
			d := n.start()
			p := script.New(script.Config{Dir: n.root + "/device-plugins", Resource: gpu, Devices: []script.Device{{ID: "g0"}}})
			served := &party{t: t}
			served.serve(p.Socket(), func(s *grpc.Server) { pluginapi.RegisterDevicePluginServer(s, p) })
			p.Behave(script.Allocate, script.Hang)
			if err := p.Register(d.ctx()); err != nil {
				t.Fatal(err)
			}
			d.expectResource(gpu, "connected", 1, 1)
			h := &holder{d: d, uid: uid, conn: d.as(uid)}
			if row.then != nil {
				if err := row.then(h); status.Code(err) == codes.PermissionDenied {
					t.Fatalf("before the reload: %v", err)
				}
			}
			var end <-chan error
			if row.begins != nil {
				end = row.begins(h, p)
			}
			grant(row.left)
			d.reload(false)
			switch {
			case end == nil:
			case row.stays:
				d.admitted(burstable(lastPod))
				select {
				case err := <-end:
					if err != nil {
						t.Errorf("it has ended: %v", err)
					}
				case <-d.ctx().Done():
					t.Error("it does not go on")
				}
			default:
				select {
				case err := <-end:
					if err == nil {
						t.Error("it was carried out")
					}
				case <-d.ctx().Done():
					t.Error("it goes on")
				}
			}
			if row.then != nil {
				if err := row.then(h); status.Code(err) != codes.PermissionDenied {
					t.Errorf("after the reload: %v", err)
				}
			}
			if uid := fmt.Sprint("of-", uid); d.pods()[uid] != nil {
				t.Errorf("%s is admitted", uid)
			}
			d.check()
		})
	}
}

// TestReloadOfOthers: a configuration that another user could have changed is not read at a reload, whoever owns it or a directory above
// it. The one in force stays.
func TestReloadOfOthers(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skipf("needs root, which can give files to other users: the effective user is %d", os.Geteuid())
	}
	const them = 64130
	n, write := configured(t, "1s1n4c1t")
	dir := filepath.Join(n.root, "etc")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	n.config = filepath.Join(dir, "berthd.yaml")
	write("reserved: {cpus: \"0\"}\n")
	d := n.start()
	write(fmt.Sprintf("reserved: {cpus: \"0\"}\naccess: [{uid: %d, roles: [admin]}]\n", them))
	for name, row := range map[string]struct {
		spoil, mend func() error
		want        string
	}{
		"a file of theirs": {func() error { return os.Chown(n.config, them, them) },
			func() error { return os.Chown(n.config, 0, 0) }, n.config + " belongs to user 64130"},
		"a file that all write to": {func() error { return os.Chmod(n.config, 0o666) }, func() error { return os.Chmod(n.config, 0o600) },
			n.config + " (owner 0, mode 0666)"},
		"a directory of theirs": {func() error { return os.Chown(dir, them, them) }, func() error { return os.Chown(dir, 0, 0) },
			dir + " belongs to user 64130"},
		"a directory all write to": {func() error { return os.Chmod(dir, 0o777) }, func() error { return os.Chmod(dir, 0o755) },
			dir + " (owner 0, mode 0777)"},
	} {
		if err := row.spoil(); err != nil {
			t.Fatal(err)
		}
		_, err := nodev1.NewNodeServiceClient(d.conn).Reload(d.ctx(), &nodev1.ReloadRequest{})
		if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s: %v, want %q", name, err, row.want)
		}
		if info, err := os.Stat(n.socket()); err != nil || info.Mode().Perm() != 0o660 {
			t.Errorf("%s: the socket is %v, %v", name, info.Mode(), err)
		}
		if err := row.mend(); err != nil {
			t.Fatal(err)
		}
	}
	d.reloads(`access  > [{"uid":64130,"roles":["admin"]}]`)
}

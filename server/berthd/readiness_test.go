package main

import (
	"errors"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

// page gets a page of the daemon's.
func (d *daemon) page(path string) (code int, body string) {
	d.t.Helper()
	resp, err := http.Get("http://" + d.http() + path)
	if err != nil {
		d.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		d.t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

// serves reports whether a service serves, as the health service has it.
func (d *daemon) serves(service string) bool {
	d.t.Helper()
	resp, err := healthpb.NewHealthClient(d.conn).Check(d.ctx(), &healthpb.HealthCheckRequest{Service: service})
	if err != nil {
		d.t.Fatal(err)
	}
	return resp.GetStatus() == healthpb.HealthCheckResponse_SERVING
}

// untilReady waits until /readyz has a status, with a text in the body, and checks that the health service agrees.
func (d *daemon) untilReady(code int, text string) {
	d.t.Helper()
	d.eventually("/readyz is as it should be: "+text, func() bool {
		got, body := d.page("/readyz")
		return got == code && strings.Contains(body, text)
	})
	if got := d.serves(""); got != (code == http.StatusOK) {
		d.t.Errorf("the health service says that berthd serves: %v, /readyz says %d", got, code)
	}
	if got, body := d.page("/healthz"); got != http.StatusOK {
		d.t.Errorf("/healthz: %d %s", got, body)
	}
}

const (
	admissionService = "berth.admission.v1.AdmissionService"
	cpuService       = "berth.cpu.v1.CPUService"
)

// TestNotReadyOnAFullDisk: a berthd that cannot commit is not ready, has the reason in /readyz, continues serving
// readers, and is ready again when the disk has room.
func TestNotReadyOnAFullDisk(t *testing.T) {
	t.Parallel()
	n := newNode(t, "--http", "127.0.0.1:0")
	n.env = append(n.env, probesOften+"=1")
	state := filepath.Join(n.root, "state")
	if err := os.Mkdir(state, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("berthtest", state, "tmpfs", 0, "size=512k,mode=0700"); err != nil {
		t.Skipf("needs the right to mount a file system: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(state, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	d := n.start()
	d.untilReady(http.StatusOK, "ok\n")
	filler := filepath.Join(state, "filler")
	n.fill(filler)
	d.untilReady(http.StatusServiceUnavailable, "not ready\nledger: ")
	if _, body := d.page("/readyz"); !strings.Contains(body, "no space left on device") {
		t.Errorf("/readyz says %q", body)
	}
	if d.serves(admissionService) || !d.serves(cpuService) {
		t.Errorf("admissions: %v, readers of the CPU manager: %v", d.serves(admissionService), d.serves(cpuService))
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	d.untilReady(http.StatusOK, "ok\n")
	if !d.serves(admissionService) {
		t.Error("admissions are not served")
	}
	if log := d.log.String(); strings.Count(log, `msg="this does not work"`) != 1 || strings.Count(log, `msg="this works again"`) != 1 {
		t.Error("the log does not say once that it did not work, and that it works again")
	}
	d.stop()
}

// TestRemovedSocketsComeBack removes every socket of a daemon.
func TestRemovedSocketsComeBack(t *testing.T) {
	t.Parallel()
	n := newNode(t, "--http", "127.0.0.1:0")
	n.env = append(n.env, probesOften+"=1")
	d := n.start()
	modes := map[string]fs.FileMode{"berth.sock": 0o660, "pod-resources/kubelet.sock": 0o755, "device-plugins/kubelet.sock": 0o755}
	d.plugin("g0@0")
	for name, mode := range modes {
		path := filepath.Join(n.root, name)
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		n.eventually(name+" is back", func() bool {
			c, err := net.Dial("unix", path)
			if err == nil {
				_ = c.Close()
			}
			return err == nil
		})
		if info, err := os.Lstat(path); err != nil || info.Mode() != fs.ModeSocket|mode {
			t.Errorf("%s is back as %v, %v", name, info.Mode(), err)
		}
		d.says("socket=" + path)
	}
	d.untilReady(http.StatusOK, "ok\n")
	d.admitted(burstable("old-connection"))
	d.stop()
	for name := range modes {
		if _, err := os.Lstat(filepath.Join(n.root, name)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is left behind: %v", name, err)
		}
	}
}

// TestReplacedSocket: another socket in place of berthd's makes it not ready, and is left alone.
func TestReplacedSocket(t *testing.T) {
	t.Parallel()
	n := newNode(t, "--http", "127.0.0.1:0")
	n.env = append(n.env, probesOften+"=1")
	d := n.start()
	path := filepath.Join(n.root, "berth.sock")
	other, err := net.ListenUnix("unix", &net.UnixAddr{Name: path + ".other", Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = other.Close() })
	if err := os.Rename(path+".other", path); err != nil {
		t.Fatal(err)
	}
	d.untilReady(http.StatusServiceUnavailable, "not ready\nsocket: another program replaced socket "+path)
	if d.serves(cpuService) {
		t.Error("a service is called healthy that nobody reaches")
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	d.untilReady(http.StatusOK, "ok\n")
	d.stop()
}

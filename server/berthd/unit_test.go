package main

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	nodev1 "github.com/berthd/berth/api/berth/node/v1"
	"github.com/berthd/berth/managers/cgroup"
)

// deployVariable names a folder with the files of deploy/, on a machine that tests may
// install berthd on.
const deployVariable = "BERTH_TEST_DEPLOY"

// deployed returns the folder with the files of deploy/.
func deployed(t *testing.T) string {
	t.Helper()
	if _, err := os.Stat("/run/systemd/system"); err != nil {
		t.Skipf("systemd is not process 1: %v", err)
	}
	deploy := os.Getenv(deployVariable)
	if deploy == "" {
		t.Skipf("%s is not set: this test installs a unit, as hack/vm/test.sh does", deployVariable)
	}
	return deploy
}

// exposureLimit is how much systemd may find at most that the unit leaves on.
const exposureLimit = 2.0

// TestUnderItsUnit does the main job under the unit that berth comes with, and queries systemd
// for the rights that the unit leaves on.
func TestUnderItsUnit(t *testing.T) {
	deploy := deployed(t)
	needCPUs(t, 2)
	for _, driver := range []cgroup.Driver{cgroup.Cgroupfs, cgroup.Systemd} {
		t.Run(string(driver), func(t *testing.T) {
			n := underUnit(t, deploy, driver, "")
			mainJob(t, n)
			if exposure := n.exposure(); exposure > exposureLimit {
				t.Errorf("systemd-analyze security finds %.1f, at most %.1f is promised", exposure, exposureLimit)
			}
			n.start()
			s := threads(t, n.mainPID())[0]
			if want := mask(t, unix.CAP_KILL, unix.CAP_SYS_NICE, unix.CAP_SYS_RESOURCE, unix.CAP_DAC_OVERRIDE); s["CapBnd"] != want ||
				s["CapEff"] != want {
				t.Errorf("bounding set %s, effective %s, want %s", s["CapBnd"], s["CapEff"], want)
			}
		})
	}
	for _, row := range []struct {
		config, without string
		dropIns         []string
		do              func(t *testing.T, d *daemon)
	}{
		{"http: 127.0.0.1:9100\n", "", []string{"metrics.conf"}, func(t *testing.T, _ *daemon) {
			resp, err := http.Get("http://127.0.0.1:9100/metrics")
			if err != nil {
				t.Fatal(err)
			}
			_ = resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				t.Errorf("metrics: %s", resp.Status)
			}
		}},
		{"http: 127.0.0.1:97\n", "metrics.conf", []string{"metrics.conf", "low-port.conf"}, func(*testing.T, *daemon) {}},
		{"node: {nodeFit: false, kernelTunables: set}\n", "", []string{"kernel-settings.conf"}, func(t *testing.T, _ *daemon) {
			if text, err := os.ReadFile("/proc/sys/kernel/panic"); err != nil || string(text) != "10\n" {
				t.Errorf("kernel/panic is %q, %v", text, err)
			}
		}},
		{"", noRefusal, []string{"tracing.conf"}, func(t *testing.T, _ *daemon) {
			l, err := net.Listen("tcp", "127.0.0.1:4318")
			if err != nil {
				t.Fatal(err)
			}
			sent := make(chan string, 1)
			server := &http.Server{Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				select {
				case sent <- r.Method + " " + r.URL.Path:
				default:
				}
			})}
			go func() { _ = server.Serve(l) }()
			defer server.Close()
			// berthd's own test of its readiness is a call, which has a span.
			if got := <-sent; got != "POST /v1/traces" {
				t.Errorf("the collector got %q", got)
			}
		}},
		{hugePagesConfig, noRefusal, []string{"huge-pages.conf"}, func(t *testing.T, d *daemon) {
			lowest, _ := hostNodes(t).Lowest()
			before := nodePages(t, lowest)
			t.Cleanup(func() { _, _ = d.setHugePages(lowest, before) })
			got, err := d.setHugePages(lowest, before+2)
			if now := nodePages(t, lowest); err != nil || got.GetCount() != now || now < before+1 {
				t.Errorf("%v, %v: the kernel has %d huge pages, and had %d", got, err, now, before)
			}
		}},
		{"node: {nodeFit: false}\n" + movesHugePages, noRefusal, []string{"huge-page-moves.conf"}, func(t *testing.T, d *daemon) {
			want := mask(t, unix.CAP_SYS_PTRACE)
			d.eventually("berthd's reader has its capability, and berthd has not", func() bool {
				pids := readers("")
				return len(pids) == 1 && threads(t, pids[0])[0]["CapEff"] == want
			})
		}},
	} {
		name := row.dropIns[len(row.dropIns)-1]
		if row.without != noRefusal {
			t.Run("without "+name, func(t *testing.T) {
				n := underUnit(t, deploy, cgroup.Cgroupfs, row.config)
				if row.without != "" {
					n.dropIn(row.without)
				}
				if err := os.WriteFile("/proc/sys/kernel/panic", []byte("7"), 0); err != nil {
					t.Fatal(err)
				}
				if n.launch().readyOrDead() {
					t.Error("berthd serves, and nobody needs the drop-in")
				}
			})
		}
		t.Run(name, func(t *testing.T) {
			n := underUnit(t, deploy, cgroup.Cgroupfs, row.config)
			for _, d := range row.dropIns {
				n.dropIn(d)
			}
			row.do(t, n.start())
		})
	}
}

// hugePagesConfig is of a berthd that may set huge pages.
const hugePagesConfig = "node: {nodeFit: false, setHugePages: true}\n"

// TestHugePagesUnderItsUnit: without the drop-in, berthd serves and sets no huge pages. The error names the drop-in.
func TestHugePagesUnderItsUnit(t *testing.T) {
	deploy := deployed(t)
	n := underUnit(t, deploy, cgroup.Cgroupfs, hugePagesConfig)
	d := n.start()
	lowest, _ := hostNodes(t).Lowest()
	before := nodePages(t, lowest)
	if _, err := d.setHugePages(lowest, before+2); status.Code(err) != codes.FailedPrecondition ||
		!strings.Contains(err.Error(), "huge-pages.conf") {
		t.Errorf("without the drop-in: %v", err)
	}
	if now := nodePages(t, lowest); now != before {
		t.Errorf("the kernel has %d huge pages, and had %d", now, before)
	}
}

// nodePages counts the huge pages of 2 MiB on a NUMA node.
func nodePages(t *testing.T, node int) uint64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/sys/devices/system/node/node%d/hugepages/hugepages-2048kB/nr_hugepages", node))
	if err != nil {
		t.Skipf("the kernel has no huge pages of 2 MiB: %v", err)
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// setHugePages sets the huge pages of 2 MiB on a NUMA node.
func (d *daemon) setHugePages(node int, count uint64) (*nodev1.HugePagePoolResult, error) {
	resp, err := nodev1.NewNodeServiceClient(d.conn).SetHugePages(d.ctx(), &nodev1.SetHugePagesRequest{
		Pools: []*nodev1.HugePagePool{{NumaNode: uint32(node), PageSizeBytes: pageOf2Mi, Count: count}},
	})
	if err != nil {
		return nil, err
	}
	return resp.GetPools()[0], nil
}

// systemctl runs a command of systemd's.
func (n *node) systemctl(args ...string) string {
	n.t.Helper()
	out, err := exec.Command("systemctl", args...).CombinedOutput()
	if err != nil {
		n.t.Fatalf("systemctl %q: %v: %s", args, err, out)
	}
	return string(out)
}

// mainPID is that of the unit's process.
func (n *node) mainPID() int {
	n.t.Helper()
	pid, err := strconv.Atoi(strings.TrimSpace(n.systemctl("show", "--value", "--property=MainPID", n.unit)))
	if err != nil || pid == 0 {
		n.t.Fatalf("%s has no process: %v", n.unit, err)
	}
	return pid
}

var overall = regexp.MustCompile(`Overall exposure level for \S+: ([0-9.]+)`)

// exposure is systemd's rating of the unit.
func (n *node) exposure() float64 {
	n.t.Helper()
	out, err := exec.Command("systemd-analyze", "security", "--no-pager", n.unit).CombinedOutput()
	if err != nil {
		n.t.Fatalf("systemd-analyze security: %v: %s", err, out)
	}
	found := overall.FindSubmatch(out)
	if found == nil {
		n.t.Fatalf("systemd-analyze security says nothing of it: %s", out)
	}
	exposure, err := strconv.ParseFloat(string(found[1]), 64)
	if err != nil {
		n.t.Fatal(err)
	}
	return exposure
}

// noRefusal stands for a drop-in without which berthd starts, too.
const noRefusal = "no refusal"

const unitDir = "/run/systemd/system"

// dropIn puts a file that changes the unit beside it.
func (n *node) dropIn(name string) {
	n.t.Helper()
	text, err := os.ReadFile(filepath.Join(os.Getenv(deployVariable), "systemd/drop-ins", name))
	if err != nil {
		n.t.Fatal(err)
	}
	n.put(filepath.Join(unitDir, n.unit+".d", name), string(text))
	n.systemctl("daemon-reload")
}

// put writes a file that goes with the test.
func (n *node) put(path, text string) {
	n.t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		n.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { _ = os.Remove(path) })
}

// underUnit installs the unit, with this binary as the program, and makes a node of which it
// runs the daemons.
func underUnit(t *testing.T, deploy string, driver cgroup.Driver, config string) *node {
	t.Helper()
	n := newNode(t)
	n.needKernel()
	n.root, n.driver, n.unit = "/var/lib/kubelet", driver, "berthd.service"
	t.Cleanup(func() {
		_ = exec.Command("systemctl", "stop", n.unit).Run()
		if t.Failed() {
			out, _ := exec.Command("journalctl", "--no-pager", "--lines=40", "-u", n.unit).CombinedOutput()
			t.Logf("%s", out)
		}
		_ = exec.Command("systemctl", "reset-failed", n.unit).Run()
		_ = os.RemoveAll("/var/lib/berth")
	})
	unit, err := os.ReadFile(filepath.Join(deploy, "systemd", n.unit))
	if err != nil {
		t.Fatal(err)
	}
	n.put(filepath.Join(unitDir, n.unit), string(unit))
	n.put(filepath.Join(unitDir, n.unit+".d", "program.conf"),
		fmt.Sprintf("[Unit]\nStartLimitIntervalSec=0\n[Service]\nExecStart=\nExecStart=%s --config /etc/berth/berthd.yaml\nEnvironment=%s=1\n", os.Args[0], asDaemon))
	text := fmt.Sprintf("apiVersion: config.berthd.github.io/v1alpha1\nkind: BerthConfiguration\ncpu: {policy: static}\nreserved: {cpus: \"0\"}\ntopology: {policy: best-effort}\n"+
		"cgroups: {root: /%s, driver: %s}\n", n.cgroup, driver)
	if !strings.Contains(config, "node:") {
		text += "node: {nodeFit: false}\n"
	}
	n.put("/etc/berth/berthd.yaml", text+config)
	out, err := exec.Command("systemd-tmpfiles", "--create", filepath.Join(deploy, "tmpfiles.d/berth.conf")).CombinedOutput()
	if err != nil {
		t.Fatalf("systemd-tmpfiles: %v: %s", err, out)
	}
	n.systemctl("daemon-reload")
	return n
}

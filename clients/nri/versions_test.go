package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/berthd/berth/clients/berth"
	"github.com/berthd/berth/hack/testing/nodetest"
)

// daemon is berthd alone: the tests with runtimes of several versions need no other program.
var daemon = nodetest.NewPrograms(map[string]string{"berthd": "server/berthd"})

// newestNRI is the version of go.mod of hack/nriruntime.
const newestNRI = "0.12.3"

// TestNRIVersions: runtimes with several versions of NRI start and end containers in four workers at once, with the real berthd and
// berth-nri. All pods run, none on the CPUs of another one, and nothing is requested from a runtime that may not survive it. At the end
// the containers get all CPUs back.
func TestNRIVersions(t *testing.T) {
	t.Parallel()
	if runtime.NumCPU() < 2 {
		t.Skipf("needs 2 CPUs, one of them for the system; here are %d", runtime.NumCPU())
	}
	for _, row := range []struct {
		nri, name, version string
		flags              []string
		requests           bool
	}{
		{nri: "0.8.0", name: "containerd", version: "v1.7.35"},
		{nri: "0.10.0", name: "containerd", version: "v2.2.0"},
		{nri: "0.11.0", name: "containerd", version: "v2.2.9"},
		{nri: "0.11.0", name: "unknown", version: "1"},
		{nri: "0.12.0", name: "containerd", version: "v2.3.7"},
		{nri: newestNRI, name: "containerd", version: "v2.4.2", requests: true},
		{nri: newestNRI, name: "containerd", version: "v2.4.2", flags: []string{"--unsolicited-updates=never"}},
	} {
		t.Run(strings.Join(append([]string{row.nri, row.name}, row.flags...), " "), func(t *testing.T) {
			n := newVersionNode(t, row.nri)
			n.start(row.name, row.version, row.requests, row.flags)
			report := n.report()
			t.Logf("%+v", report)
			if want := (versionRounds+1)*4 + 1; report.Pods != want || len(report.Overlaps) > 0 {
				t.Errorf("%d of %d pods ran, overlaps %q", report.Pods, want, report.Overlaps)
			}
			// Where updates are requested, containers grow by them. An answer has one only if a container takes CPUs of those that run.
			if requested := report.Unsolicited > 0; requested != row.requests || !row.requests && report.Answered == 0 {
				t.Errorf("%d updates were requested and %d were in answers", report.Unsolicited, report.Answered)
			}
			if err := n.plugin.End(os.Interrupt); err != nil {
				t.Errorf("berth-nri ended: %v", err)
			}
			all := "0-" + strconv.Itoa(runtime.NumCPU()-1)
			for _, pid := range report.Left {
				if got := allowed(pid); got != all {
					t.Errorf("at the end process %d is on CPUs %s", pid, got)
				}
			}
			if len(report.Left) == 0 {
				t.Error("no container was left for the end")
			}
		})
	}
}

// versionRounds are the pods of each worker.
const versionRounds = 12

// versionReport is what hack/nriruntime prints.
type versionReport struct {
	Pods, Repeated, Unsolicited, Answered int
	Overlaps                              []string
	Left                                  []int
}

// versionNode is berthd, berth-nri and a made-up runtime.
type versionNode struct {
	t                       *testing.T
	dir, program            string
	berthd, runtime, plugin *nodetest.Process
	input                   io.Closer
}

func (n *versionNode) path(name string) string      { return filepath.Join(n.dir, name) }
func (n *versionNode) log(name string) nodetest.Log { return nodetest.Log(n.path(name + ".log")) }

// newVersionNode builds the runtime.
func newVersionNode(t *testing.T, nri string) *versionNode {
	t.Helper()
	// Paths of sockets are short (unix(7)), those of t.TempDir are not.
	dir, err := os.MkdirTemp("", "nri")
	if err != nil {
		t.Fatal(err)
	}
	n := &versionNode{t: t, dir: dir, program: filepath.Join(dir, "runtime")}
	t.Cleanup(n.clean)
	file := "go.mod"
	if nri != newestNRI {
		file = "nri-" + nri + ".mod"
	}
	build := exec.Command("go", "build", "-C", "../../hack/nriruntime", "-modfile", file, "-o", n.program)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if text, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build a runtime with NRI %s: %v: %s", nri, err, text)
	}
	return n
}

// start starts the programs.
func (n *versionNode) start(name, version string, requests bool, flags []string) {
	n.t.Helper()
	built, err := daemon.Dir()
	if err != nil {
		n.t.Fatal(err)
	}
	n.berthd = nodetest.Start(n.t, exec.Command(filepath.Join(built, "berthd"), "--root-dir", n.path("berthd"), "--beside", "kubelet",
		"--cpu-manager-policy", "static", "--reserved-cpus", "0"), n.log("berthd"))
	client, err := berth.Dial(n.t.Context(), n.path("berthd/berth.sock"), berth.Options{})
	if err == nil {
		defer client.Close()
		err = client.WaitReady(n.berthd.Context(n.t.Context()))
	}
	if err != nil {
		n.t.Fatal(err)
	}
	made := exec.Command(n.program, n.path("nri.sock"), name, version, strconv.Itoa(versionRounds), strconv.FormatBool(requests))
	if n.input, err = made.StdinPipe(); err != nil {
		n.t.Fatal(err)
	}
	n.runtime = nodetest.Start(n.t, made, n.log("runtime"))
	cmd := exec.Command(os.Args[0], append([]string{"--endpoint", n.path("berthd/berth.sock"), "--nri-socket", n.path("nri.sock"),
		"--pod-resources", "", "--pods-api", "", "--cgroups", "", "--service-account", "", "--release-at-end", "always", "--log-level",
		"debug"}, flags...)...)
	cmd.Env = append(os.Environ(), asPlugin+"=1")
	n.plugin = nodetest.Start(n.t, cmd, n.log("berth-nri"))
}

// report waits for the runtime's report.
func (n *versionNode) report() (out versionReport) {
	n.t.Helper()
	nodetest.Eventually(n.t, timeout, "all pods have run", func() bool {
		select {
		case <-n.runtime.Ended:
			n.t.Fatal("the runtime has ended")
		default:
		}
		for line := range strings.Lines(n.log("runtime").String()) {
			if json.Unmarshal([]byte(line), &out) == nil {
				return true
			}
		}
		return false
	})
	return out
}

// clean ends everything.
func (n *versionNode) clean() {
	if n.t.Failed() {
		for _, name := range []string{"runtime", "berthd", "berth-nri"} {
			text := n.log(name).String()
			n.t.Logf("%s:\n%s", name, text[max(0, len(text)-6000):])
		}
	}
	var err error
	if n.input != nil {
		err = n.input.Close() // the runtime and its containers end
	}
	for _, p := range []*nodetest.Process{n.plugin, n.runtime, n.berthd} {
		if p != nil {
			_ = p.End(os.Kill)
		}
	}
	if err := cmp.Or(err, errors.Join(os.RemoveAll(n.dir))); err != nil {
		n.t.Error(err)
	}
}

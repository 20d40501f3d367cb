package installtest

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	"github.com/berthd/berth/clients/berth"
	"github.com/berthd/berth/hack/testing/nodetest"
	"github.com/berthd/berth/hack/vm/job"
	"github.com/berthd/berth/managers/cpuset"
)

// packagesVariable names a folder with the packages, on a machine that this test may change: test.sh boots one.
const packagesVariable = "BERTH_TEST_PACKAGES"

// repositoryVariable names a folder that is an apt repository with two versions of the packages, which hack/apt.sh has made.
const repositoryVariable = "BERTH_TEST_REPOSITORY"

// imageVariable names a folder with the root file system of the pods.
const imageVariable = "BERTH_TEST_IMAGE"

// briefVariable is set where the package is not upgraded and downgraded under load: on a machine that is too slow for it.
const briefVariable = "BERTH_TEST_BRIEF"

const timeout = 2 * time.Minute

// The pods of the machine. Their program is a test program of berth.
const (
	shared = `apiVersion: v1
kind: Pod
metadata: {name: shared}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: main, image: IMAGE, command: [/probe, wait]}]
`
	exclusive = `apiVersion: v1
kind: Pod
metadata: {name: exclusive}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: main, image: IMAGE, command: [/probe, wait], resources: {limits: {cpu: 2, memory: 64Mi}}}]
`
	configuration = `apiVersion: config.berthd.github.io/v1alpha1
kind: BerthConfiguration
cpu: {policy: static}
reserved: {cpus: "0"}
topology: {policy: best-effort}
cgroups: {driver: systemd}
node: {nodeFit: false}
`
)

// machine is the one that the package is installed on.
type machine struct {
	t           *testing.T
	repository  string
	image, disk string
}

// newer is the version that test.sh makes beside the one of this source.
const newer = "99.0.0-1"

// packages are those that hack/package.sh makes.
var packages = []string{"berthd", "berth-client", "berth-kubernetes", "berthlet"}

// TestPackage installs the packages, runs pods, upgrades and downgrades it under load, reboots, removes it, installs it again and
// purges it: no pod loses its process or its CPUs but by the reboot, no call is refused, and nothing is left in the end.
func TestPackage(t *testing.T) {
	repository := os.Getenv(repositoryVariable)
	if repository == "" {
		t.Skipf("%s is not set: this test installs packages, in the virtual machine of test.sh", repositoryVariable)
	}
	m := &machine{t: t, repository: repository, image: os.Getenv(imageVariable), disk: "/mnt/disk"}
	t.Cleanup(m.onFailure)
	m.keep()
	if os.Getenv(job.LastEnv) == "" {
		m.firstBoot()
		return
	}
	m.lastBoot()
}

// onFailure prints the logs and the pods if the test has failed.
func (m *machine) onFailure() {
	if !m.t.Failed() {
		return
	}
	for _, args := range [][]string{{"journalctl", "--no-pager", "--lines=60", "-u", "berthd", "-u", "berthlet"}, {"berthlet", "status"},
		{"berthctl", "get", "containers"}} {
		out, _ := exec.Command(args[0], args[1:]...).CombinedOutput()
		m.t.Logf("%s", out)
	}
}

// unpacked makes what dpkg needs, because the VM's packages were unpacked without it.
func (m *machine) unpacked() {
	for _, dir := range []string{"info", "updates", "triggers"} {
		must(m.t, os.MkdirAll("/var/lib/dpkg/"+dir, 0o755))
	}
	must(m.t, os.WriteFile("/var/lib/dpkg/info/libc6.list", nil, 0o644))
	must(m.t, os.WriteFile("/var/lib/dpkg/status",
		[]byte("Package: libc6\nStatus: install ok installed\nMaintainer: Debian\nVersion: 2.36\nArchitecture: "+runtime.GOARCH+
			"\nDescription: C library\n\n"), 0o644))
}

// keep puts the folders that an installation changes on the disk, where they outlive the machine.
func (m *machine) keep() {
	must(m.t, os.MkdirAll(m.disk, 0o755))
	must(m.t, unix.Mount(os.Getenv(job.DiskEnv), m.disk, "ext4", 0, ""))
	for _, dir := range []string{"usr", "etc"} {
		upper, work := filepath.Join(m.disk, dir, "upper"), filepath.Join(m.disk, dir, "work")
		must(m.t, os.MkdirAll(upper, 0o755))
		must(m.t, os.MkdirAll(work, 0o755))
		must(m.t, unix.Mount("overlay", "/"+dir, "overlay", 0, fmt.Sprintf("lowerdir=/%s,upperdir=%s,workdir=%s", dir, upper, work)))
	}
	// Containers have overlays below /var, which cannot be on an overlay.
	folder := filepath.Join(m.disk, "var")
	if _, err := os.Stat(folder); err != nil {
		must(m.t, os.CopyFS(folder, os.DirFS("/var")))
	}
	must(m.t, unix.Mount(folder, "/var", "", unix.MS_BIND, ""))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// run runs a program that has to succeed, and gives its output.
func (m *machine) run(name string, args ...string) string {
	m.t.Helper()
	out, err := m.try(name, args...)
	if err != nil {
		m.t.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
	return out
}

func (m *machine) try(name string, args ...string) (string, error) {
	out, err := exec.CommandContext(m.t.Context(), name, args...).CombinedOutput()
	return string(out), err
}

// eventually waits for a state of the machine.
func (m *machine) eventually(what string, done func() bool) {
	m.t.Helper()
	nodetest.Eventually(m.t, timeout, what, done)
}

// pods waits until all pods run, and gives their CPUs and the processes of their containers.
func (m *machine) pods() (cpus string, processes []int) {
	m.t.Helper()
	var status struct {
		Pods []struct {
			Name              string
			ContainerStatuses []struct {
				State struct{ Running *struct{ PID int } }
			}
		}
	}
	m.eventually("all pods run", func() bool {
		out, err := m.try("berthlet", "status", "-o", "json")
		if err != nil || json.Unmarshal([]byte(out), &status) != nil || len(status.Pods) != 2 {
			return false
		}
		processes = nil
		for _, p := range status.Pods {
			for _, c := range p.ContainerStatuses {
				// After a reboot the status is of the boot before until berthlet has looked.
				if c.State.Running == nil || unix.Kill(c.State.Running.PID, 0) != nil {
					return false
				}
				processes = append(processes, c.State.Running.PID)
			}
		}
		return len(processes) == 2
	})
	slices.Sort(processes)
	return m.run("berthctl", "get", "containers", "--no-headers", "--wait-ready"), processes
}

// same compares the pods with those before.
func (m *machine) same(after, cpus string, processes []int) {
	m.t.Helper()
	nowCPUs, nowProcesses := m.pods()
	if nowCPUs != cpus || processes != nil && !slices.Equal(nowProcesses, processes) {
		m.t.Errorf("after %s the pods have\n%swith the processes %v; before\n%swith %v", after, nowCPUs, nowProcesses, cpus, processes)
	}
	m.run("berthctl", "ledger", "check")
}

// manifest adds a pod.
func (m *machine) manifest(name, text string) {
	m.t.Helper()
	must(m.t, os.WriteFile("/etc/berth/manifests/"+name+".yaml", []byte(strings.ReplaceAll(text, "IMAGE", m.image)), 0o644))
}

// repositoryFiles are where a machine says that it uses a repository, and whose signature it trusts.
var repositoryFiles = []string{"/etc/apt/sources.list.d/berth.list", "/etc/apt/keyrings/berth.gpg"}

// useRepository makes the machine use the repository, as its owner would. Packages that are signed by nobody else are not installed.
func (m *machine) useRepository() {
	m.t.Helper()
	for _, dir := range []string{"/etc/apt/sources.list.d", "/etc/apt/keyrings", "/etc/apt/apt.conf.d", "/etc/apt/preferences.d",
		"/etc/apt/trusted.gpg.d", "/var/lib/apt/lists/partial", "/var/cache/apt/archives/partial", "/var/log/apt"} {
		must(m.t, os.MkdirAll(dir, 0o755))
	}
	list := fmt.Sprintf("deb [signed-by=%s] file://%s stable main\n", repositoryFiles[1], m.repository)
	must(m.t, os.WriteFile(repositoryFiles[0], []byte(list), 0o644))
	must(m.t, os.WriteFile(repositoryFiles[1], nil, 0o644))
	if out, err := m.try("apt-get", "update"); err == nil && !strings.Contains(out, "signatures couldn't be verified") {
		m.t.Errorf("a repository is used although nobody is trusted:\n%s", out)
	}
	key, err := os.ReadFile(filepath.Join(m.repository, "berth.gpg"))
	must(m.t, err)
	must(m.t, os.WriteFile(repositoryFiles[1], key, 0o644))
	m.run("apt-get", "update", "--error-on=any")
}

// apt changes packages, all at once. A version of "" is the one of this source.
func (m *machine) apt(verb, version string) {
	m.t.Helper()
	args := []string{verb, "--yes", "--no-install-recommends", "--allow-downgrades"}
	for _, name := range packages {
		if verb == "install" {
			name += "=" + cmp.Or(version, m.older())
		}
		args = append(args, name)
	}
	m.t.Logf("apt-get %s\n%s", verb, m.run("apt-get", args...))
}

// older is the version of this source, the other one in the repository.
func (m *machine) older() (version string) {
	m.t.Helper()
	for line := range strings.Lines(m.run("apt-cache", "madison", packages[0])) {
		if fields := strings.Fields(line); len(fields) > 2 && fields[2] != newer {
			version = fields[2]
		}
	}
	if version == "" {
		m.t.Fatal("the repository has no other version than " + newer)
	}
	return version
}

func (m *machine) firstBoot() {
	t := m.t
	m.unpacked()
	m.useRepository()
	m.apt("install", "")
	if out, _ := m.try("systemctl", "is-active", "berthd", "berthlet", "berthd.socket"); strings.Contains(out, "\nactive") ||
		strings.HasPrefix(out, "active") {
		t.Errorf("an installation starts services: %s", out)
	}
	groups, err := os.ReadFile("/etc/group")
	must(t, err)
	if !strings.Contains(string(groups), "\nberth:") {
		t.Errorf("there is no group berth: %s", groups)
	}
	must(t, os.WriteFile("/etc/berth/berthd.yaml", []byte(configuration), 0o644))
	t.Log(m.run("berthd", "config", "validate", "--config", "/etc/berth/berthd.yaml"))
	m.run("systemctl", "enable", "--now", "berthd", "berthlet")
	m.run("berthctl", "get", "node", "--wait-ready")
	m.manifest("shared", shared)
	m.manifest("exclusive", exclusive)
	cpus, processes := m.pods()
	t.Logf("pods:\n%s", cpus)
	if out := m.run("berthlet", "exec", "exclusive", "--", "/probe", "print", "inside"); out != "inside\n" {
		t.Errorf("exec: %q", out)
	}
	m.exclusiveCPUs()

	m.run("systemctl", "restart", "berthd", "berthlet")
	m.same("a restart", cpus, processes)
	if os.Getenv(briefVariable) == "" {
		m.changedUnderLoad(cpus, processes)
	}

	// As a shutdown does.
	must(t, os.WriteFile(filepath.Join(m.disk, "cpus"), []byte(cpus), 0o644))
	m.run("systemctl", "stop", "berthlet.service", "berthd.socket", "berthd.service")
	unix.Sync()
}

// changedUnderLoad upgrades and downgrades the package.
func (m *machine) changedUnderLoad(cpus string, processes []int) {
	t := m.t
	for _, step := range []struct {
		what, version string
	}{{"an upgrade", newer}, {"a downgrade", ""}} {
		calls, refused := m.underLoad(func() { m.apt("install", step.version) })
		t.Logf("%s: %d calls, %d refused", step.what, calls, refused)
		if refused > 0 {
			t.Errorf("%s: %d calls of %d were refused", step.what, refused, calls)
		}
		m.same(step.what, cpus, processes)
		if text, err := os.ReadFile("/etc/berth/berthd.yaml"); err != nil || string(text) != configuration {
			t.Errorf("after %s the configuration is %q, %v", step.what, text, err)
		}
	}
}

// exclusiveCPUs: a runtime gets the CPUs that berthd has assigned, and readers of the kubelet's socket see the same ones.
func (m *machine) exclusiveCPUs() {
	t := m.t
	const socket = "unix:///var/lib/kubelet/pod-resources/kubelet.sock"
	conn, err := grpc.NewClient(socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(t, err)
	defer func() { _ = conn.Close() }()
	pod, err := podresources.NewPodResourcesListerClient(conn).Get(t.Context(),
		&podresources.GetPodResourcesRequest{PodName: "exclusive", PodNamespace: "default"})
	must(t, err)
	var read cpuset.Builder
	for _, id := range pod.GetPodResources().GetContainers()[0].GetCpuIds() {
		read.Add(int(id))
	}
	allocated := m.run("berthctl", "allocate", "exclusive", "main")
	if words := strings.Join(strings.Fields(allocated), " "); read.Len() != 2 ||
		!strings.HasPrefix(words, fmt.Sprintf("CPUs: %s (its own) ", read.Set())) {
		t.Errorf("podresources has the CPUs %s of a pod with 2; a runtime gets\n%s", read.Set(), allocated)
	}
}

// underLoad does something while two callers call without a pause, one of them with a new connection for each call.
func (m *machine) underLoad(do func()) (calls, refused int64) {
	ctx, stop := context.WithCancel(m.t.Context())
	var callers sync.WaitGroup
	var made, failed atomic.Int64
	one, err := berth.Dial(ctx, "", berth.Options{})
	must(m.t, err)
	defer func() { _ = one.Close() }()
	for _, fresh := range []bool{false, true} {
		callers.Go(func() {
			for ctx.Err() == nil {
				client := one
				if fresh {
					if client, err = berth.Dial(ctx, "", berth.Options{}); err != nil {
						m.t.Error(err)
						return
					}
				}
				bounded, cancel := context.WithTimeout(ctx, timeout)
				_, err := client.Allocation().List(bounded, &allocationv1.ListRequest{})
				cancel()
				if fresh {
					_ = client.Close()
				}
				if ctx.Err() != nil {
					return
				}
				if made.Add(1); err != nil {
					failed.Add(1)
					m.t.Log(err)
				}
			}
		})
	}
	do()
	// Calls after the new berthd has begun count, too.
	after := made.Load() + 4
	m.eventually("calls are answered", func() bool { return made.Load() >= after })
	stop()
	callers.Wait()
	return made.Load(), failed.Load()
}

func (m *machine) lastBoot() {
	t := m.t
	before, err := os.ReadFile(filepath.Join(m.disk, "cpus"))
	must(t, err)
	// What is enabled starts: with the folders from the disk, which a real machine has from the beginning.
	m.run("systemctl", "daemon-reload")
	m.run("systemctl", "start", "multi-user.target")
	m.same("a reboot", string(before), nil)
	t.Log("the pods run again after a reboot")

	cpus, processes := m.pods()
	m.apt("remove", "")
	for _, path := range []string{"/usr/bin/berthd", "/usr/lib/systemd/system/berthd.service",
		"/etc/systemd/system/multi-user.target.wants/berthd.service", "/etc/systemd/system/sockets.target.wants/berthd.socket"} {
		if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("after the removal there is %s: %v", path, err)
		}
	}
	for _, path := range []string{"/var/lib/berth/ledger.db", "/etc/berth/berthd.yaml", "/etc/berth/manifests/shared.yaml"} {
		if _, err := os.Lstat(path); err != nil {
			t.Errorf("the removal takes %s away: %v", path, err)
		}
	}
	for _, pid := range processes {
		if err := unix.Kill(pid, 0); err != nil {
			t.Errorf("the removal ends process %d of a pod: %v", pid, err)
		}
	}
	t.Log("removed")
	m.apt("install", newer)
	m.run("systemctl", "enable", "--now", "berthd", "berthlet")
	m.same("a removal and another installation", cpus, processes)

	must(t, os.Remove("/etc/berth/manifests/shared.yaml"))
	must(t, os.Remove("/etc/berth/manifests/exclusive.yaml"))
	m.eventually("the pods are gone", func() bool {
		out, err := m.try("berthctl", "get", "pods", "-o", "name")
		return err == nil && out == ""
	})
	t.Log("installed again, and the pods are gone")
	m.apt("purge", "")
	for _, path := range repositoryFiles {
		must(t, os.Remove(path))
	}
	m.nothingLeft()
}

// nothingLeft looks for what a purge leaves.
func (m *machine) nothingLeft() {
	t := m.t
	// The group stays, as documented, and dpkg's own files have the name in them.
	for _, top := range []string{"/etc", "/usr", "/var", "/run"} {
		_ = filepath.WalkDir(top, func(path string, d os.DirEntry, err error) error {
			if err != nil {
				return nil
			}
			if name := d.Name(); (strings.HasPrefix(name, "berth") && path != "/etc/systemd/system/berth.service" || name == "kubelet") &&
				!strings.Contains(path, "/systemd/units/") {
				t.Errorf("the purge leaves %s", path)
			}
			return nil
		})
	}
	for _, name := range []string{"kubepods", "kubepods.slice"} {
		if left := nodetest.Cgroups("/" + name); len(left) > 0 {
			t.Errorf("the purge leaves cgroups: %q", left)
		}
	}
	processes, err := filepath.Glob("/proc/[0-9]*/exe")
	must(t, err)
	for _, path := range processes {
		if target, err := os.Readlink(path); err == nil && (strings.Contains(target, "/usr/bin/berth") ||
			strings.HasSuffix(target, "/probe")) {
			t.Errorf("the purge leaves process %s: %s", path, target)
		}
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	must(t, err)
	if strings.Contains(string(mounts), "berthlet") {
		t.Errorf("the purge leaves mounts: %s", mounts)
	}
}

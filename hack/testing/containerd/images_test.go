package containerd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/berthd/berth/clients/berth"
	"github.com/berthd/berth/hack/testing/nodetest"
)

// ImagesVariable is the environment variable that names the folder of what make image has
// built.
const ImagesVariable = "BERTH_IMAGES"

// images is a containerd that has berth's images.
type images struct {
	t    *testing.T
	d    *Daemon
	ctx  context.Context
	name map[string]string // of the image, by program
	dir  string            // which containers see too, at the same path
}

// newImages imports the images of this machine's architecture into a containerd.
func newImages(t *testing.T) *images {
	t.Helper()
	built := os.Getenv(ImagesVariable)
	if built == "" {
		t.Skipf("needs images: %s names the folder that make image has written to", ImagesVariable)
	}
	d := Run(t)
	// What is started is also ended with it, after the test's own context.
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	t.Cleanup(cancel)
	// Paths of sockets are short (unix(7)), those of t.TempDir are not.
	dir, err := os.MkdirTemp("", "img")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(nodetest.RemoveCgroups(ctx, "/"+filepath.Base(dir)), os.RemoveAll(dir)); err != nil {
			t.Error(err)
		}
	})
	i := &images{t: t, d: d, ctx: ctx, name: map[string]string{}, dir: dir}
	for _, program := range []string{"berthd", "berth-nri", "berth-dra", "berthlet"} {
		files, err := filepath.Glob(filepath.Join(built, program+"-[0-9]*.oci.tar"))
		if err != nil || len(files) != 1 {
			t.Fatalf("%s has %v, %v: expected one image of %s", built, files, err, program)
		}
		out, err := i.ctr("images", "import", "--local", files[0]).CombinedOutput()
		if err != nil {
			t.Fatalf("import %s: %v: %s", files[0], err, out)
		}
		version := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(files[0]), program+"-"), ".oci.tar")
		i.name[program] = "localhost/berth/" + program + ":" + version
	}
	return i
}

// id names a container: runc knows those of all containerds of the machine.
func (i *images) id(program string) string { return filepath.Base(i.dir) + "-" + program }

// ctr is a command of containerd's client. The containers here are not the runtime
// interface's, so only these tests read them.
func (i *images) ctr(args ...string) *exec.Cmd {
	return exec.CommandContext(i.ctx, filepath.Join(i.d.programs, "ctr"),
		append([]string{"--address", i.d.Socket, "--namespace", "images"}, args...)...)
}

// start runs a program in a container that sees what a program on the machine would see of
// processes, cgroups and this test's folders. It ends before the test does.
func (i *images) start(program string, args ...string) (*nodetest.Process, nodetest.Log) {
	i.t.Helper()
	log := nodetest.Log(filepath.Join(i.dir, program+".log"))
	self := fmt.Sprintf("/proc/%d/ns/", os.Getpid())
	command := []string{
		"run", "--rm", "--privileged", "--net-host",
		"--with-ns", "pid:" + self + "pid", "--with-ns", "cgroup:" + self + "cgroup",
		"--mount", "type=bind,src=/sys/fs/cgroup,dst=/sys/fs/cgroup,options=rbind:rw",
	}
	for _, dir := range []string{i.dir, i.d.dir} {
		command = append(command, "--mount", fmt.Sprintf("type=bind,src=%s,dst=%s,options=rbind:rw", dir, dir))
	}
	p := nodetest.Start(i.t, i.ctr(append(append(command, i.name[program], i.id(program), "/usr/bin/"+program), args...)...), log)
	i.t.Cleanup(func() {
		if err := p.End(syscall.SIGTERM); err != nil {
			i.t.Errorf("%s ended: %v", program, err)
		}
		if i.t.Failed() {
			i.t.Logf("%s:\n%s", program, log)
		}
	})
	return p, log
}

// until waits for a condition, while a program runs.
func (i *images) until(what string, p *nodetest.Process, done func() bool) {
	i.t.Helper()
	err := nodetest.Await(i.ctx, func() bool {
		select {
		case <-p.Ended:
			return true
		default:
			return done()
		}
	})
	if err != nil || !done() {
		i.t.Fatalf("%s: %v", what, err)
	}
}

// berthd runs berthd in a container until it is ready.
func (i *images) berthd(flags ...string) *berth.Client {
	i.t.Helper()
	root := filepath.Join(i.dir, "root")
	client, err := berth.Dial(i.ctx, filepath.Join(root, "berth.sock"), berth.Options{})
	if err != nil {
		i.t.Fatal(err)
	}
	i.t.Cleanup(func() { _ = client.Close() })
	p, _ := i.start("berthd", append([]string{
		"--root-dir", root, "--cgroup-root", "/" + filepath.Base(i.dir), "--node-fit=false", "--fail-swap-on=false",
		"--cpu-manager-policy", "static", "--reserved-cpus", "0",
	}, flags...)...)
	i.until("berthd is ready", p, func() bool {
		ctx, cancel := context.WithTimeout(i.ctx, timeout)
		defer cancel()
		go func() {
			select {
			case <-p.Ended:
				cancel()
			case <-ctx.Done():
			}
		}()
		return client.WaitReady(ctx) == nil
	})
	return client
}

// TestContainerdImageVersions: each program runs from its image and is that of the image's name.
func TestContainerdImageVersions(t *testing.T) {
	t.Parallel()
	i := newImages(t)
	for program, name := range i.name {
		out, err := i.ctr("run", "--rm", name, i.id(program), "/usr/bin/"+program, "--version").CombinedOutput()
		_, version, _ := strings.Cut(filepath.Base(name), ":")
		if err != nil || !strings.Contains(string(out), program+" version "+version+", ") {
			t.Errorf("%s: %q, %v", name, out, err)
		}
	}
}

// TestContainerdImagesRunPods: berthd and berthlet in containers of their images run a pod on
// the containerd that they are containers of.
func TestContainerdImagesRunPods(t *testing.T) {
	t.Parallel()
	i := newImages(t)
	runtime := "unix://" + i.d.Socket
	i.berthd("--runtime-endpoint", runtime)
	manifests := filepath.Join(i.dir, "manifests")
	if err := os.Mkdir(manifests, 0o755); err != nil {
		t.Fatal(err)
	}
	pod := "apiVersion: v1\nkind: Pod\nmetadata: {name: web, uid: web}\nspec:\n  hostNetwork: true\n  containers:\n" +
		"  - {name: main, image: " + ProbeImage +
		", imagePullPolicy: Never, command: [/probe, wait], resources: {limits: {cpu: 1, memory: 64Mi}}}\n"
	if err := os.WriteFile(filepath.Join(manifests, "web.yaml"), []byte(pod), 0o644); err != nil {
		t.Fatal(err)
	}
	state := filepath.Join(i.dir, "state")
	p, _ := i.start("berthlet", "--endpoint", filepath.Join(i.dir, "root", "berth.sock"), "--manifests", manifests,
		"--state-dir", state, "--pod-logs-dir", filepath.Join(i.dir, "logs"), "--runtime-endpoint", runtime)
	i.until("the pod runs", p, func() bool {
		text, _ := os.ReadFile(filepath.Join(state, "status.json"))
		return strings.Contains(string(text), `"phase":"Running"`) || strings.Contains(string(text), `"phase": "Running"`)
	})
	if err := os.Remove(filepath.Join(manifests, "web.yaml")); err != nil {
		t.Fatal(err)
	}
	i.until("the pod is gone", p, func() bool {
		text, _ := os.ReadFile(filepath.Join(state, "status.json"))
		return !strings.Contains(string(text), "web")
	})
}

// TestContainerdImagesNRI: berth-nri in a container of its image connects berthd with the
// containerd that it is a container of.
func TestContainerdImagesNRI(t *testing.T) {
	t.Parallel()
	i := newImages(t)
	if i.d.NoNRI {
		t.Skip("needs containerd 1.7 or later: older ones have no plugins of NRI")
	}
	i.berthd("--cgroup-tree", "memory", "--devices-elsewhere", "*")
	p, log := i.start("berth-nri", "--endpoint", filepath.Join(i.dir, "root", "berth.sock"), "--nri-socket", i.d.NRI, "--pod-resources",
		"", "--log-level", "debug")
	i.until("the runtime has called the plugin", p, func() bool { return strings.Contains(log.String(), "onfigur") })
}

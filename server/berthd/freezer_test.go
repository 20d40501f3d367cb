package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	inspectv1 "github.com/berthd/berth/api/berth/inspect/v1"
	lifecyclev1 "github.com/berthd/berth/api/berth/lifecycle/v1"
)

// freeze stops or continues what runs in one of the node's cgroups, as anybody may.
// What a test that fails leaves frozen could not even be killed.
func (n *node) freeze(cgroup string, frozen bool) {
	n.t.Helper()
	path, _ := n.file(cgroup, "freezer.state", "cgroup.freeze")
	texts := map[bool]string{true: "FROZEN", false: "THAWED"}
	if filepath.Base(path) == "cgroup.freeze" {
		texts = map[bool]string{true: "1", false: "0"}
	}
	if err := os.WriteFile(path, []byte(texts[frozen]), 0); err != nil {
		n.t.Fatal(err)
	}
	if frozen {
		n.t.Cleanup(func() { _ = os.WriteFile(path, []byte(texts[false]), 0) })
	}
}

// frozen reports whether a cgroup is stopped by its own freezer or one above.
func (n *node) frozen(cgroup string) bool {
	n.t.Helper()
	path, text := n.file(cgroup, "freezer.state", "cgroup.events")
	if filepath.Base(path) == "cgroup.events" {
		return strings.Contains(text, "frozen 1")
	}
	return text != "THAWED"
}

// TestFrozenCgroups: what a removal leaves that was killed half way, what a container
// is paused with, and a freeze above all pods.
func TestFrozenCgroups(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.needKernel()
	if _, err := os.Stat(cgroupMount + "/cgroup.controllers"); err != nil {
		if _, err := os.Stat(cgroupMount + "/freezer"); err != nil {
			t.Skipf("no freezer: %v", err)
		}
	}
	file := filepath.Join(n.root, "berth.yaml")
	text := "apiVersion: config.berthd.github.io/v1alpha1\nkind: BerthConfiguration\ncgroups: {reconcilePeriod: 200ms}\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	d := n.start("--config", file)
	for _, uid := range []string{"a", "b"} {
		d.admitted(burstable(uid))
		p := n.stopped()
		d.run(p, uid, "main", "c-"+uid)
		p.works()
	}
	const pods, pod, container = "kubepods", "kubepods/burstable/poda", "kubepods/burstable/poda/main"

	// A removal on v1 freezes and takes the right to fork, before it kills.
	d.kill()
	for _, cgroup := range []string{container, pod} {
		n.freeze(cgroup, true)
		limit, _ := n.file(cgroup, "pids.max")
		if err := os.WriteFile(limit, []byte("0"), 0); err != nil {
			t.Fatal(err)
		}
	}
	d = n.start("--config", file)
	d.eventually("what was left frozen goes on", func() bool { return !n.frozen(container) })
	for _, cgroup := range []string{container, pod} {
		n.freeze(cgroup, true)
	}
	p := n.stopped()
	d.run(p, "a", "main", "c-again")
	p.works()
	for _, cgroup := range []string{container, pod} {
		if _, pids := n.file(cgroup, "pids.max"); pids == "0" {
			t.Errorf("no process may be started in %s", cgroup)
		}
	}

	// A paused container does not block the removal of its pod.
	n.freeze("kubepods/burstable/podb/main", true)
	d.remove("b")

	// Nothing is started where nothing runs.
	n.freeze(pods, true)
	d.admitted(burstable("c"))
	start := func() error {
		_, err := d.lifecycle.PreStartContainer(d.ctx(), &lifecyclev1.PreStartContainerRequest{
			PodUid: "c", ContainerName: "main", ContainerId: "c-c", Pid: int32(n.stopped().pid()),
		})
		return err
	}
	if err := start(); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), n.path(pods)+" is frozen") {
		t.Errorf("a container is started in a frozen cgroup: %v", err)
	}
	d.eventually("the check finds it", func() bool {
		check, err := d.inspect.Check(n.ctx(), &inspectv1.CheckRequest{})
		return err == nil && len(check.GetFindings()) == 1 &&
			check.GetFindings()[0].GetKind() == inspectv1.FindingKind_FINDING_KIND_KERNEL &&
			strings.Contains(check.GetFindings()[0].GetText(), n.path(pods)+" is frozen")
	})
	n.freeze(pods, false)
	if err := start(); err != nil {
		t.Errorf("after the thaw: %v", err)
	}
	for _, uid := range []string{"a", "c"} {
		d.remove(uid)
	}
	d.eventually("the check finds nothing", func() bool {
		check, err := d.inspect.Check(n.ctx(), &inspectv1.CheckRequest{})
		return err == nil && len(check.GetFindings()) == 0
	})
}

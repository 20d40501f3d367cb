package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthd/berth/clients/berthctl/top"
	"github.com/berthd/berth/clients/internal/command"
	"github.com/berthd/berth/hack/testing/kubeletnode"
)

// runningPod is a pod of a node with its container's id.
const runningPod = `{"apiVersion": "v1", "kind": "List", "items": [{"apiVersion": "v1", "kind": "Pod",
	"metadata": {"name": "web", "namespace": "shop", "uid": "u-web"}, "spec": {"containers": [{"name": "app"}]},
	"status": {"phase": "Running", "startTime": "2026-01-02T03:04:05Z",
		"containerStatuses": [{"name": "app", "containerID": "containerd://c1", "state": {"running": {}}}]}}]}`

// TestTopKubelet: the usage of a kubelet's container is read from its cgroup, and a copy of a node's files has none.
func TestTopKubelet(t *testing.T) {
	t.Parallel()
	root := kubeletnode.New(t)
	top1 := []string{"top", "--once", "--interval", "500ms", "-o", "json", "--pods", "-", "--kubelet=" + root}
	if code, _, problems := ctl(t, runningPod, top1...); code != 1 || !strings.Contains(problems, "nothing runs below "+root) {
		t.Errorf("of a copy: %d, %s", code, problems)
	}
	const mount = "/sys/fs/cgroup"
	below := filepath.Join(root, mount)
	if err := errors.Join(os.MkdirAll(filepath.Dir(below), 0o755), os.Symlink(mount, below)); err != nil {
		t.Fatal(err)
	}
	if code, _, problems := ctl(t, runningPod, top1...); code != 1 || !strings.Contains(problems, "nothing runs below "+root) {
		t.Errorf("of a copy with a link to the cgroups of this machine: %d, %s", code, problems)
	}
	parent := fmt.Sprintf("berthctl-test-%d", os.Getpid())
	pod := filepath.Join(parent, "kubepods/besteffort/podu-web")
	trees := []string{mount}
	if _, err := os.Stat(filepath.Join(mount, "cgroup.controllers")); err != nil {
		trees = nil
		for _, controller := range []string{"cpu", "cpuacct", "memory"} {
			trees = append(trees, filepath.Join(mount, controller))
		}
	}
	cmd := exec.Command("sh", "-c", "while :; do :; done")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_, _ = cmd.Process.Kill(), cmd.Wait()
		for _, tree := range trees {
			for at := filepath.Join(pod, "c1"); at != "."; at = filepath.Dir(at) {
				_ = os.Remove(filepath.Join(tree, at))
			}
		}
	})
	for _, tree := range trees {
		at := tree
		for _, name := range strings.Split(filepath.Join(pod, "c1"), "/") {
			if tree == mount { // of version 2
				_ = os.WriteFile(filepath.Join(at, "cgroup.subtree_control"), []byte("+cpu +memory"), 0) // else a file is missing
			}
			if at = filepath.Join(at, name); os.MkdirAll(at, 0o755) != nil {
				t.Skipf("no cgroup can be made below %s", tree)
			}
		}
		if tree == mount {
			if _, err := os.Stat(filepath.Join(at, "memory.current")); err != nil {
				t.Skipf("the memory controller cannot be enabled here: %v", err)
			}
		}
		if err := os.WriteFile(filepath.Join(at, "cgroup.procs"), fmt.Append(nil, cmd.Process.Pid), 0); err != nil {
			t.Fatal(err)
		}
	}
	config := filepath.Join(root, "var/lib/kubelet/config.yaml")
	text, err := os.ReadFile(config)
	if err == nil {
		err = errors.Join(os.WriteFile(config, append(text, "cgroupDriver: cgroupfs\ncgroupRoot: /"+parent+"\n"...), 0o600),
			os.Remove(below), os.Mkdir(below, 0o755),
			os.WriteFile(filepath.Join(root, "proc/stat"), []byte("cpu0 1 0 0 1 0 0 0 0 0 0\n"), 0o600))
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(mount, below, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		t.Skipf("the cgroups cannot be mounted below another directory: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(below, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	code, out, problems := ctl(t, runningPod, top1...)
	var table top.Table
	if err := json.Unmarshal([]byte(out), &table); code != 0 || err != nil {
		t.Fatalf("%d, %v, %s%s", code, err, out, problems)
	}
	if table.Omitted > 0 || len(table.Rows) != 1 || table.Rows[0].Pod != "shop/web" || table.Rows[0].CPU == nil ||
		*table.Rows[0].CPU < 0.01 {
		t.Errorf("%s%s", out, problems)
	}
}

// TestFollowKubelet: a verb that goes on follows a kubelet's node.
func TestFollowKubelet(t *testing.T) {
	t.Parallel()
	root := kubeletnode.New(t)
	pod := strings.Replace(runningPod, `"name": "app"}]`, `"name": "app", "resources": {"limits": {"cpu": "2", "memory": "1Gi"}}}]`, 1)
	ctx, end := context.WithTimeout(t.Context(), time.Minute)
	defer end()
	in, out := io.Pipe()
	code := make(chan int, 1)
	var problems strings.Builder
	go func() {
		code <- run(ctx, command.Env{
			In: strings.NewReader(pod), Out: out, Err: &problems, Observe: observed, Check: checked, Now: time.Now,
			Getenv: func(string) string { return "" },
		}, []string{"watch", "--pods", "-", "--kubelet=" + root})
		_ = out.Close()
	}()
	lines := bufio.NewScanner(in)
	written := false
	for lines.Scan() {
		t.Log(lines.Text())
		switch line := lines.Text(); {
		case strings.Contains(line, "shop/web") && !written:
			written = true
			state := `{"policyName":"static","defaultCpuSet":"0,3-7","entries":{"u-web":{"app":"1-2"}},"checksum":0}`
			file := filepath.Join(root, "var/lib/kubelet/cpu_manager_state")
			if err := os.WriteFile(file, []byte(state), 0o600); err != nil {
				t.Fatal(err)
			}
		case strings.Contains(line, "1-2"):
			end()
		}
	}
	if got := <-code; got != 0 || !written {
		t.Errorf("watch ends with %d: %s", got, &problems)
	}
}

// TestConfigz: what the kubelet tells counts in place of its files.
func TestConfigz(t *testing.T) {
	t.Parallel()
	root := kubeletnode.New(t)
	file := filepath.Join(t.TempDir(), "configz.json")
	for _, row := range []struct {
		text string
		code int
		want string
	}{
		{`{"kubeletconfig": {"cpuManagerPolicy": "none", "topologyManagerPolicy": "best-effort"}}`, 0, "best-effort"},
		{`{"kind": "Status"}`, 1, "--configz " + file + ": expected a kubelet's answer to /configz, with kubeletconfig"},
		{`{"kubeletconfig": {"topologyManagerPolicy": "best"}}`, 1, "topology.policy: expected one of"},
	} {
		if err := os.WriteFile(file, []byte(row.text), 0o600); err != nil {
			t.Fatal(err)
		}
		code, out, problems := ctl(t, "", "policy", "get", "--configz", file, "--kubelet="+root)
		if code != row.code || !strings.Contains(out+problems, row.want) {
			t.Errorf("%s: %d, %s%s", row.text, code, out, problems)
		}
	}
	for args, want := range map[string]string{
		"get node --configz x":                            "add --kubelet",
		"get node --kubelet --pods - --configz -":         "standard input can be read once",
		"get node --kubelet=" + root + " --configz /none": "no such file",
	} {
		if code, _, problems := ctl(t, "", strings.Fields(args)...); code == 0 || !strings.Contains(problems, want) {
			t.Errorf("%s: %d, %s", args, code, problems)
		}
	}
}

package cluster_test

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/berthd/berth/hack/testing/nodetest"
)

// waitsVariable makes this program wait, in place of a cluster that stays.
const waitsVariable = "BERTH_UP_WAITS"

// TestUpEnds: a cluster that stays ends with up.sh if that is stopped before the cluster is ready, and with down.sh, by whatever path its
// directory is named.
func TestUpEnds(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("up.sh needs root")
	}
	for name, ready := range map[string]bool{"up.sh is stopped": false, "down.sh has another path": true} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			bin, link := filepath.Join(root, "bin"), filepath.Join(root, "link")
			// The cluster's program is this one.
			build := "#!/bin/sh\nwhile [ \"$1\" != -o ]; do shift; done\nexec cp \"$SELF\" \"$2\"\n"
			self, err := os.Executable()
			if err = errors.Join(err, os.Mkdir(bin, 0o755), os.Symlink(root, link),
				os.WriteFile(filepath.Join(bin, "go"), []byte(build), 0o755)); err != nil {
				t.Fatal(err)
			}
			script := func(file, dir string, args ...string) (*exec.Cmd, *bytes.Buffer) {
				cmd, out := exec.Command("./"+file, args...), &bytes.Buffer{}
				cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "SELF="+self, waitsVariable+"=1", "BERTH_CLUSTER="+bin,
					upDirVariable+"="+dir)
				cmd.Stdout, cmd.Stderr, cmd.WaitDelay = out, out, time.Second
				return cmd, out
			}
			dir := filepath.Join(root, "up")
			up, out := script("up.sh", dir, "1")
			if err := up.Start(); err != nil {
				t.Fatal(err)
			}
			var pid int
			nodetest.Eventually(t, time.Minute, "the cluster begins", func() bool {
				text, err := os.ReadFile(filepath.Join(dir, "pid"))
				if err == nil {
					pid, err = strconv.Atoi(strings.TrimSpace(string(text)))
				}
				exe, _ := os.Readlink("/proc/" + strconv.Itoa(pid) + "/exe")
				return err == nil && exe == filepath.Join(dir, "cluster.test")
			})
			t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGKILL) })
			if ready {
				for _, file := range []string{"sockets", "kubeconfig"} {
					if err := os.WriteFile(filepath.Join(dir, file), []byte("x\n"), 0o600); err != nil {
						t.Fatal(err)
					}
				}
				if err := up.Wait(); err != nil {
					t.Fatalf("%v: %s", err, out)
				}
				down, out := script("down.sh", filepath.Join(link, "up"))
				if err := down.Run(); err != nil {
					t.Fatalf("%v: %s", err, out)
				}
			} else {
				if err := up.Process.Signal(syscall.SIGTERM); err != nil {
					t.Fatal(err)
				}
				defer time.AfterFunc(20*time.Second, func() { _ = up.Process.Kill() }).Stop()
				if err := up.Wait(); up.ProcessState.ExitCode() < 1 {
					t.Errorf("up.sh goes on: %v", err)
				}
			}
			if err := syscall.Kill(pid, 0); err == nil {
				t.Error("the cluster goes on")
			}
			if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("its directory is left: %v", err)
			}
		})
	}
}

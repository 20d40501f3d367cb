//go:build unix

package plugintest

import (
	"errors"
	"os"
	"os/exec"
	"runtime"
	"syscall"
)

// ofItsOwn gives a program its own process group, so that its children are killed with it.
func ofItsOwn(cmd *exec.Cmd) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true
}

func terminate(cmd *exec.Cmd) { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }

func kill(cmd *exec.Cmd) { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }

// kubeletDir is what several plugins have hard-coded.
const kubeletDir = "/var/lib/kubelet"

// withKubeletDir returns a command for a program that sees a directory as /var/lib/kubelet, in
// its own mount namespace (mount_namespaces(7)). The mount point must exist, so it is created if
// it is missing.
func withKubeletDir(command []string, folder string) (*exec.Cmd, error) {
	switch {
	case runtime.GOOS != "linux":
		return nil, errors.New("--as-kubelet-dir: only Linux has mount namespaces")
	case os.Geteuid() != 0:
		return nil, errors.New("--as-kubelet-dir: a mount namespace needs root")
	}
	if err := os.MkdirAll(kubeletDir, 0o755); err != nil {
		return nil, err
	}
	const enter = `mount --bind "$0" ` + kubeletDir + ` && exec "$@"`
	return exec.Command("unshare", append([]string{"--mount", "sh", "-c", enter, folder}, command...)...), nil
}

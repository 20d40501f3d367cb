//go:build unix

package conform

import (
	"errors"
	"os"
	"os/exec"
	"runtime"
	"syscall"
)

// ofItsOwn gives a program a process group, so that what it starts ends with it.
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

// withKubeletDir makes the command for a program that sees a folder as
// /var/lib/kubelet, in a mount namespace of its own (mount_namespaces(7)). For that
// there has to be a folder of that name, which is made if there is none.
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

//go:build !unix

package plugintest

import (
	"errors"
	"os/exec"
)

func ofItsOwn(*exec.Cmd) {}

func terminate(cmd *exec.Cmd) { _ = cmd.Process.Kill() }

func kill(cmd *exec.Cmd) { _ = cmd.Process.Kill() }

const kubeletDir = ""

func withKubeletDir([]string, string) (*exec.Cmd, error) {
	return nil, errors.New("--as-kubelet-dir: only Linux has mount namespaces")
}

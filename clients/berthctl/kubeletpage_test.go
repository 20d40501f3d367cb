package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/berthd/berth/clients/internal/command"
)

// notEnding are the verbs that docs/kubelet.md shows and that do not end.
var notEnding = []string{"web", "top", "watch"}

// TestKubeletPage runs the commands of docs/kubelet.md on a kubelet's node, as they stand there but for the places of files.
func TestKubeletPage(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/kubelet.md")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, text := range map[string]string{
		"pods.json": rejectedPods, "pod.yaml": podYAML("web"), "pods/more.yaml": podYAML("more"),
		"configz.json": `{"kubeletconfig": {"cpuManagerPolicy": "static", "reservedSystemCPUs": "0"}}`,
	} {
		write(t, filepath.Join(dir, name), text)
	}
	places := map[string]string{"--kubelet": "--kubelet=" + kubeletNode(t)}
	for _, name := range []string{"pods.json", "pod.yaml", "pods/", "configz.json", "node.tar.gz"} {
		places[name] = filepath.Join(dir, name)
	}
	commands := 0
	for line := range strings.Lines(string(text)) {
		line, _, _ = strings.Cut(line, " #")
		args := strings.Fields(strings.TrimPrefix(strings.TrimPrefix(line, "sudo "), "$ "))
		if len(args) < 2 || args[0] != "berthctl" || !slices.Contains(args, "--kubelet") || slices.Contains(notEnding, args[1]) {
			continue
		}
		commands++
		for i, arg := range args {
			if place, ok := places[arg]; ok {
				args[i] = place
			}
		}
		code, out, problems := ctl(t, "", args[1:]...)
		// A verdict and a finding are answers.
		if code != command.ExitDone && code != command.ExitRejected {
			t.Errorf("%s: exit code %d\n%s%s", line, code, out, problems)
		}
	}
	if commands < 14 {
		t.Errorf("the page has %d commands", commands)
	}
}

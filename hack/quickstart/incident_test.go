package quickstart

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "write the output of docs/incident.md anew")

// What differs from run to run, besides the times of the history.
var (
	entryTime = regexp.MustCompile(`20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z`)
	anyTime   = regexp.MustCompile(`20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ`)
	admission = regexp.MustCompile(`\b[A-Z2-7]{26}\b`)
	revision  = regexp.MustCompile(`\b18\d{14}\b`)
	age       = regexp.MustCompile(`\b\d+(s|ms)\b *`)
	starter   = regexp.MustCompile(`(Start .*-) +\S+( \(uid 0\))?\n`)
)

// TestIncidentPage runs the commands of the page about a rejected pod against a berthd that has
// just lived through the example, and compares what they print with the page.
func TestIncidentPage(t *testing.T) {
	const path = "../../docs/incident.md"
	bin := programs(t)
	dir, err := os.MkdirTemp("", "incident") // the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	shell := func(command string) string {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, "bash", "-c", command)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "BERTH_ENDPOINT="+dir+"/berth.sock")
		out, err := cmd.CombinedOutput()
		// A rejection has an exit code of its own.
		if exit := cmd.ProcessState.ExitCode(); err != nil && exit != 3 {
			t.Fatalf("%s: exit code %d\n%s", command, exit, out)
		}
		return string(out)
	}
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("berth.yaml", `apiVersion: config.berthd.github.io/v1alpha1
kind: BerthConfiguration
machine: 2s1n8c2t
cpu: {policy: static}
topology: {policy: single-numa-node}
reserved: {cpus: "0,16"}
cgroups: {tree: memory}
`)
	daemon := exec.CommandContext(t.Context(), filepath.Join(bin, "berthd"), "--config", "berth.yaml", "--root-dir", dir)
	daemon.Dir = dir
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = daemon.Process.Kill()
		_ = daemon.Wait()
	})
	deploy, err := filepath.Abs("../../deploy")
	if err == nil {
		err = os.Symlink(deploy, filepath.Join(dir, "deploy"))
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, pod := range []struct {
		namespace, name string
		cpus            int
	}{{"shop", "db", 8}, {"shop", "cache", 4}, {"jobs", "batch", 12}, {"shop", "web", 6}} {
		file := pod.name + ".yaml"
		if pod.name == "batch" {
			file = "deploy/examples/pages/batch.yaml"
		} else {
			write(file, fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {namespace: %s, name: %s, uid: u-%s}\n"+
				"spec: {containers: [{name: main, image: x, resources: {limits: {cpu: %d, memory: 1Gi}}}]}\n", pod.namespace, pod.name,
				pod.name, pod.cpus))
		}
		shell("berthctl --wait-ready admit -f " + file)
	}
	shell("berthctl remove u-batch && berthctl admit -f web.yaml")

	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	page := string(raw)
	// The page's times and ids become those of this berthd, in the order of the history.
	times := func(text string) []string {
		all := entryTime.FindAllString(text, -1)
		slices.Sort(all)
		return slices.Compact(all)
	}
	_, first, _ := strings.Cut(page, "$ berthctl history")
	first, _, _ = strings.Cut(first, "```")
	theirs, ours := times(first), times(shell("berthctl history"))
	if len(theirs) != len(ours) {
		t.Fatalf("the page has %d entries, and berthd %d", len(theirs), len(ours))
	}
	id := strings.TrimSpace(shell("berthctl get rejections -o jsonpath={.items[0].admissionId}"))
	var swaps []string
	for i := range theirs {
		swaps = append(swaps, theirs[i], ours[i])
	}
	page = strings.NewReplacer(swaps...).Replace(page)
	page = admission.ReplaceAllString(page, id)
	page = anyTime.ReplaceAllStringFunc(page, func(at string) string {
		if entryTime.MatchString(at) {
			return at
		}
		return ours[0][:len("2006-01-02T15:04")] + ":00Z"
	})
	parts := strings.Split(page, "```\n$ ")
	if len(parts) < 12 {
		t.Errorf("the page has %d commands", len(parts)-1)
	}
	for i, part := range parts[1:] {
		command, rest, _ := strings.Cut(part, "\n")
		want, after, ends := strings.Cut(rest, "```\n")
		if !ends {
			t.Fatalf("the block of %q has no end", command)
		}
		got := shell(command)
		if !*update && plain(got) != plain(want) {
			t.Errorf("%s\ngot:\n%s\nwant:\n%s", command, got, want)
		}
		parts[i+1] = command + "\n" + got + "```\n" + after
	}
	if *update {
		if err := os.WriteFile(path, []byte(strings.Join(parts, "```\n$ ")), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// plain is a text without what differs from run to run. The caller of the start is berthd only
// where berthd names itself.
func plain(text string) string {
	text = starter.ReplaceAllString(text, "$1\n")
	return age.ReplaceAllString(revision.ReplaceAllString(text, "R"), "S ")
}

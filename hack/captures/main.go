// Command captures makes the recordings that the tests of server/internal/app replay,
// testdata/kubelet.jsonl.gz there, of what a real kubelet was seen to do:
//
//	go run ./hack/captures [-dir ../shared/captures] [-out FILE]
//
// Each directory of captures becomes one line: the machine, the configurations, the
// pods and the plugins, what happened in order with what was decided about each pod and
// what its containers were created with, and at each comparison the control files and
// the state files that the kubelet left, and what its podresources socket answered. Nothing is changed on the way. The same
// captures always give the same lines. What is left out:
//
//   - fields of a kubelet's file and of a pod that say nothing to a resource manager
//     (foreignConfig, foreignPod in inputs.go);
//   - cgroups of containers, sandboxes and other services, and files that neither the
//     kubelet nor berth writes (podFiles, reservedFiles in snapshot.go);
//   - starts with a configuration other than the one that made the state which is
//     still there, and starts that the kubelet refused because of that state: berth
//     keeps other state, and has tests of its own for both;
//   - what a kubelet that was started beside running pods decided about them while its
//     state was there: berth does not admit them again;
//   - admissions that were still undecided at the next comparison;
//   - whole captures, or their ends, for a reason that is given in leftOut.
//
// A kubelet that is started beside running pods admits them again. Where its state was
// still there, the pods that it rejected are removed; where it was deleted, those that
// it took are admitted in its order.
package main

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	dir := flag.String("dir", filepath.Join("..", "shared", "captures"), "the captures")
	out := flag.String("out", filepath.Join("server", "internal", "app", "testdata", "kubelet.jsonl.gz"), "the file to write")
	flag.Parse()
	if err := run(*dir, *out); err != nil {
		fmt.Fprintln(os.Stderr, "captures:", err)
		os.Exit(1)
	}
}

func run(dir, out string) error {
	lines, err := build(dir)
	if err != nil {
		return err
	}
	var packed bytes.Buffer
	w, err := gzip.NewWriterLevel(&packed, gzip.BestCompression)
	if err != nil {
		return err
	}
	if _, err := w.Write(lines); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	return os.WriteFile(out, packed.Bytes(), 0o644)
}

// leftOut gives by capture the line of its scenario at which the recording ends ("" for
// one that is left out whole), and why.
var leftOut = map[string]struct{ from, why string }{
	"v1-cgroupfs-restricted-readd": {"", "a pod with the uid of a removed one: the kubelet's defect"},
	"v2-cgroupfs-restricted-readd": {"", "a pod with the uid of a removed one: the kubelet's defect"},
	"v2-systemd-restricted-readd":  {"", "a pod with the uid of a removed one: the kubelet's defect"},
	"v2-cgroupfs-reserved-cgroups": {"try-start k-noqos.json",
		"without pod cgroups: testdata/nopods.json; then another root: the virtual machine's lacked cpuset"},
	"v2-systemd-reserved-cgroups": {"try-start k-noqos.json",
		"without pod cgroups: testdata/nopods.json; then another root: the virtual machine's lacked cpuset"},
}

// build gives the lines of all captures, by name.
func build(dir string) ([]byte, error) {
	runs, err := filepath.Glob(filepath.Join(dir, "*", "run.json"))
	if err != nil {
		return nil, err
	}
	if len(runs) == 0 {
		return nil, fmt.Errorf("no captures in %s", dir)
	}
	var lines bytes.Buffer
	encoder := json.NewEncoder(&lines)
	encoder.SetEscapeHTML(false)
	for _, file := range runs {
		name := filepath.Base(filepath.Dir(file))
		cut, isCut := leftOut[name]
		if isCut && cut.from == "" {
			continue
		}
		r, err := record(capture{root: dir, name: name}, cut.from)
		if err != nil {
			return nil, fmt.Errorf("capture %s: %w", name, err)
		}
		if err := encoder.Encode(r); err != nil {
			return nil, err
		}
	}
	return lines.Bytes(), nil
}

// capture is a directory of captures.
type capture struct{ root, name string }

func (c capture) path(elements ...string) string {
	return filepath.Join(append([]string{c.root, c.name}, elements...)...)
}

// read fills a value from a JSON file of the capture.
func (c capture) read(into any, elements ...string) error {
	data, err := os.ReadFile(c.path(elements...))
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("%s: %w", filepath.Join(elements...), err)
	}
	return nil
}

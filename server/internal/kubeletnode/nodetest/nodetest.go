// Package nodetest makes directories with the files of a kubelet's node, from recordings of real kubelets that are next to the project.
package nodetest

import (
	"archive/tar"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/berthd/berth/api/input"
)

// Recording is a node at one moment.
type Recording struct {
	// Name is CONFIGURATION/MOMENT, and Shape that of the machine.
	Name, Shape string
	// configuration is the directory with the recording of a scenario, and moment one of what was recorded in it.
	captures, configuration, moment string
}

// most is the most of a recorded file that is read.
const most = 64 << 20

// PodsFile is the file of the pods in a node's directory.
const PodsFile = "pods.json"

// Recordings returns all recordings that have a kubelet's configuration. Without them the test is skipped.
func Recordings(t testing.TB) (out []Recording) {
	t.Helper()
	captures := Captures(t)
	moments, err := filepath.Glob(filepath.Join(captures, "*", "full-*"))
	if err != nil || len(moments) == 0 {
		t.Fatalf("no recordings in %s: %v", captures, err)
	}
	for _, moment := range moments {
		if _, err := os.Stat(filepath.Join(moment, "configz.json")); err != nil {
			continue // only the cgroups were recorded
		}
		configuration := filepath.Dir(moment)
		r := Recording{
			Name: filepath.Base(configuration) + "/" + filepath.Base(moment), captures: captures, configuration: configuration,
			moment: moment,
		}
		r.decode(t, filepath.Join(configuration, "run.json"), &r)
		out = append(out, r)
	}
	return out
}

// Captures returns the directory with the recordings, which is next to the project. Without it the test is skipped.
func Captures(t testing.TB) string {
	t.Helper()
	start, err := filepath.Abs(".")
	if err != nil {
		t.Fatal(err)
	}
	for dir := start; ; dir = filepath.Dir(dir) {
		found := filepath.Join(dir, "shared", "captures")
		if _, err := os.Stat(filepath.Join(found, "topologies")); err == nil {
			return found
		}
		if dir == filepath.Dir(dir) {
			t.Skipf("there is no shared/captures/topologies in %s or any folder above it", start)
		}
	}
}

// File returns a file of the moment.
func (r Recording) File(t testing.TB, name string) []byte {
	t.Helper()
	data, err := input.Regular(filepath.Join(r.moment, name), most)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// Write makes a directory with the node's files, and PodsFile, and returns it.
func (r Recording) Write(t testing.TB) (root string) {
	t.Helper()
	root = t.TempDir()
	unpack(t, filepath.Join(r.captures, "topologies", r.Shape, "sysfs.tar.gz"), root)
	r.Rewrite(t, root)
	return root
}

// Rewrite changes a directory with the machine of the same shape to the recording's.
func (r Recording) Rewrite(t testing.TB, root string) {
	t.Helper()
	if err := errors.Join(os.RemoveAll(filepath.Join(root, "var")), os.RemoveAll(filepath.Join(root, "etc"))); err != nil {
		t.Fatal(err)
	}
	var served struct{ KubeletConfig json.RawMessage }
	r.decode(t, filepath.Join(r.moment, "configz.json"), &served)
	write(t, filepath.Join(root, "var/lib/kubelet/config.yaml"), served.KubeletConfig)
	for from, to := range map[string]string{
		"cpu_manager_state.json": "cpu_manager_state", "memory_manager_state.json": "memory_manager_state",
		"kubelet_internal_checkpoint.json": "device-plugins/kubelet_internal_checkpoint",
		"allocated_pods_state.json":        "allocated_pods_state",
		"dra_manager_state.json":           "dra_manager_state",
	} {
		data, err := input.Regular(filepath.Join(r.moment, from), most)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(root, "var/lib/kubelet", to), data)
	}
	write(t, filepath.Join(root, "etc/hostname"), []byte("numavm\n"))
	manifests, err := filepath.Glob(filepath.Join(r.configuration, "config", "pods", "*.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range manifests {
		data, err := input.Regular(file, most)
		if err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(root, "etc/kubernetes/manifests", filepath.Base(file)), data)
	}
	pods, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "List", "items": r.pods(t, manifests)})
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(root, PodsFile), pods)
}

// pods are those that the kubelet had, with their status.
func (r Recording) pods(t testing.TB, manifests []string) (out []any) {
	t.Helper()
	var served []struct {
		Name, UID string
		Status    any
	}
	r.decode(t, filepath.Join(r.moment, "pod-status.json"), &served)
	for _, file := range manifests {
		var pod map[string]any
		r.decode(t, file, &pod)
		about := pod["metadata"].(map[string]any)
		for _, s := range served {
			if s.UID == about["uid"] {
				about["name"], pod["status"] = s.Name, s.Status
				out = append(out, pod)
			}
		}
	}
	return out
}

func (r Recording) decode(t testing.TB, file string, into any) {
	t.Helper()
	data, err := input.Regular(file, most)
	if err == nil {
		err = json.Unmarshal(data, into)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func write(t testing.TB, file string, data []byte) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, data, 0o600)); err != nil {
		t.Fatal(err)
	}
}

// unpack writes the files of an archive below a directory.
func unpack(t testing.TB, file, root string) {
	t.Helper()
	f, err := input.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	for archive := tar.NewReader(z); ; {
		h, err := archive.Next()
		if err == io.EOF {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		to := filepath.Join(root, filepath.FromSlash(h.Name))
		switch h.Typeflag {
		case tar.TypeReg:
			data, err := io.ReadAll(io.LimitReader(archive, most))
			if err != nil {
				t.Fatal(err)
			}
			write(t, to, data)
		case tar.TypeSymlink:
			if err := errors.Join(os.MkdirAll(filepath.Dir(to), 0o755), os.Symlink(h.Linkname, to)); err != nil {
				t.Fatal(err)
			}
		}
	}
}

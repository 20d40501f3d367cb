package cgroupfs

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/workload"
	"github.com/berthd/berth/server/internal/host/cgroupfs/ocicgroups"
)

// podValues are those of a Guaranteed pod on the tree.
func podValues(f cgroup.Facts) cgroup.Values {
	both := workload.Quantities{workload.CPU: 2000, workload.Memory: 64 << 20}
	p := workload.Pod{UID: "u", Containers: []workload.Container{{Name: "c", Requests: both, Limits: both}}}
	return cgroup.PodValues(&p, cgroup.DefaultConfig(f), false)
}

// BenchmarkPod makes and removes a pod's cgroup, and beside it does what the
// kernel cannot avoid: the directories and the writes.
func BenchmarkPod(b *testing.B) {
	d, err := Open(Options{Setter: ocicgroups.Setter{}})
	if err != nil {
		b.Skipf("no usable tree: %v", err)
	}
	defer d.Close()
	parent := cgroup.Name{fmt.Sprintf("berthbench-%d", os.Getpid())}
	if _, err := d.Ensure(b.Context(), cgroup.Node{Name: parent}); err != nil {
		b.Skipf("the tree cannot be written to: %v", err)
	}
	defer func() {
		if err := d.Remove(cleanupContext(), parent); err != nil {
			b.Error(err)
		}
	}()
	name, values := append(parent, "pod"), podValues(d.Facts())
	b.Run("berth", func(b *testing.B) {
		for b.Loop() {
			if _, err := d.Ensure(b.Context(), cgroup.Node{Name: name, Values: values}); err != nil {
				b.Fatal(err)
			}
			b.StopTimer()
			if err := d.Remove(b.Context(), name); err != nil {
				b.Fatal(err)
			}
			b.StartTimer()
		}
	})
	b.Run("kernel", func(b *testing.B) {
		for b.Loop() {
			bare(b, d, name, values)
			b.StopTimer()
			if err := d.Remove(b.Context(), name); err != nil {
				b.Fatal(err)
			}
			b.StartTimer()
		}
	})
	b.Run("record", func(b *testing.B) {
		if _, err := d.Ensure(b.Context(), cgroup.Node{Name: name}); err != nil {
			b.Fatal(err)
		}
		record := make([]byte, 1024)
		for b.Loop() {
			if err := d.WriteRecord(b.Context(), name, record); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("unchanged", func(b *testing.B) {
		if _, err := d.Ensure(b.Context(), cgroup.Node{Name: name, Values: values}); err != nil {
			b.Fatal(err)
		}
		for b.Loop() {
			if _, err := d.Observe(b.Context(), name, 0); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// bare makes the directories and writes the values by the shortest way there is.
func bare(b *testing.B, d *Driver, name cgroup.Name, values cgroup.Values) {
	for _, h := range d.hierarchies {
		if err := os.Mkdir(filepath.Join(d.mount, h.path(name)), 0o755); err != nil {
			b.Fatal(err)
		}
	}
	if h, ok := d.hierarchy("cpuset"); ok && d.facts.Version == cgroup.V1 {
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
			text, err := os.ReadFile(filepath.Join(d.mount, h.path(name.Parent()), file))
			if err == nil {
				err = os.WriteFile(filepath.Join(d.mount, h.path(name), file), text, 0o600)
			}
			if err != nil {
				b.Fatal(err)
			}
		}
	}
	for _, f := range values.Files(d.facts) {
		for _, h := range d.hierarchies {
			path := filepath.Join(d.mount, h.path(name), f.Name)
			if _, err := os.Stat(path); err == nil {
				if err := os.WriteFile(path, []byte(f.Text), 0o600); err != nil {
					b.Fatal(err)
				}
			}
		}
	}
}

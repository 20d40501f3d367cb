package machine_test

import (
	"bytes"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/machine/machinetest"
)

// TestFormatExample loads the example of the package comment.
func TestFormatExample(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	var example strings.Builder
	for line := range strings.Lines(string(source)) {
		if text, ok := strings.CutPrefix(line, "//\t"); ok {
			example.WriteString(text)
		}
	}
	m, err := machine.Load([]byte(example.String()))
	if err != nil {
		t.Fatalf("%v\n%s", err, example.String())
	}
	if m.NumCores() != 1 || m.NumCPUs() != 2 || m.NodeMask().Len() != 2 || m.Offline().String() != "2-3" {
		t.Errorf("the example is another machine: %+v", m.Snapshot())
	}
	data, err := m.Marshal()
	if err != nil || string(data) != example.String() {
		t.Errorf("the example is not what Marshal writes (%v):\n%s", err, data)
	}
}

func TestMarshalRoundTrip(t *testing.T) {
	t.Parallel()
	for m := range machinetest.All() {
		data, err := m.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		back, err := machine.Load(data)
		if err != nil {
			t.Fatalf("%s: %v", m.Snapshot().Name, err)
		}
		if !reflect.DeepEqual(m.Snapshot(), back.Snapshot()) || m.Fingerprint() != back.Fingerprint() {
			t.Errorf("%s: another machine came back:\n%+v\n%+v", m.Snapshot().Name, m.Snapshot(), back.Snapshot())
		}
	}
}

func TestMarshalKeepsText(t *testing.T) {
	t.Parallel()
	const name = `quotes " and \ , { [ : "cpus": null, line` + "\n"
	data, err := machinetest.Build("1c", machinetest.Named(name)).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	back, err := machine.Load(data)
	if err != nil {
		t.Fatal(err)
	}
	if got := back.Snapshot().Name; got != name {
		t.Errorf("name is %q, want %q", got, name)
	}
}

func TestLoadDefaults(t *testing.T) {
	t.Parallel()
	m, err := machine.Load([]byte(`{"version": 1, "cpus": [{"id": 1, "core": 1, "socket": 3, "node": 0}]}`))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := m.Snapshot().CPUs[0], (machine.CPU{ID: 1, Core: 1, Socket: 3, Die: -1, Cluster: -1, Uncore: 3}); got != want {
		t.Errorf("CPU is %+v, want %+v", got, want)
	}
}

func TestLoadRefuses(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ name, text, says string }{
		{"nothing", "", "EOF"},
		{"not JSON", "{version}", "invalid"},
		{"list", "[]", "array"},
		{"unknown field", `{"version":1,"cpu":[]}`, `"cpu"`},
		{"unknown field of a CPU", `{"version":1,"cpus":[{"id":0,"core":0,"socket":0,"node":0,"l3":1}]}`, `"l3"`},
		{"no version", `{"cpus":[{"id":0,"core":0,"socket":0,"node":0}]}`, "version is missing"},
		{"another version", `{"version":2,"cpus":[{"id":0,"core":0,"socket":0,"node":0}]}`, "version 2"},
		{"CPU without core", `{"version":1,"cpus":[{"id":0,"socket":0,"node":0}]}`, "core is missing"},
		{"no CPUs", `{"version":1}`, "at least one"},
		{"two objects", `{"version":1,"cpus":[{"id":0,"core":0,"socket":0,"node":0}]}{}`, "after the end"},
		{"kind", `{"version":1,"cpus":[{"id":0,"core":0,"socket":0,"node":0,"kind":"fast"}]}`, "fast"},
		{"offline", `{"version":1,"offline":"3-1","cpus":[{"id":0,"core":0,"socket":0,"node":0}]}`, "3-1"},
		{"distances", `{"version":1,"distances":{"0":{"64":10}},"cpus":[{"id":0,"core":0,"socket":0,"node":0}]}`, "64"},
		{"negative memory", `{"version":1,"memory_bytes":-1,"cpus":[{"id":0,"core":0,"socket":0,"node":0}]}`, "memory_bytes"},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			_, err := machine.Load([]byte(row.text))
			if err == nil || errdefs.ClassOf(err) != errdefs.Invalid || !strings.Contains(err.Error(), row.says) {
				t.Errorf("error is %v, want one of class invalid with %q", err, row.says)
			}
		})
	}
}

// FuzzLoad checks that nothing panics, and that what is read is written back in
// a form that reads as the same.
func FuzzLoad(f *testing.F) {
	for m := range machinetest.All() {
		if m.CPUs().Len() <= 64 {
			data, err := m.Marshal()
			if err != nil {
				f.Fatal(err)
			}
			f.Add(data)
		}
	}
	f.Add([]byte(`{"version":1,"cpus":[{"id":0,"core":0,"socket":0,"node":0}],"distances":{"0":{"0":10}},"counts":{}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := machine.Load(data)
		if err != nil {
			return
		}
		first, err := m.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		back, err := machine.Load(first)
		if err != nil {
			t.Fatalf("%v\n%s", err, first)
		}
		second, err := back.Marshal()
		if err != nil || !bytes.Equal(first, second) {
			t.Fatalf("written twice (%v):\n%s\n%s", err, first, second)
		}
	})
}

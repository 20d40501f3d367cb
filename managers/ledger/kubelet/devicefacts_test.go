package kubelet

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/workload"
)

// deviceFile writes entries as a kubelet does.
func deviceFile(t testing.TB, registered map[string][]string, entries ...DeviceEntry) []byte {
	t.Helper()
	data, err := (&DeviceState{Entries: entries, Registered: registered}).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// wants is a container that requests n devices of gpu.
func wants(name string, n int64) workload.Container {
	return workload.Container{Name: name, Limits: workload.Quantities{"s.io/gpu": n}}
}

func TestReadDevice(t *testing.T) {
	t.Parallel()
	view := ledgertest.New(t, ledger.Rules{Machine: machinetest.Build("2n4c")}).View()
	pods := map[string]*workload.Pod{"p": {UID: "p", Containers: []workload.Container{wants("c", 2), wants("d", 1)}}}
	answer := []byte{0x0a, 0x02, 'h', 'i'}
	entry := func(container string, ids map[int64][]string, response []byte) DeviceEntry {
		return DeviceEntry{Pod: "p", Container: container, Resource: "s.io/gpu", IDs: ids, Response: response}
	}
	for name, row := range map[string]struct {
		entries []DeviceEntry
		want    []string
		notes   string
		skipped string
		flaws   []Flaw
	}{
		"on nodes, on several, on none": {
			entries: []DeviceEntry{entry("c", map[int64][]string{1: {"b", "a"}, 0: {"a"}}, answer),
				entry("d", map[int64][]string{-1: {"x"}}, answer)},
			want: []string{"p/c a@0-1 b@1 hi", "p/d x hi"},
		},
		"the last of two counts": {
			entries: []DeviceEntry{entry("d", map[int64][]string{0: {"a"}}, answer), entry("d", map[int64][]string{0: {"b"}}, answer)},
			want:    []string{"p/d b@0 hi"},
		},
		"another number": {
			entries: []DeviceEntry{entry("d", map[int64][]string{0: {"a", "b"}}, answer)},
			want:    []string{"p/d a@0 b@0 hi"}, notes: "p/d holds 2 devices of s.io/gpu and requests 1",
		},
		"no devices": {entries: []DeviceEntry{entry("d", nil, answer)}, notes: "p/d has an entry without devices of s.io/gpu"},
		"nodes that no machine has": {
			entries: []DeviceEntry{entry("c", map[int64][]string{64: {"a"}, -2: {"b"}, 1: {"b"}}, answer)},
			want:    []string{"p/c a b@1 hi"},
			notes:   "device a of s.io/gpu is said to be near NUMA node 64, which no machine has|device b of s.io/gpu is said to be near NUMA node -2, which no machine has",
		},
		"an answer that is none": {
			entries: []DeviceEntry{entry("d", map[int64][]string{0: {"a"}}, []byte{0x0a, 0x7f})},
			want:    []string{"p/d a@0 "}, flaws: []Flaw{{"s.io/gpu of p/d",
				"AllocResp: what the device plugin answered cannot be read, so it is left out"}},
		},
		"nobody's": {
			entries: []DeviceEntry{{Pod: "q", Container: "c", Resource: "s.io/gpu", IDs: map[int64][]string{0: {"b", "a"}, 1: {"a"}}},
				entry("e", map[int64][]string{-1: {"x"}}, nil)},
			skipped: "s.io/gpu x of p/e|s.io/gpu a, b of q/c",
		},
	} {
		facts, err := Read(Device, deviceFile(t, map[string][]string{"s.io/nic": nil, "s.io/gpu": {"a"}}, row.entries...),
			Input{View: view, Pods: pods, SkipUnknown: true})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		var got []string
		for _, c := range facts.Claims {
			text := c.Owner.String()
			for _, d := range c.Devices.Devices {
				text += " " + d.ID
				if d.Topology {
					text += "@" + d.Nodes.String()
				}
			}
			got = append(got, text+" "+strings.TrimPrefix(string(c.Devices.Response), "\x0a\x02"))
			if c.Provider != "device" || c.Resource != "s.io/gpu" || c.Devices.Response == nil {
				t.Errorf("%s: claim %+v", name, c)
			}
		}
		slices.Sort(facts.Notes)
		if !slices.Equal(facts.Flaws, row.flaws) {
			t.Errorf("%s: flaws %q", name, facts.Flaws)
		}
		if !slices.Equal(got, row.want) || strings.Join(facts.Notes, "|") != row.notes || strings.Join(facts.Skipped, "|") != row.skipped {
			t.Errorf("%s: claims %q, notes %q, skipped %q", name, got, facts.Notes, facts.Skipped)
		}
		if facts.Format != 2 || !slices.Equal(facts.Resources, []string{"s.io/gpu", "s.io/nic"}) ||
			facts.File != "device-plugins/kubelet_internal_checkpoint" {
			t.Errorf("%s: %s in format %d with resources %q", name, facts.File, facts.Format, facts.Resources)
		}
	}
	_, err := Read(Device, deviceFile(t, nil, DeviceEntry{Pod: "q", Container: "c", Resource: "s.io/gpu"}), Input{View: view})
	if errdefs.ClassOf(err) != errdefs.Precondition {
		t.Errorf("unknown owner: %v", err)
	}
}

func TestWriteDevice(t *testing.T) {
	t.Parallel()
	l := ledgertest.New(t, ledger.Rules{Machine: machinetest.Build("2n4c")})
	unprepared := ledgertest.Devices("c", "s.io/nic", "n0")
	external := ledgertest.Devices("c", "s.io/tpu", "t0")
	external.Provider, external.Devices.Response = "tpud", []byte{}
	gpus := ledgertest.Devices("c", "s.io/gpu", "g0", "g1", "g2")
	gpus.Devices.Response = []byte("x")
	gpus.Devices.Devices[0].Nodes, gpus.Devices.Devices[0].Topology = numa.Of(0, 1), true
	gpus.Devices.Devices[1].Topology = true // a topology without nodes
	view, err := l.Update(t.Context(), func(d *ledger.Draft) error {
		d.PutPod(ledgertest.With(ledgertest.Pod("p", "c"), gpus, unprepared, external))
		d.PutResource(ledger.SeenResource{Name: "s.io/gpu"})
		d.PutResource(ledger.SeenResource{Name: "s.io/away"})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	file, err := Write(Device, view, Settings{HealthyDevices: map[string][]string{"s.io/gpu": {"g2", "g0"}}}, 0)
	want := string(deviceFile(t, map[string][]string{"s.io/away": nil, "s.io/gpu": {"g0", "g2"}}, DeviceEntry{
		Pod: "p", Container: "c", Resource: "s.io/gpu", IDs: map[int64][]string{0: {"g0"}, 1: {"g0"}, -1: {"g1", "g2"}},
		Response: []byte("x"),
	}))
	if err != nil || string(file.Data) != want || file.Format != 2 {
		t.Errorf("format %d, %v\n\t%s\nwant\n\t%s", file.Format, err, file.Data, want)
	}
	if _, err := Write(Device, view, Settings{}, 1); errdefs.ClassOf(err) != errdefs.Invalid {
		t.Errorf("format 1: %v", err)
	}
	empty, err := Write(Device, ledgertest.New(t, ledger.Rules{Machine: machinetest.Build("4c")}).View(), Settings{}, 2)
	if err != nil || !strings.HasPrefix(string(empty.Data), `{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{}},"Checksum":`) {
		t.Errorf("%s, %v", empty.Data, err)
	}
}

// TestDevicesComeBack takes any devices out of the ledger and over into another.
func TestDevicesComeBack(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		rules := ledger.Rules{Machine: machinetest.Build("4n4c")}
		l, pods := ledgertest.New(t, rules), map[string]*workload.Pod{}
		next := 0
		view, err := l.Update(t.Context(), func(d *ledger.Draft) error {
			for p := range rapid.IntRange(0, 3).Draw(t, "pods") {
				pod := ledgertest.Pod(fmt.Sprint("p", p), "init:i", "c")
				for _, c := range pod.Pod.Walk() {
					for _, resource := range []string{"s.io/gpu", "s.io/nic"} {
						claim := ledgertest.Devices(c.Name, resource)
						claim.Devices.Response = rapid.SampledFrom([][]byte{{}, {0x0a, 0x01, 'x'}, {0x08, 0x7f}}).Draw(t, "response")
						for range rapid.IntRange(0, 3).Draw(t, "devices") {
							next++
							nodes := numa.Mask(rapid.Uint64Range(0, 15).Draw(t, "nodes"))
							claim.Devices.Devices = append(claim.Devices.Devices,
								ledger.Device{ID: fmt.Sprintf("%03d", next), Nodes: nodes, Topology: nodes != 0})
						}
						if len(claim.Devices.Devices) > 0 {
							ledgertest.With(pod, claim)
						}
					}
				}
				pods[pod.UID()] = &pod.Pod
				d.PutPod(pod)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		file, err := Write(Device, view, Settings{}, 0)
		if err != nil {
			t.Fatal(err)
		}
		facts, err := Read(Device, file.Data, Input{View: ledgertest.New(t, rules).View(), Pods: pods})
		if err != nil {
			t.Fatal(err)
		}
		if want := slices.Collect(view.Claims()); !reflect.DeepEqual(facts.Claims, want) {
			t.Fatalf("%+v\nwant\n%+v", facts.Claims, want)
		}
	})
}

func FuzzMessage(f *testing.F) {
	for _, seed := range [][]byte{{}, {0x0a, 0x01, 'x'}, {0x08, 0xff, 0x01}, {0x0d, 1, 2, 3, 4}, {0x09, 1, 2, 3, 4, 5, 6, 7, 8}, {0x0b},
		{0}, {0x0a, 0xff}} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		// A message is one as well with a field more.
		if message(b) && !message(append(slices.Clone(b), 0x0a, 0x01, 'x')) {
			t.Errorf("%x", b)
		}
	})
}

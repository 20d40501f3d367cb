package inspect_test

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"

	inspectv1 "github.com/berthd/berth/api/berth/inspect/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/kubelet"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/workload"
)

// memoryCapture is what was recorded on a node that a kubelet of 1.36.3 ran: the
// pods that it started, and its memory_manager_state at different times.
type memoryCapture struct {
	Capture string
	Pods    []json.RawMessage
	States  []string
}

// memoryCaptures reads testdata/memory_manager_states.jsonl.gz, one recording a
// line. States that differ in amounts of the machine only are left out.
func memoryCaptures(t *testing.T) (all []memoryCapture) {
	t.Helper()
	f, err := os.Open("testdata/memory_manager_states.jsonl.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	text, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(text)
	lines.Buffer(nil, 1<<22)
	for lines.Scan() {
		var c memoryCapture
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			t.Fatal(err)
		}
		all = append(all, c)
	}
	if err := lines.Err(); err != nil || len(all) == 0 {
		t.Fatalf("%d captures, %v", len(all), err)
	}
	return all
}

// machineOf is the machine that a state is about, and what is reserved on it.
func machineOf(t *testing.T, s kubelet.MemoryState) (*machine.Topology, map[int]map[string]uint64) {
	t.Helper()
	snapshot := machine.Snapshot{}
	reserved := map[int]map[string]uint64{}
	for id, node := range s.Nodes {
		n := machine.Node{ID: id, MemoryBytes: node.Tables["memory"].Total}
		reserved[id] = map[string]uint64{}
		for resource, table := range node.Tables {
			reserved[id][resource] = table.SystemReserved
			if size, err := workload.HugePageSize(workload.Resource(resource)); err == nil {
				n.HugePages = append(n.HugePages, machine.HugePages{SizeKiB: uint64(size) / 1024, Count: table.Total / uint64(size)})
			}
		}
		snapshot.CPUs = append(snapshot.CPUs, machine.CPU{ID: id, Core: id, Node: id})
		snapshot.Nodes = append(snapshot.Nodes, n)
	}
	if len(snapshot.CPUs) == 0 {
		snapshot.CPUs = []machine.CPU{{}}
	}
	m, err := machine.New(snapshot)
	if err != nil {
		t.Fatal(err)
	}
	return m, reserved
}

// TestMemoryCapturesComeBack takes recorded state files over and writes them again.
// The kubelet writes the blocks of a container in the order of a map, and divides
// what nodes hold together by what was freed before; and after a restart it counts
// what an init container has handed on twice, which a note tells. But for that the
// files are the same byte for byte.
func TestMemoryCapturesComeBack(t *testing.T) {
	t.Parallel()
	whole, other, mended, formats := 0, 0, 0, map[uint32]int{}
	for _, c := range memoryCaptures(t) {
		var pods []*typesv1.Pod
		for _, text := range c.Pods {
			p := &typesv1.Pod{}
			if err := protojson.Unmarshal(text, p); err != nil {
				t.Fatal(err)
			}
			pods = append(pods, p)
		}
		for _, state := range c.States {
			before, err := kubelet.ParseMemory([]byte(state))
			if err != nil {
				t.Fatalf("%s: %s: %v", c.Capture, state, err)
			}
			if again, err := before.Marshal(before.Format); err != nil || string(again) != state {
				t.Errorf("%s: read and written:\n got %s, %v\nwant %s", c.Capture, again, err, state)
			}
			m, reserved := machineOf(t, before)
			client := moveWith(t, ledger.Rules{Machine: m}, kubelet.Settings{Policy: before.Policy, ReservedMemory: reserved})
			in, err := client.Import(t.Context(), &inspectv1.ImportRequest{Kind: inspectv1.StateFileKind_STATE_FILE_KIND_MEMORY,
				State: []byte(state), Pods: pods})
			if err != nil {
				t.Fatalf("%s: %s: %v", c.Capture, state, err)
			}
			twice := false
			for _, note := range in.GetNotes() {
				if strings.HasSuffix(note, "are counted as allocated, and no entry allocates them") {
					twice = true
				} else if !strings.HasSuffix(note, "has an entry without memory") && !strings.Contains(note, "import its kind too") {
					t.Errorf("%s: %s: %s", c.Capture, state, note)
				}
			}
			out, err := client.Export(t.Context(), &inspectv1.ExportRequest{Kind: inspectv1.StateFileKind_STATE_FILE_KIND_MEMORY,
				Format: in.GetFormat()})
			if err != nil {
				t.Fatalf("%s: %s: %v", c.Capture, state, err)
			}
			formats[in.GetFormat()]++
			if string(out.GetState()) == state {
				whole++
				continue
			}
			after, err := kubelet.ParseMemory(out.GetState())
			if err != nil {
				t.Fatal(err)
			}
			got, want := inOrder(after), inOrder(before)
			same := reflect.DeepEqual(got.Containers, want.Containers) && reflect.DeepEqual(got.Pods, want.Pods)
			if same {
				other++
			} else {
				mended++
			}
			if same == twice {
				t.Errorf("%s: %q:\n got %s\nwant %s", c.Capture, in.GetNotes(), out.GetState(), state)
			}
			if err := after.Check(m.Nodes(), reserved); err != nil {
				t.Errorf("%s: a kubelet would not go on from %s: %v", c.Capture, out.GetState(), err)
			}
		}
	}
	t.Logf("%d files came back byte for byte, %d in another order, %d that counted twice were mended; by format %v", whole, other, mended,
		formats)
	if whole < 100 || other == 0 || mended == 0 || formats[1] == 0 || formats[2] == 0 {
		t.Errorf("%d whole, %d in another order, %d mended, formats %v: the recordings have more", whole, other, mended, formats)
	}
}

// inOrder sorts the blocks of containers and leaves out who has none.
func inOrder(s kubelet.MemoryState) kubelet.MemoryState {
	for uid, containers := range s.Containers {
		for name, blocks := range containers {
			slices.SortFunc(blocks, func(a, b kubelet.MemoryBlock) int { return strings.Compare(a.Resource, b.Resource) })
			if len(blocks) == 0 {
				delete(containers, name)
			}
		}
		if len(containers) == 0 {
			delete(s.Containers, uid)
		}
	}
	return s
}

package shape

import (
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/berthd/berth/hack/vm/arch"
)

// The arguments in testdata are those of the machines on which the kubelet's
// decisions were recorded.
func TestNamedShapesAreTheRecordedOnes(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("testdata/arguments.txt")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		name, want, _ := strings.Cut(strings.TrimSpace(line), ": ")
		s, err := Named(name)
		if err != nil {
			t.Error(err)
			continue
		}
		got := strings.TrimSpace(strings.Join(s.Args(), " ") + " | " + strings.Join(s.KernelArgs(), " "))
		if len(s.Nodes) == 1 { // there the node's number was left out
			got = strings.ReplaceAll(got, "hugepages=0:", "hugepages=")
		}
		if got != want {
			t.Errorf("%s:\n%s\nwant\n%s", name, got, want)
		}
	}
}

func TestNamedShapesAddUp(t *testing.T) {
	t.Parallel()
	for name, s := range table() {
		cpus := 0
		for _, n := range s.Nodes {
			cpus += n.CPUs.Len()
		}
		if cpus != s.CPUs() || s.About == "" {
			t.Errorf("%s: the nodes have %d CPUs, the machine %d", name, cpus, s.CPUs())
		}
		for _, h := range s.HugePages {
			if len(h.PerNode) != len(s.Nodes) {
				t.Errorf("%s: pages on %d of %d nodes", name, len(h.PerNode), len(s.Nodes))
			}
		}
	}
	if _, err := Named("n99"); err == nil || !strings.Contains(err.Error(), "n4mem") {
		t.Errorf("%v, want the names that there are", err)
	}
}

// TestParts has what can be plugged into the machine.
func TestParts(t *testing.T) {
	t.Parallel()
	s, err := Named("n3plug")
	if err != nil {
		t.Fatal(err)
	}
	args := strings.Join(s.Args(), " ")
	for _, want := range []string{
		"-m 2048M,slots=2,maxmem=2816M -smp 6,maxcpus=12,sockets=3,cores=4,threads=1 ",
		" -object memory-backend-ram,id=spare1,size=512M ", " -numa node,nodeid=2,cpus=8-11 ",
	} {
		if !strings.Contains(args, want) {
			t.Errorf("%s\nwithout %s", args, want)
		}
	}
	parts := s.Parts()
	if len(parts) != 8 || parts[0].Name != "cpu6" || parts[7].Name != "memory1" {
		t.Fatalf("%+v", parts)
	}
	want := map[string]any{"id": "cpu6", "driver": "max-x86_64-cpu", "socket-id": 1, "die-id": 0, "core-id": 2, "thread-id": 0}
	if !reflect.DeepEqual(parts[0].Device, want) {
		t.Errorf("%v, want %v", parts[0].Device, want)
	}
	want = map[string]any{"id": "memory1", "driver": "pc-dimm", "memdev": "spare1", "node": 2}
	if !reflect.DeepEqual(parts[7].Device, want) {
		t.Errorf("%v, want %v", parts[7].Device, want)
	}
	threads := Shape{CPU: "max", Sockets: 2, Dies: 2, Cores: 2, Threads: 2, Absent: 1}.Parts()
	want = map[string]any{"id": "cpu15", "driver": "max-x86_64-cpu", "socket-id": 1, "die-id": 1, "core-id": 1, "thread-id": 1}
	if len(threads) != 1 || !reflect.DeepEqual(threads[0].Device, want) {
		t.Errorf("%v, want %v", threads, want)
	}
	if plain, err := Named("n4"); err != nil || len(plain.Parts()) > 0 {
		t.Errorf("%v, %v", plain.Parts(), err)
	}
}

func TestEven(t *testing.T) {
	t.Parallel()
	amd64, err := arch.Named("amd64")
	if err != nil {
		t.Fatal(err)
	}
	s, err := Even(amd64, 2, 4, 1024)
	if err != nil {
		t.Fatal(err)
	}
	want := "-machine pc -cpu max -m 1024M -smp 4,sockets=2,cores=2,threads=1 " +
		"-object memory-backend-ram,id=m0,size=512M -numa node,nodeid=0,memdev=m0,cpus=0-1 " +
		"-object memory-backend-ram,id=m1,size=512M -numa node,nodeid=1,memdev=m1,cpus=2-3 -numa dist,src=0,dst=1,val=20"
	if got := strings.Join(s.Args(), " "); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
	for _, bad := range [][3]int{{0, 4, 1024}, {65, 65, 65536}, {3, 4, 1024}, {4, 2, 1024}, {4, 4, 256}} {
		if _, err := Even(amd64, bad[0], bad[1], bad[2]); err == nil {
			t.Errorf("%v: no error", bad)
		}
	}
}

func TestParseHugePages(t *testing.T) {
	t.Parallel()
	got, err := ParseHugePages("2M=64,32;1G=0,1")
	if want := []HugePages{{"2M", []int{64, 32}}, {"1G", []int{0, 1}}}; err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v, %v; want %v", got, err, want)
	}
	for _, bad := range []string{"", "2M", "4K=1", "2M=x", "2M=-1", "2M=1;"} {
		if _, err := ParseHugePages(bad); err == nil {
			t.Errorf("%q: no error", bad)
		}
	}
}

package top

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	cgroupv1 "github.com/berthd/berth/api/berth/cgroup/v1"
	nodev1 "github.com/berthd/berth/api/berth/node/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/managers/cpuset"
)

var update = flag.Bool("update", false, "write the golden frames anew")

var start = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

func u(v uint64) *uint64 { return &v }

func pod(uid, name, cpus string, containers ...string) *typesv1.PodAllocation {
	p := &typesv1.PodAllocation{Uid: uid, Namespace: "shop", Name: name}
	for _, c := range containers {
		p.Containers = append(p.Containers, &typesv1.ContainerAllocation{
			ContainerName: c, ExclusiveCpus: cpus != "", Cpus: &typesv1.CPUSet{List: cpus}, ContainerIds: []string{uid + c},
		})
	}
	return p
}

// source is three pods: one on ten exclusive CPUs, one with a hostile name, and one that has
// not started again since the first reading.
func source() Source {
	read := func(seconds int) *nodev1.GetUsageResponse {
		n := uint64(seconds)
		out := &nodev1.GetUsageResponse{ReadTime: timestamppb.New(start.Add(time.Duration(seconds) * time.Second))}
		for cpu := range uint32(14) {
			out.CpuTimes = append(out.CpuTimes, &nodev1.CPUTime{Cpu: cpu, BusyNanoseconds: n * uint64(cpu) * 5e7})
		}
		fresh := fmt.Sprint("fresh", seconds)
		out.Containers = []*nodev1.ContainerUsage{
			{PodUid: "a", ContainerName: "main", ContainerId: "amain", CpuNanoseconds: n * 9e9, WorkingSetBytes: 12 << 30,
				ThrottledNanoseconds:    u(n * 1e8),
				NumaMemory:              []*nodev1.NUMAMemory{{NumaNode: 0, Bytes: 10 << 30}, {NumaNode: 1, Bytes: 2 << 30}},
				HugePages:               []*nodev1.HugePageUsage{{PageSizeBytes: 1 << 30, Bytes: 2 << 30}},
				CpuPressureMicroseconds: u(n * 1e5), MemoryPressureMicroseconds: u(0), IoPressureMicroseconds: u(n * 2e4)},
			{PodUid: "b", ContainerName: "x\x1b[2J", ContainerId: "bx", CpuNanoseconds: n * 2e8, WorkingSetBytes: 3 << 20},
			{PodUid: "c", ContainerName: "main", ContainerId: fresh, CpuNanoseconds: 5, WorkingSetBytes: 1 << 20},
		}
		out.Drifts = []*cgroupv1.Drift{{PodUid: "b", ContainerName: "x\x1b[2J"}, {PodUid: "b", ContainerName: "x\x1b[2J"},
			{Cgroup: "/kubepods"}}
		out.OmittedContainers = 2
		return out
	}
	shared, _ := cpuset.Parse("0-1,12-13")
	return Source{
		Pods: map[string]*typesv1.PodAllocation{"a": pod("a", "train", "2-11", "main"),
			"b": pod("b", "web\x1b]0;title\a", "", "x\x1b[2J"), "c": pod("c", "new", "", "main")},
		Shared: shared, Revision: 7, Previous: read(1), Last: read(3),
	}
}

// TestFrames: golden frames after keys.
func TestFrames(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		source        Source
		keys          string
		width, height int
		problem       string
	}{
		"start":    {width: 100, height: 10},
		"table":    {source: source(), width: 160, height: 12},
		"memory":   {source: source(), keys: "sjj", width: 160, height: 12},
		"reversed": {source: source(), keys: "sssssr", width: 160, height: 12},
		"filter":   {source: source(), keys: "/trai", width: 100, height: 10},
		"filtered": {source: source(), keys: "/nex\x7fw\r", width: 100, height: 10},
		"nothing":  {source: source(), keys: "/zzz\rj\r", width: 100, height: 10},
		"cleared":  {source: source(), keys: "/zzz\r\x1b", width: 100, height: 10},
		"narrow":   {source: source(), keys: "jj", width: 30, height: 6},
		"tiny":     {source: source(), width: 1, height: 1},
		"open":     {source: source(), keys: "\r", width: 60, height: 6},
		"scrolled": {source: source(), keys: "\r\x1b[Bj\x1b[A", width: 60, height: 6},
		"end":      {source: source(), keys: "\r\x1b[F", width: 60, height: 6},
		"closed":   {source: source(), keys: "\r\x1b", width: 100, height: 10},
		"problem":  {source: source(), width: 100, height: 10, problem: "berthd has gone\x1b[2J"},
	} {
		m := Model{Table: New(tt.source), By: "cpu", Problem: tt.problem}
		keys, rest := Keys([]byte(tt.keys))
		if rest != nil {
			t.Errorf("%s: %q is left of the keys", name, rest)
		}
		for _, k := range keys {
			if m.Press(k, tt.height) == Open {
				m.Show("other", []string{"not this one"})
				m.Show(m.Opened(), []string{"Pod: shop/train", "line two \x1b[31m", "line three", "line four", "line five", "line six",
					"line seven"})
			}
		}
		var b strings.Builder
		for _, line := range m.View(tt.width, tt.height) {
			mark := " "
			if line.Selected {
				mark = ">"
			}
			fmt.Fprintf(&b, "%s%s\n", mark, line.Text)
		}
		path := filepath.Join("testdata", name+".txt")
		if *update {
			if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if b.String() != string(want) {
			t.Errorf("%s (-update writes it anew):\n%s\nwant\n%s", name, b.String(), want)
		}
	}
}

func TestQuit(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]Effect{
		"q": {Quit}, "\x03": {Quit}, "\rq": {Open, None}, "\r\x03": {Open, Quit}, "/q\x03": {None, None, Quit}, "x": {None},
	} {
		m := Model{Table: New(source()), By: "cpu"}
		keys, _ := Keys([]byte(text))
		var got []Effect
		for _, k := range keys {
			got = append(got, m.Press(k, 10))
		}
		if !slices.Equal(got, want) {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
}

// TestKeysInPieces: a sequence that a terminal sends in pieces is one key.
func TestKeysInPieces(t *testing.T) {
	t.Parallel()
	keys, rest := Keys([]byte("a\x1b["))
	if !slices.Equal(keys, []Key{'a'}) || string(rest) != "\x1b[" {
		t.Errorf("%v, %q", keys, rest)
	}
	if keys, rest = Keys(append(rest, '5', '~')); !slices.Equal(keys, []Key{KeyPageUp}) || rest != nil {
		t.Errorf("%v, %q", keys, rest)
	}
	if keys, rest = Keys([]byte("\x1b[" + strings.Repeat("1", 99))); keys != nil || rest != nil {
		t.Errorf("%v, %q", keys, rest)
	}
}

// TestAnyKeys: whatever is pressed, frames keep to the screen and have nothing that a terminal
// would act on.
func TestAnyKeys(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := source()
		for i := range rapid.IntRange(0, 40).Draw(t, "pods") {
			name := rapid.String().Draw(t, "name")
			s.Pods[fmt.Sprint(i)] = pod(fmt.Sprint(i), name, "", name)
		}
		m := Model{Table: New(s), By: "cpu"}
		keys, _ := Keys([]byte(rapid.StringOf(rapid.RuneFrom([]rune("jkgGsr/q \r\x1b[ABHF56~\x7fxé"))).Draw(t, "keys")))
		width, height := rapid.IntRange(0, 200).Draw(t, "width"), rapid.IntRange(0, 60).Draw(t, "height")
		for _, k := range keys {
			if m.Press(k, height) == Open {
				m.Show(m.Opened(), []string{rapid.String().Draw(t, "line")})
			}
			frame := m.View(width, height)
			if len(frame) > max(height, 1) {
				t.Fatalf("%d lines, want at most %d", len(frame), height)
			}
			for _, line := range frame {
				if utf8.RuneCountInString(line.Text) > max(width, 1) ||
					strings.ContainsFunc(line.Text, func(r rune) bool { return !unicode.IsPrint(r) }) {
					t.Fatalf("a line of %d columns, or with control characters: %q", width, line.Text)
				}
			}
		}
	})
}

func FuzzKeys(f *testing.F) {
	f.Add([]byte("a\x1b[A\x1b"))
	f.Fuzz(func(t *testing.T, input []byte) {
		keys, rest := Keys(input)
		if len(keys) > len(input) || len(rest) > len(input) {
			t.Errorf("%d keys and %d bytes of %d", len(keys), len(rest), len(input))
		}
	})
}

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
	"github.com/berthd/berth/clients/internal/table"
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

// TestNotStarted: a pod that has not started is among the others, and an init container only while it runs.
func TestNotStarted(t *testing.T) {
	t.Parallel()
	s := source()
	fresh := pod("d", "waits", "", "main")
	fresh.Containers[0].ContainerIds = nil
	fresh.Containers = append(fresh.Containers, &typesv1.ContainerAllocation{
		ContainerName: "first", Role: typesv1.ContainerRole_CONTAINER_ROLE_INIT,
	})
	s.Pods["d"] = fresh
	var got []string
	for _, row := range New(s).Rows {
		if row.Pod == "shop/waits" {
			got = append(got, row.Container)
		}
	}
	if !slices.Equal(got, []string{"main"}) {
		t.Errorf("it has the rows %q, want main", got)
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
		"narrow":   {source: source(), keys: "jj", width: 30, height: 8},
		"low":      {source: source(), width: 60, height: 6},
		"eighty":   {source: long(12), keys: "\x1b[6~j", width: 80, height: 12},
		"pressure": {source: long(12), keys: "sss", width: 80, height: 12},
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

// long is source with many more containers, whose pods have names as Kubernetes makes them.
func long(n int) Source {
	s := source()
	for i := range n {
		uid := fmt.Sprintf("replica%02d", i)
		s.Pods[uid] = pod(uid, fmt.Sprintf("inference-server-7d4b9c8f6d-x%02d", i), "", "main-container")
		s.Last.Containers = append(s.Last.Containers, &nodev1.ContainerUsage{PodUid: uid, ContainerName: "main-container", ContainerId: uid,
			WorkingSetBytes: uint64(i+1) << 28})
	}
	return s
}

// TestColumns: a narrow screen leaves out the least important columns, and shortens names before that. A column is never there without
// those that are more important, the lines of the table fit, and MEMORY is there on every screen that can show it.
func TestColumns(t *testing.T) {
	t.Parallel()
	important := []string{"POD", "CPU", "MEMORY", "CONTAINER", "THROTTLED", "EXCLUSIVE", "DRIFT", "BUSY", "PRESSURE", "NODES", "HUGE"}
	for _, by := range Orders() {
		most := slices.DeleteFunc(slices.Clone(important), func(h string) bool { return h == strings.ToUpper(by) })
		most = slices.Insert(most, min(3, slices.Index(important, strings.ToUpper(by))), strings.ToUpper(by))
		before := 0
		for width := range 200 {
			m := Model{Table: New(long(12)), By: by}
			frame := m.View(width, 30)
			shown := strings.Fields(frame[4].Text)
			for _, header := range shown {
				if slices.Index(most, header) >= len(shown) {
					t.Errorf("by %s, %d columns: %q without what is more important", by, width, shown)
				}
			}
			if width >= 30 && !slices.Contains(shown, "MEMORY") || len(shown) < before && width > 4 {
				t.Errorf("by %s, %d columns: %q after %d", by, width, shown, before)
			}
			before = len(shown)
			left := len(columns) - len(shown)
			if width >= 100 && left > 0 != strings.Contains(frame[3].Text, "hidden: ") {
				t.Errorf("by %s, %d columns: %q, said %q", by, width, shown, frame[3].Text)
			}
		}
		if before != len(columns) {
			t.Errorf("by %s: %d columns of the widest screen", by, before)
		}
	}
}

// TestScroll: page keys move by the rows that are visible, so that each row is seen once on the way, arrows move the rows only at the edge,
// and the line above the headers says which rows are there.
func TestScroll(t *testing.T) {
	t.Parallel()
	const height, rows = 12, 23 // 6 rows are visible
	visible := func(m *Model) (names []string, said string) {
		frame := m.View(140, height)
		for _, line := range frame[5 : height-1] {
			if pod, _, ok := strings.Cut(line.Text, " "); ok {
				names = append(names, pod)
			}
		}
		return names, frame[3].Text
	}
	press := func(m *Model, keys string) {
		decoded, _ := Keys([]byte(keys))
		for _, k := range decoded {
			m.Press(k, height)
		}
	}
	m := &Model{Table: New(long(rows - 3)), By: "pod"}
	var all []string
	for _, r := range m.Rows() {
		all = append(all, table.Printable(r.Pod))
	}
	for _, way := range []struct{ next, name string }{{"\x1b[6~", "PgDn"}, {" ", "space"}} {
		press(m, "g")
		for from := 0; from+6 < rows; from += 6 {
			if names, said := visible(m); !slices.Equal(names, all[from:from+6]) ||
				!strings.HasPrefix(said, fmt.Sprintf("rows %d-%d of %d by pod", from+1, from+6, rows)) {
				t.Fatalf("%s: %q, said %q, want %q", way.name, names, said, all[from:from+6])
			}
			press(m, way.next+strings.Repeat("j", 5)+strings.Repeat("k", 5)) // what stands below is visible, too
		}
		if names, said := visible(m); !slices.Equal(names, all[rows-6:]) || !strings.HasPrefix(said, "rows 18-23 of 23") {
			t.Errorf("%s, the end: %q, said %q", way.name, names, said)
		}
	}
	press(m, "g"+strings.Repeat("\x1b[B", 5))
	if names, _ := visible(m); names[0] != all[0] {
		t.Errorf("5 rows down: %q", names)
	}
	press(m, "j")
	if names, _ := visible(m); names[0] != all[1] || m.View(140, height)[10].Selected != true {
		t.Errorf("6 rows down: %q", names)
	}
	press(m, strings.Repeat("k", 5))
	if names, _ := visible(m); names[0] != all[1] {
		t.Errorf("5 rows up: %q", names)
	}
	press(m, "\x1b[A\x1b[5~")
	if names, _ := visible(m); names[0] != all[0] {
		t.Errorf("at the top: %q", names)
	}
	press(m, "G")
	if names, _ := visible(m); names[5] != all[rows-1] {
		t.Errorf("at the end: %q", names)
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

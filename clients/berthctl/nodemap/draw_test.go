package nodemap

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/numa"
)

var update = flag.Bool("update", false, "write the golden files anew")

func build(t testing.TB, shape string) *machine.Topology {
	t.Helper()
	s, err := machine.ParseShape(shape)
	if err != nil {
		t.Fatal(err)
	}
	m, err := machine.New(s)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func list(t testing.TB, text string) cpuset.Set {
	t.Helper()
	s, err := cpuset.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// crowded is a machine with every kind of use.
func crowded(t testing.TB) State {
	kernel := uint64(20 << 30)
	m := build(t, "2s1n4c2t2m")
	s := State{
		Machine: m, Offline: list(t, "3"), Reserved: list(t, "0,8"), Revision: 41,
		Pods: []Pod{
			{UID: "a", Name: "default/train", CPUs: list(t, "1-2,9-10"),
				Blocks: []Block{{"memory", numa.Of(0), 12 << 30}, {"hugepages-1Gi", numa.Of(0), 2 << 30}}},
			{UID: "b", Name: "shop/\x1b[31mdb", CPUs: list(t, "3-4,12"), Blocks: []Block{{"memory", numa.Of(0, 1), 30 << 30}}},
			{UID: "c", Name: "shop/web"},
		},
		Memory: []Memory{
			{Node: 0, Resource: "memory", Reserved: 2 << 30, Allocatable: 30 << 30, Held: 30 << 30, KernelFree: &kernel},
			{Node: 0, Resource: "hugepages-1Gi", Allocatable: 8 << 30, Held: 2 << 30},
			{Node: 1, Resource: "memory", Allocatable: 32 << 30, Held: 12 << 30},
			{Node: 2, Resource: "memory", Allocatable: 64 << 30}, {Node: 3, Resource: "memory", Allocatable: 64 << 30},
		},
		Devices: []Device{
			{Resource: "example.com/gpu", ID: "g0", Nodes: numa.Of(0), Healthy: true, Pod: "a"},
			{Resource: "example.com/gpu", ID: "g1", Nodes: numa.Of(0), Healthy: true},
			{Resource: "example.com/gpu", ID: "g2", Nodes: numa.Of(0), Pod: "b"},
			{Resource: "example.com/nic", ID: "n0", Nodes: numa.Of(0, 1), Healthy: true, Pod: "gone"},
			{Resource: "example.com/odd\n", ID: "o0"},
		},
	}
	held := s.Reserved
	for _, p := range s.Pods {
		held = held.Union(p.CPUs)
	}
	s.Shared = m.CPUs().Minus(held).Minus(s.Offline).Minus(list(t, "15"))
	return s
}

func TestPictures(t *testing.T) {
	t.Parallel()
	s := crowded(t)
	for name, o := range map[string]Options{
		"threads": {Width: 80},
		"ascii":   {Width: 60, ASCII: true, Detail: DetailThreads},
		"cores":   {Width: 80, Detail: DetailCores},
		"caches":  {Width: 80, Detail: DetailCaches},
		"nodes":   {Width: 80, Detail: DetailNodes},
		"folded":  {Width: 80, Lines: 20},
		"node":    {Width: 80, Nodes: numa.Of(1)},
		"pod":     {Width: 80, Pod: "b", Color: true, Detail: DetailCores},
		"narrow":  {Width: 1},
	} {
		got := Draw(s, o)
		path := filepath.Join("testdata", name+".txt")
		if *update {
			if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if got != string(want) {
			t.Errorf("%s (-update writes it anew):\n%s\nwant\n%s", name, got, want)
		}
	}
}

// anyState is a machine of any size and shape, with CPUs and memory held at random.
func anyState(t *rapid.T) State {
	shape := fmt.Sprintf("%ds%dn%dc%dt", rapid.IntRange(1, 4).Draw(t, "sockets"), rapid.IntRange(1, 3).Draw(t, "nodes"),
		rapid.IntRange(1, 24).Draw(t, "cores"), rapid.IntRange(1, 4).Draw(t, "threads"))
	if extra := rapid.IntRange(0, 20).Draw(t, "memory nodes"); extra > 0 {
		shape += fmt.Sprintf("%dm", extra)
	}
	parsed, err := machine.ParseShape(shape)
	if err != nil {
		t.Fatal(err)
	}
	m, err := machine.New(parsed)
	if err != nil {
		t.Fatal(err)
	}
	s := State{Machine: m}
	text := rapid.String().Filter(func(s string) bool { return !strings.ContainsAny(s, "·▒×…") })
	free := m.CPUs()
	for i := range rapid.IntRange(0, 70).Draw(t, "pods") {
		n := rapid.IntRange(0, min(6, free.Len())).Draw(t, "CPUs")
		set := free.Lowest(n)
		free = free.Minus(set)
		node := rapid.SampledFrom(m.NodeMask().IDs()).Draw(t, "node")
		s.Pods = append(s.Pods, Pod{
			UID: fmt.Sprint(i), Name: text.Draw(t, "name"), CPUs: set,
			Blocks: []Block{{"memory", numa.Of(node), rapid.Uint64Range(0, 1<<40).Draw(t, "bytes")}},
		})
		s.Devices = append(s.Devices, Device{Resource: text.Draw(t, "resource"), Nodes: numa.Of(node),
			Healthy: rapid.Bool().Draw(t, "healthy"), Pod: fmt.Sprint(i)})
	}
	s.Shared = free
	for id := range m.NodeMask().All() {
		total := rapid.Uint64Range(0, 1<<42).Draw(t, "total")
		s.Memory = append(s.Memory, Memory{Node: id, Resource: "memory", Reserved: total / 10, Allocatable: total - total/10,
			Held: rapid.Uint64Range(0, 1<<42).Draw(t, "held")})
	}
	return s
}

func TestWidthAndCPUs(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := anyState(t)
		o := Options{
			Width: rapid.IntRange(1, 200).Draw(t, "width"), Lines: rapid.IntRange(0, 100).Draw(t, "lines"),
			Detail: Detail(rapid.IntRange(0, 4).Draw(t, "detail")), ASCII: rapid.Bool().Draw(t, "ascii"),
		}
		picture := Draw(s, o)
		for line := range strings.Lines(picture) {
			if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > max(o.Width, MinWidth) {
				t.Fatalf("a line has %d columns, and the width is %d: %q", n, o.Width, line)
			}
		}
		if o.ASCII && strings.ContainsAny(picture, "·▒×…") {
			t.Fatal("a picture in ASCII has other signs")
		}
		if o.Detail == DetailThreads {
			if drawn := cpuSigns(picture); drawn != s.Machine.CPUs().Len() {
				t.Fatalf("%d CPUs are drawn of %d:\n%s", drawn, s.Machine.CPUs().Len(), picture)
			}
		}
		if again := Draw(s, o); again != picture {
			t.Fatal("two pictures of one state differ")
		}
	})
}

// cpuSigns counts the signs in the lines of caches.
func cpuSigns(picture string) (n int) {
	inside := false
	for line := range strings.Lines(picture) {
		signs := line
		switch {
		case strings.HasPrefix(line, "    cache "):
			inside, signs = true, line[4+labelWidth:]
		case !strings.HasPrefix(line, strings.Repeat(" ", 4+labelWidth)):
			inside = false
		}
		if inside {
			n += utf8.RuneCountInString(strings.Join(strings.Fields(signs), ""))
		}
	}
	return n
}

// BenchmarkDraw draws 4,096 CPUs with 500 pods.
func BenchmarkDraw(b *testing.B) {
	m := build(b, "8s2n128c2t")
	s := State{Machine: m}
	free := m.CPUs()
	for i := range 500 {
		set := free.Lowest(6)
		free = free.Minus(set)
		s.Pods = append(s.Pods, Pod{UID: fmt.Sprint(i), Name: fmt.Sprintf("default/pod-%d", i), CPUs: set,
			Blocks: []Block{{"memory", numa.Of(i % 16), 1 << 30}}})
	}
	s.Shared = free
	for id := range m.NodeMask().All() {
		s.Memory = append(s.Memory, Memory{Node: id, Resource: "memory", Allocatable: 256 << 30, Held: 32 << 30})
	}
	for _, width := range []int{80, 200} {
		b.Run(fmt.Sprint(width), func(b *testing.B) {
			for b.Loop() {
				Draw(s, Options{Width: width, Lines: 60, Color: true})
			}
		})
	}
}

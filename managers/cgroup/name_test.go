package cgroup

import (
	"path"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/workload"
)

func TestNewName(t *testing.T) {
	t.Parallel()
	base := append(make(Name, 0, 8), "a")
	one, err := NewName(base, "b")
	if err != nil {
		t.Fatal(err)
	}
	two, err := NewName(base, "c")
	if err != nil || one.String() != "/a/b" || two.String() != "/a/c" {
		t.Errorf("names %s and %s, %v: they share memory", one, two, err)
	}
	for _, bad := range []string{"a_b", "a/b", "_", "/"} {
		if _, err := NewName(nil, "ok", bad); errdefs.ClassOf(err) != errdefs.Invalid {
			t.Errorf("component %q: %v, want class invalid", bad, err)
		}
	}
	if n, err := NewName(Name{"x_y", ""}, "z"); err != nil || !n.Equal(Name{"x_y", "", "z"}) {
		t.Errorf("a base is not looked at: got %v, %v", n, err)
	}
}

func TestLiterals(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name     Name
		cgroupfs string
		systemd  string // empty: an error
	}{
		{nil, "/", "/"},
		{Name{""}, "/", "/"},
		{Name{"", ""}, "/", "/"},
		{Name{"kubepods"}, "/kubepods", "/kubepods.slice"},
		{Name{"kubepods", "burstable", "pod1-2"}, "/kubepods/burstable/pod1-2",
			"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1_2.slice"},
		{Name{"-"}, "/-", "/_.slice"},
		{Name{"a", ""}, "/a", ""},
		{Name{"", "a"}, "/a", ""},
		{Name{"a/b"}, "/a/b", ""},
		{Name{"a_b"}, "/a_b", "/a_b.slice"},
		{Name{"system.slice"}, "/system.slice", "/system.slice.slice"},
	} {
		if got := row.name.ToCgroupfs(); got != row.cgroupfs {
			t.Errorf("%q.ToCgroupfs() = %q, want %q", row.name, got, row.cgroupfs)
		}
		got, err := row.name.ToSystemd()
		if got != row.systemd || (err == nil) == (row.systemd == "") {
			t.Errorf("%q.ToSystemd() = %q, %v, want %q", row.name, got, err, row.systemd)
		}
		if err != nil && errdefs.ClassOf(err) != errdefs.Invalid {
			t.Errorf("%q.ToSystemd(): class %s, want invalid", row.name, errdefs.ClassOf(err))
		}
	}
}

func TestParse(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		literal           string
		cgroupfs, systemd Name
	}{
		{"/", Name{}, Name{"/"}},
		{"", Name{}, Name{"."}},
		{"/kubepods", Name{"kubepods"}, Name{"kubepods"}},
		{"/system.slice", Name{"system.slice"}, Name{"system"}},
		{"/system.slice/kubelet.service", Name{"system.slice", "kubelet.service"}, Name{"kubelet.service"}},
		{"/foo-bar", Name{"foo-bar"}, Name{"foo", "bar"}},
		{"/a/", Name{"a", ""}, Name{"a"}},
		{"/k.slice/k-b.slice/k-b-pod1_2.slice", Name{"k.slice", "k-b.slice", "k-b-pod1_2.slice"}, Name{"k", "b", "pod1-2"}},
	} {
		if got := Cgroupfs.Parse(row.literal); !got.Equal(row.cgroupfs) {
			t.Errorf("cgroupfs reads %q as %q, want %q", row.literal, got, row.cgroupfs)
		}
		if got := Systemd.Parse(row.literal); !got.Equal(row.systemd) {
			t.Errorf("systemd reads %q as %q, want %q", row.literal, got, row.systemd)
		}
	}
}

// good generates names that both drivers can spell and read back.
func good() *rapid.Generator[Name] {
	return rapid.Custom(func(t *rapid.T) Name {
		return rapid.SliceOfN(rapid.StringMatching(`[a-zA-Z0-9.:-]{1,12}`), 1, 4).
			Filter(func(n []string) bool { return Name(n).Check() == nil && checkRoot(n, Systemd) == nil }).Draw(t, "name")
	})
}

func TestGoodNamesSurviveBothDrivers(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		n := good().Draw(t, "name")
		for _, d := range []Driver{Cgroupfs, Systemd} {
			literal, err := d.Literal(n)
			if err != nil {
				t.Fatalf("%s cannot spell %q: %v", d, n, err)
			}
			if back := d.Parse(literal); !back.Equal(n) {
				t.Fatalf("%s: %q became %q and came back as %q", d, n, literal, back)
			}
			if literal != path.Clean(literal) || !strings.HasPrefix(literal, "/") {
				t.Fatalf("%s: %q is no clean absolute path", d, literal)
			}
		}
	})
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"", "/", "//", "/a/", "/a_b.slice", "/k.slice/k-b.slice", "-.slice", "/..", "/a\x00b", "/a//b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, literal string) {
		for _, d := range []Driver{Cgroupfs, Systemd} {
			n := d.Parse(literal)
			again, err := d.Literal(n)
			if err != nil {
				if errdefs.ClassOf(err) != errdefs.Invalid {
					t.Fatalf("%s: %q: class %s", d, literal, errdefs.ClassOf(err))
				}
				continue
			}
			if n.Check() == nil && !d.Parse(again).Equal(n) {
				t.Fatalf("%s: %q became %q, then %q, then %q", d, literal, n, again, d.Parse(again))
			}
		}
	})
}

func FuzzLayout(f *testing.F) {
	for _, s := range []string{"", "/", "/foo", "foo/bar", "/foo.slice", "/a_b", "/a/", "/../x"} {
		f.Add(s, "0f3c1d2e-aaaa-bbbb-cccc-1234567890ab")
	}
	f.Fuzz(func(t *testing.T, root, uid string) {
		for _, d := range []Driver{Cgroupfs, Systemd} {
			l, err := NewLayout(root, d)
			if err != nil {
				continue
			}
			for _, class := range []workload.QoSClass{workload.Guaranteed, workload.Burstable, workload.BestEffort} {
				n, err := l.Pod(class, uid)
				if err != nil {
					continue
				}
				if got, ok := l.PodUID(n); !ok || got != uid {
					t.Fatalf("%s below %q: pod %q came back as %q, %t", d, root, uid, got, ok)
				}
				literal, err := l.Literal(n)
				if err != nil || strings.Contains(literal, "/../") {
					t.Fatalf("%s below %q: pod %q is %q, %v", d, root, uid, literal, err)
				}
			}
		}
	})
}

func TestCheck(t *testing.T) {
	t.Parallel()
	for _, n := range []Name{nil, {"a"}, {"a_b", "c-d", "x.service"}, {strings.Repeat("x", longest)}} {
		if err := n.Check(); err != nil {
			t.Errorf("%q: %v", n, err)
		}
	}
	for _, n := range []Name{{""}, {"a", ""}, {"."}, {".."}, {"a/b"}, {"a\n"}, {"\x7f"}, {strings.Repeat("x", longest+1)}} {
		if err := n.Check(); errdefs.ClassOf(err) != errdefs.Invalid || err == nil {
			t.Errorf("%q: %v, want class invalid", n, err)
		}
	}
}

func TestFamily(t *testing.T) {
	t.Parallel()
	n := Name{"a", "b"}
	if !n.Parent().Equal(Name{"a"}) || n.Base() != "b" || !Name(nil).Parent().IsRoot() || Name(nil).Base() != "" {
		t.Error("wrong parent or base")
	}
	if !n.Within(n) || !n.Within(nil) || !n.Within(Name{"a"}) || n.Within(Name{"b"}) || Name(nil).Within(n) {
		t.Error("wrong Within")
	}
	_ = append(n.Parent(), "x")
	if n[1] != "b" {
		t.Error("a parent shares memory with its child")
	}
}

func TestLayout(t *testing.T) {
	t.Parallel()
	const uid = "8d3f0a1e-2b4c-4d5e-9f60-718293000004"
	for _, row := range []struct {
		root   string
		driver Driver
		class  workload.QoSClass
		want   string
	}{
		{"", Cgroupfs, workload.Guaranteed, "/kubepods/pod" + uid},
		{"/", Cgroupfs, workload.Burstable, "/kubepods/burstable/pod" + uid},
		{"/foo", Cgroupfs, workload.BestEffort, "/foo/kubepods/besteffort/pod" + uid},
		{"/", Systemd, workload.Burstable,
			"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod8d3f0a1e_2b4c_4d5e_9f60_718293000004.slice"},
		{"/foo", Systemd, workload.Guaranteed,
			"/foo.slice/foo-kubepods.slice/foo-kubepods-pod8d3f0a1e_2b4c_4d5e_9f60_718293000004.slice"},
	} {
		l, err := NewLayout(row.root, row.driver)
		if err != nil {
			t.Fatal(err)
		}
		n, err := l.Pod(row.class, uid)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := l.Literal(n); got != row.want || err != nil {
			t.Errorf("%s below %q: %q, %v, want %q", row.driver, row.root, got, err, row.want)
		}
	}
	for root, driver := range map[string]Driver{"/a/": Cgroupfs, "/..": Cgroupfs, "/a_b": Systemd, "/foo.slice": Systemd} {
		if _, err := NewLayout(root, driver); errdefs.ClassOf(err) != errdefs.Invalid || err == nil {
			t.Errorf("%s below %q: %v, want class invalid", driver, root, err)
		}
	}
}

func TestPodUID(t *testing.T) {
	t.Parallel()
	l, err := NewLayout("/", Cgroupfs)
	if err != nil {
		t.Fatal(err)
	}
	for literal, want := range map[string]string{
		"/kubepods/pod1":              "1",
		"/kubepods/burstable/pod1":    "1",
		"/kubepods/besteffort/podpod": "pod",
		"/kubepods/burstable":         "",
		"/kubepods/pod":               "",
		"/kubepods/xpod12":            "",
		"/kubepods/pod1/container":    "",
		"/machine/podman1":            "",
		"/pod1":                       "",
		"/":                           "",
	} {
		if got, ok := l.PodUID(ParseCgroupfs(literal)); got != want || ok != (want != "") {
			t.Errorf("%s: %q, %t, want %q", literal, got, ok, want)
		}
	}
	if _, err := l.Pod(workload.Burstable, ""); err == nil {
		t.Error("an empty uid was accepted")
	}
}

func TestOrphans(t *testing.T) {
	t.Parallel()
	l, err := NewLayout("/", Cgroupfs)
	if err != nil {
		t.Fatal(err)
	}
	seen := &Snapshot{}
	for _, s := range []string{
		"/kubepods", "/kubepods/burstable", "/kubepods/burstable/podmoved", "/kubepods/burstable/podunknown",
		"/kubepods/podknown", "/kubepods/podknown/container", "/kubepods/podmoved",
	} {
		seen.Nodes = append(seen.Nodes, Observed{Name: ParseCgroupfs(s), State: Invalid})
	}
	seen.Nodes = append(seen.Nodes, Observed{Name: ParseCgroupfs("/kubepods/podabsent")})
	got := l.Orphans(seen, func(uid string) (workload.QoSClass, bool) {
		return workload.Guaranteed, uid == "known" || uid == "moved"
	})
	want := []Name{ParseCgroupfs("/kubepods/burstable/podmoved"), ParseCgroupfs("/kubepods/burstable/podunknown")}
	if !slices.EqualFunc(got, want, Name.Equal) {
		t.Errorf("orphans %v, want %v", got, want)
	}
}

func TestParseDriver(t *testing.T) {
	t.Parallel()
	for _, d := range []Driver{Cgroupfs, Systemd} {
		if got, err := ParseDriver(string(d)); got != d || err != nil {
			t.Errorf("ParseDriver(%q) = %q, %v", d, got, err)
		}
	}
	if _, err := ParseDriver("Systemd"); errdefs.ClassOf(err) != errdefs.Invalid || err == nil {
		t.Errorf("unknown driver: %v, want class invalid", err)
	}
}

package table

import "testing"

// TestJoin: rows of all sources in their order, columns that only some have, and hidden columns at the end.
func TestJoin(t *testing.T) {
	t.Parallel()
	one := New("NAME", "CPU").Wide(false, "UID").Key("NAME")
	one.Row("a", "1-2", "u-a")
	two := New("NAME", "CPU", "hugepages-2Mi").Wide(false, "UID", "OWNER").Key("NAME")
	two.Row("b", "3", "4", "u-b", "x")
	for _, row := range []struct {
		parts []Part
		want  string
		names string
	}{
		{nil, "NODE\n", "[]"},
		{[]Part{{"n1", one}, {"n2", two}, {"n3", two.Empty()}},
			"NODE  NAME  CPU  hugepages-2Mi\nn1    a     1-2  -\nn2    b     3    4\n", "[n1/a n2/b]"},
		{[]Part{{"n1", New("X")}, {"n2", New("X")}}, "NODE  X\n", "[]"},
	} {
		got := Join("NODE", row.parts...)
		if text := got.String(); text != row.want {
			t.Errorf("%q, want %q", text, row.want)
		}
		if names := got.Names(); len(names) > 0 && row.names != "["+names[0]+" "+names[1]+"]" {
			t.Errorf("names %q, want %s", names, row.names)
		}
	}
	wide := New("NAME").Wide(true, "UID")
	wide.Row("a", "u")
	if got := Join("NODE", Part{"n1", wide}).String(); got != "NODE  NAME  UID\nn1    a     u\n" {
		t.Errorf("wide: %q", got)
	}
}

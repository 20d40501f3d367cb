package table

import (
	"encoding/json"
	"maps"
	"math"
	"strings"
	"testing"
	"time"
	"unicode"

	"pgregory.net/rapid"
)

func TestTable(t *testing.T) {
	t.Parallel()
	fill := func(wide bool) string {
		tab := New("NAME", "CPUS").Wide(wide, "UID")
		tab.Row("wéb", "0-3", "u-1")
		tab.Row("database", "", "")
		if tab.Len() != 2 {
			t.Errorf("%d rows", tab.Len())
		}
		return tab.String()
	}
	if got, want := fill(false), "NAME      CPUS\nwéb       0-3\ndatabase  -\n"; got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	if got, want := fill(true), "NAME      CPUS  UID\nwéb       0-3   u-1\ndatabase  -     -\n"; got != want {
		t.Errorf("wide: got\n%swant\n%s", got, want)
	}
}

func TestFields(t *testing.T) {
	t.Parallel()
	f := NewFields("  ")
	f.Add("Name", "web")
	f.Add("Nothing")
	f.Add("Empty", "", "")
	f.Add("Devices", "a", "", "b")
	if got, want := f.String(), "  Name:     web\n  Devices:  a\n            b\n"; got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

func TestBytes(t *testing.T) {
	t.Parallel()
	for n, want := range map[uint64]string{
		0: "0", 1: "1", 1023: "1023", 1024: "1Ki", 1536: "1.5Ki", 1 << 20: "1Mi", 16 << 30: "16Gi",
		16777216000: "15.6Gi", 1<<30 + 1: "1Gi", 1 << 40: "1Ti", math.MaxUint64: "16Ei",
	} {
		if got := Bytes(n); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
}

func TestAge(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		-time.Hour: "0s", 0: "0s", 119 * time.Second: "119s", 2 * time.Minute: "2m", 119 * time.Minute: "119m",
		2 * time.Hour: "2h", 47 * time.Hour: "47h", 48 * time.Hour: "2d", 1000 * time.Hour: "41d",
	} {
		if got := Age(d); got != want {
			t.Errorf("%v: %s, want %s", d, got, want)
		}
	}
}

func TestCount(t *testing.T) {
	t.Parallel()
	for n, want := range map[int]string{0: "0 cores", 1: "1 core", 2: "2 cores"} {
		if got := Count(n, "core"); got != want {
			t.Errorf("%d: %s", n, got)
		}
	}
}

// TestPrintable has texts that a terminal would act on: they are shown.
func TestPrintable(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ in, want string }{
		{"", ""}, {"plain text, with ünïcode and 漢字", "plain text, with ünïcode and 漢字"}, {`back\slash "quotes"`, `back\slash "quotes"`},
		{"\x1b[2J\x1b]0;title\a", `\x1b[2J\x1b]0;title\a`}, {"a\nb\tc\rd", `a\nb\tc\rd`}, {"\x9b31m", `\x9b31m`},
		{"\u009b31m", `\u009b31m`},
		{"\u202eforged", `\u202eforged`}, {"a\u2028b", `a\u2028b`}, {"\xff", `\xff`}, {"\x00\x7f", `\x00\x7f`}, {"\ufffd", "\ufffd"},
		{"a\u00a0b", `a\u00a0b`},
	} {
		if got := Printable(row.in); got != row.want {
			t.Errorf("%q: got %q, want %q", row.in, got, row.want)
		}
	}
	if got, want := Lines("a\nb\x1b[0m\rc"), "a\n  b\\x1b[0m\\rc"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	forged := New("NAME", "STATUS")
	forged.Row("a\nb  Running", "Failed")
	fields := NewFields("")
	fields.Add("Message", "x\nUID: forged")
	for _, text := range []string{forged.String(), fields.String()} {
		if strings.Contains(text, "\nb  ") || strings.Contains(text, "\nUID") {
			t.Errorf("a forged line in %q", text)
		}
	}
}

// TestJSON: a document means what it meant, and has nothing that a terminal would act on.
func TestJSON(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		want := rapid.MapOf(rapid.String(), rapid.String()).Draw(t, "document")
		raw, err := json.MarshalIndent(want, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]string{}
		if err := json.Unmarshal(JSON(raw), &got); err != nil || !maps.Equal(got, want) {
			t.Fatalf("%q became %q, %v", want, got, err)
		}
		if i := strings.IndexFunc(string(JSON(raw)), func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }); i >= 0 {
			t.Fatalf("a terminal acts on %q", JSON(raw)[i:])
		}
	})
}

// TestChanges: rows by their key; ages alone are no change, and rows that are gone are reported.
func TestChanges(t *testing.T) {
	t.Parallel()
	tab := func(rows ...string) *Table {
		out := New("NAME", "CPUS", "AGE").Wide(false, "UID").Key("NAME", "UID")
		for _, r := range rows {
			out.Row(strings.Fields(r)...)
		}
		return out
	}
	before, after := tab("a 1 5s u1", "b 2 5s u2", "c 3 5s u3"), tab("a 1 9s u1", "b 4 9s u2", "d 3 9s u4")
	widths := []int{}
	style := Style{NoHeaders: true, Widths: &widths}
	want := "ADDED  a  1  5s\nADDED  b  2  5s\nADDED  c  3  5s\n"
	if got := before.Changes(nil, "AGE").Print(style); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	want = "MODIFIED  b  4  9s\nADDED     d  3  9s\nDELETED   c  3  5s\n"
	if got := after.Changes(before, "AGE").Print(style); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	if got := after.Changes(after, "AGE"); got.Len() != 0 {
		t.Errorf("changes of nothing: %v", got)
	}
	if got := strings.Join(after.Names(), " "); got != "a/u1 b/u2 d/u4" {
		t.Errorf("names %s", got)
	}
}

// TestPaint: colors surround what is escaped already, and do not move a column.
func TestPaint(t *testing.T) {
	t.Parallel()
	tab := New("ID", "HEALTH", "NODE")
	tab.Row("a\x1b[2J", "Unhealthy", "0")
	got := tab.Print(Style{Paint: func(column, cell string) string {
		if column == "HEALTH" && cell == "Unhealthy" {
			return "31"
		}
		return ""
	}})
	want := "ID        HEALTH     NODE\na\\x1b[2J  \x1b[31mUnhealthy\x1b[0m  0\n"
	if got != want {
		t.Errorf("got\n%q\nwant\n%q", got, want)
	}
}

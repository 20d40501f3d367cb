package table

import (
	"cmp"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestSortBy(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ name, by, cells, want string }{
		{"bytes", "size", "1.5Gi 200Mi 3Ki 1000Gi", "3Ki 200Mi 1.5Gi 1000Gi"},
		{"ages", "SIZE", "3h 90s 100m 2d 50h", "90s 100m 3h 2d 50h"},
		{"amounts in texts", "SIZE", "memory=1Gi@0 memory=512Mi@0 hugepages-2Mi=4Mi", "hugepages-2Mi=4Mi memory=512Mi@0 memory=1Gi@0"},
		{"CPUs in thousandths", "SIZE", "1500m 2 500m", "500m 1500m 2"},
		{"amounts, words and both", "SIZE", "1Ki 9x 10", "9x 10 1Ki"},
		{"counts", "SIZE", "10 9 1.5", "1.5 9 10"},
		{"names", "SIZE", "gpu10 gpu2 gpu02 nic", "gpu2 gpu02 gpu10 nic"},
		{"CPUs", "SIZE", "10-11 2-3,8 2-3 shared", "2-3 2-3,8 10-11 shared"},
		{"amounts and words", "SIZE", "shared 10 9", "9 10 shared"},
		{"nothing last", "SIZE", "2 _ 1", "1 2 _"},
		{"the other way round", "-size", "2 _ 1", "2 1 _"},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			table := New("NAME").Wide(false, "SIZE")
			for i, c := range strings.Fields(row.cells) {
				table.Row(strings.Repeat("x", i), strings.ReplaceAll(c, "_", ""))
			}
			if !table.SortBy(row.by) {
				t.Fatal("there is such a column")
			}
			var got []string
			for _, r := range table.rows {
				got = append(got, cmp.Or(r[1], "_"))
			}
			if !slices.Equal(got, strings.Fields(row.want)) {
				t.Errorf("got %q, want %s", got, row.want)
			}
		})
	}
	rapid.Check(t, func(r *rapid.T) {
		cell := rapid.StringMatching(`([0-9]{1,3}(Ki|Gi|m|s|x|\.5)?|[a-z=@-]{0,3}){0,3}`)
		a, b, c := cell.Draw(r, "a"), cell.Draw(r, "b"), cell.Draw(r, "c")
		if compare(a, b, minute) > 0 || compare(b, c, minute) > 0 {
			return
		}
		if compare(a, c, minute) > 0 || compare(b, a, minute) < 0 {
			r.Errorf("%q, %q, %q are in no order", a, b, c)
		}
	})
	if table := New("NAME"); table.SortBy("age") {
		t.Error("there is no such column")
	}
}

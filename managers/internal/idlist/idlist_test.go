package idlist

import (
	"slices"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text   string
		ranges [][2]int
	}{
		{"", nil},
		{"0", [][2]int{{0, 0}}},
		{"99", [][2]int{{99, 99}}},
		{"0-3", [][2]int{{0, 3}}},
		{"0-99", [][2]int{{0, 99}}},
		{"7-7", [][2]int{{7, 7}}},
		{"007-08", [][2]int{{7, 8}}},
		{"8,0-3,2,2", [][2]int{{8, 8}, {0, 3}, {2, 2}, {2, 2}}},
	} {
		var got [][2]int
		err := Parse(c.text, "dog", 100, func(first, last int) { got = append(got, [2]int{first, last}) })
		if err != nil || !slices.Equal(got, c.ranges) {
			t.Errorf("Parse(%q) gave %v, %v; expected %v", c.text, got, err, c.ranges)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	manyDigits := strings.Repeat("9", 100)
	for _, c := range []struct{ text, message string }{
		{"a", `dog list "a": expected a dog number, found "a"`},
		{" ", `dog list " ": expected a dog number, found " "`},
		{" 1", `dog list " 1": expected a dog number, found " 1"`},
		{"0-3\n", `dog list "0-3\n": expected a dog number, found "3\n"`},
		{"1, 2", `dog list "1, 2": expected a dog number, found " 2"`},
		{",", `dog list ",": expected a dog number, found nothing`},
		{"1,", `dog list "1,": expected a dog number, found nothing`},
		{"1,,2", `dog list "1,,2": expected a dog number, found nothing`},
		{"-", `dog list "-": expected a dog number, found nothing`},
		{"-1", `dog list "-1": expected a dog number, found nothing`},
		{"1-", `dog list "1-": expected a dog number, found nothing`},
		{"1--2", `dog list "1--2": expected a dog number, found "-2"`},
		{"1-2-3", `dog list "1-2-3": expected a dog number, found "2-3"`},
		{"+1", `dog list "+1": expected a dog number, found "+1"`},
		{"0x1", `dog list "0x1": expected a dog number, found "0x1"`},
		{"1.0", `dog list "1.0": expected a dog number, found "1.0"`},
		{"٣", `dog list "٣": expected a dog number, found "٣"`},
		{"all", `dog list "all": expected a dog number, found "all"`},
		{"0-15:1/4", `dog list "0-15:1/4": expected a dog number, found "15:1/4"`},
		{"3-1", `dog list "3-1": range 3-1 ends before it starts`},
		{"100", `dog list "100": dog 100 is outside 0..99`},
		{"5,0-100", `dog list "5,0-100": dog 100 is outside 0..99`},
		{"18446744073709551616", `dog list "18446744073709551616": dog 18446744073709551616 is outside 0..99`},
		{
			manyDigits,
			`dog list "` + manyDigits[:64] + `...": dog ` + manyDigits[:64] + `... is outside 0..99`,
		},
		{strings.Repeat("1", MaxBytes+1), `dog list of 65537 bytes is longer than 65536`},
	} {
		err := Parse(c.text, "dog", 100, func(int, int) {})
		if err == nil || err.Error() != c.message {
			t.Errorf("Parse(%.80q) gave the error\n%v, expected\n%s", c.text, err, c.message)
		}
	}
}

func TestParseReadsTheLongestText(t *testing.T) {
	t.Parallel()
	text := strings.Repeat("1,", MaxBytes/2-1) + "11"
	if len(text) != MaxBytes {
		t.Fatalf("the test's text has %d bytes, expected %d", len(text), MaxBytes)
	}
	count := 0
	if err := Parse(text, "dog", 100, func(int, int) { count++ }); err != nil || count != MaxBytes/2 {
		t.Errorf("Parse added %d elements, %v; expected %d", count, err, MaxBytes/2)
	}
}

func TestWriter(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		ids  []int
		text string
	}{
		{nil, ""},
		{[]int{0}, "0"},
		{[]int{8191}, "8191"},
		{[]int{0, 1}, "0-1"},
		{[]int{0, 2}, "0,2"},
		{[]int{0, 1, 2, 4, 6, 7}, "0-2,4,6-7"},
	} {
		var w Writer
		for _, id := range c.ids {
			w.Add(id)
		}
		if got := w.String(); got != c.text {
			t.Errorf("the text of %v is %q, expected %q", c.ids, got, c.text)
		}
	}
}

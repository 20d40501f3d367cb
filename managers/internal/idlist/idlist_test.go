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

func TestText(t *testing.T) {
	t.Parallel()
	const all = ^uint64(0)
	for _, c := range []struct {
		words []uint64
		text  string
	}{
		{nil, ""},
		{[]uint64{0}, ""},
		{[]uint64{1}, "0"},
		{[]uint64{0b11}, "0-1"},
		{[]uint64{0b101}, "0,2"},
		{[]uint64{0b11010111}, "0-2,4,6-7"},
		{[]uint64{all}, "0-63"},
		{[]uint64{1 << 63}, "63"},
		{[]uint64{1 << 63, 1}, "63-64"},
		{[]uint64{1 << 63, 0b10}, "63,65"},
		{[]uint64{all, all, 0, 1}, "0-127,192"},
		{[]uint64{0, 0xf << 60, 0xf}, "124-131"},
	} {
		var text Text
		for i, word := range c.words {
			text = text.Word(i*64, word)
		}
		if got := string(text.End(len(c.words) * 64)); got != c.text {
			t.Errorf("the text of %x is %q, expected %q", c.words, got, c.text)
		}
	}
}

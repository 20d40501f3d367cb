// Package idlist reads and writes the kernel's list format for sets of small
// ids, the form of /sys/devices/system/cpu/online, cpuset.cpus and
// cpuset.mems: ids and inclusive ranges, separated by commas, as in
// "0-3,8,10-11" (kernel: Documentation/admin-guide/cgroup-v2.rst, "cpuset").
//
// It has no CPUs or NUMA nodes and holds no set; cpuset and numa
// give it their noun, their limit and their own storage, so that the format is
// decided in one place.
//
// What is read: decimal digits only, ranges with one dash and first <= last,
// any order, duplicates and overlaps; the empty text is the empty set. What is
// refused: blanks and newlines, signs, empty elements, reversed ranges, the
// kernel's strides ("0-15:1/4") and words ("all"), ids at or above the limit.
// What is written: ascending, every run of two or more adjacent ids as a range.
package idlist

import (
	"fmt"
	"math/bits"
	"strconv"
	"strings"
)

// MaxBytes is the longest text that Parse reads. 8,192 ids written out one by
// one take 39,849 bytes.
const MaxBytes = 64 << 10

// Parse calls add for every element of text, as an inclusive range with
// 0 <= first <= last < limit; a single id arrives as first == last. noun ("cpu",
// "node") names the ids in errors. On error add may already have been called.
func Parse(text, noun string, limit int, add func(first, last int)) error {
	if text == "" {
		return nil
	}
	if len(text) > MaxBytes {
		return fmt.Errorf("%s list of %d bytes is longer than %d", noun, len(text), MaxBytes)
	}
	for rest, more := text, true; more; {
		var element string
		element, rest, more = strings.Cut(rest, ",")
		first, last, err := parseRange(element, noun, limit)
		if err != nil {
			return fmt.Errorf("%s list %s: %w", noun, quote(text), err)
		}
		add(first, last)
	}
	return nil
}

// parseRange reads one element: an id or two with a dash between.
func parseRange(element, noun string, limit int) (first, last int, err error) {
	low, high, isRange := strings.Cut(element, "-")
	if first, err = parseID(low, noun, limit); err != nil || !isRange {
		return first, first, err
	}
	if last, err = parseID(high, noun, limit); err != nil {
		return 0, 0, err
	}
	if last < first {
		return 0, 0, fmt.Errorf("range %s ends before it starts", clip(element))
	}
	return first, last, nil
}

// parseID reads one id. It stops to compute once the id is at the limit, so no
// number of digits overflows it.
func parseID(digits, noun string, limit int) (int, error) {
	id := 0
	for i := range len(digits) {
		c := digits[i]
		if c < '0' || c > '9' {
			return 0, fmt.Errorf("expected a %s number, found %s", noun, quote(digits))
		}
		if id < limit {
			id = id*10 + int(c-'0')
		}
	}
	if digits == "" {
		return 0, fmt.Errorf("expected a %s number, found nothing", noun)
	}
	if id >= limit {
		return 0, fmt.Errorf("%s %s is outside 0..%d", noun, clip(digits), limit-1)
	}
	return id, nil
}

// quote makes a piece of foreign text safe and short enough for an error.
func quote(text string) string { return strconv.Quote(clip(text)) }

func clip(text string) string {
	const longest = 64
	if len(text) <= longest {
		return text
	}
	return text[:longest] + "..."
}

// Text is the text form of a set in the making. It is handed on by value, so that
// it and the room that it is begun with can stay on a caller's stack.
type Text struct {
	// Out is what has been written.
	Out []byte
	// first is where the run began that is not written yet, if inside one.
	first  int
	inside bool
}

// Word adds the ids of the next word of a set: from in its lowest bit, and so on.
// The words must come in order, without gaps. Only where a run begins or ends does
// it cost anything.
func (t Text) Word(from int, word uint64) Text {
	before := word << 1
	if t.inside {
		before |= 1
	}
	for edges := word ^ before; edges != 0; edges &= edges - 1 {
		id := from + bits.TrailingZeros64(edges)
		if t.inside {
			t.Out = appendRun(t.Out, t.first, id-1)
		}
		t.first, t.inside = id, !t.inside
	}
	return t
}

// End gives the text, of words that end below end.
func (t Text) End(end int) []byte {
	if !t.inside {
		return t.Out
	}
	return appendRun(t.Out, t.first, end-1)
}

func appendRun(text []byte, first, last int) []byte {
	if len(text) > 0 {
		text = append(text, ',')
	}
	text = strconv.AppendInt(text, int64(first), 10)
	if last > first {
		text = append(text, '-')
		text = strconv.AppendInt(text, int64(last), 10)
	}
	return text
}

// Package idlist reads and writes the kernel's list format for sets of small
// ids, the form of /sys/devices/system/cpu/online, cpuset.cpus and
// cpuset.mems: ids and inclusive ranges, separated by commas, as in
// "0-3,8,10-11" (kernel: Documentation/admin-guide/cgroup-v2.rst, "cpuset").
//
// It knows nothing about CPUs or NUMA nodes and holds no set; cpuset and numa
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

// Writer makes the text form of ids that are added in ascending order. The zero
// value is the text of the empty set.
type Writer struct {
	text []byte
	// first to last is the run that is not written yet, if open.
	first, last int
	open        bool
}

// Add adds id, which must be larger than all ids added before.
func (w *Writer) Add(id int) {
	if w.open && id == w.last+1 {
		w.last = id
		return
	}
	w.text = w.appendRun(w.text)
	w.first, w.last, w.open = id, id, true
}

// String returns the text form of what was added so far.
func (w *Writer) String() string { return string(w.appendRun(w.text)) }

// appendRun returns text with the open run at its end.
func (w *Writer) appendRun(text []byte) []byte {
	if !w.open {
		return text
	}
	if len(text) > 0 {
		text = append(text, ',')
	}
	text = strconv.AppendInt(text, int64(w.first), 10)
	if w.last > w.first {
		text = append(text, '-')
		text = strconv.AppendInt(text, int64(w.last), 10)
	}
	return text
}

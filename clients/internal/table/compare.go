package table

import (
	"cmp"
	"regexp"
	"strconv"
	"strings"
)

// amount is a number with the unit of Bytes or of Age, or without one.
var amount = regexp.MustCompile(`^([0-9]+(?:\.[0-9]+)?)(Ki|Mi|Gi|Ti|Pi|Ei|s|m|h|d)?$`)

var units = map[string]float64{
	"": 1, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40, "Pi": 1 << 50, "Ei": 1 << 60,
	"s": 1, "m": 60, "h": 60 * 60, "d": 24 * 60 * 60,
}

// compare compares cells as people do: amounts by their value, everything else by its letters and the numbers in it, so that
// gpu2 is before gpu10.
func compare(a, b string) int {
	x, isX := valueOf(a)
	y, isY := valueOf(b)
	if isX && isY {
		return cmp.Compare(x, y)
	}
	for a != "" && b != "" {
		n, restA := leadingNumber(a)
		m, restB := leadingNumber(b)
		if n != "" && m != "" {
			if order := cmp.Or(cmp.Compare(len(n), len(m)), strings.Compare(n, m)); order != 0 {
				return order
			}
			a, b = restA, restB
			continue
		}
		if a[0] != b[0] {
			return cmp.Compare(a[0], b[0])
		}
		a, b = a[1:], b[1:]
	}
	return cmp.Compare(len(a), len(b))
}

func valueOf(text string) (float64, bool) {
	found := amount.FindStringSubmatch(text)
	if found == nil {
		return 0, false
	}
	n, err := strconv.ParseFloat(found[1], 64)
	return n * units[found[2]], err == nil
}

// leadingNumber splits a text behind the digits that it begins with; zeros before a number do not count.
func leadingNumber(text string) (number, rest string) {
	end := 0
	for end < len(text) && text[end] >= '0' && text[end] <= '9' {
		end++
	}
	if end == 0 {
		return "", text
	}
	number = strings.TrimLeft(text[:end-1], "0") + text[end-1:end]
	return number, text[end:]
}

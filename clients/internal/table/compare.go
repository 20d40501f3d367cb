package table

import (
	"cmp"
	"strconv"
	"strings"
)

// compare compares cells as people do: by their texts and by the amounts in them, so that gpu2 is before gpu10, and memory=512Mi before
// memory=1Gi. An amount is before a text. m is the unit m: minutes in a column of ages, else thousandths.
func compare(a, b string, m float64) int {
	for a != "" && b != "" {
		x, restA := leading(a, m)
		y, restB := leading(b, m)
		if order := x.compare(y); order != 0 {
			return order
		}
		a, b = restA, restB
	}
	return cmp.Compare(len(a), len(b))
}

// token is a part of a cell: an amount, or a character.
type token struct {
	isAmount bool
	amount   float64
	char     byte
}

func (t token) compare(o token) int {
	switch {
	case t.isAmount != o.isAmount:
		if t.isAmount {
			return -1
		}
		return 1
	case t.isAmount:
		return cmp.Compare(t.amount, o.amount)
	}
	return cmp.Compare(t.char, o.char)
}

// units are those of Bytes and of Age, without m.
var units = []struct {
	name   string
	factor float64
}{
	{"Ki", 1 << 10}, {"Mi", 1 << 20}, {"Gi", 1 << 30}, {"Ti", 1 << 40}, {"Pi", 1 << 50}, {"Ei", 1 << 60},
	{"s", 1}, {"h", 60 * 60}, {"d", 24 * 60 * 60},
}

// leading splits the first token off a text that is not empty.
func leading(text string, m float64) (first token, rest string) {
	end := digits(text)
	if end == 0 {
		return token{char: text[0]}, text[1:]
	}
	if end < len(text) && text[end] == '.' {
		if more := digits(text[end+1:]); more > 0 {
			end += 1 + more
		}
	}
	n, err := strconv.ParseFloat(text[:end], 64)
	if err != nil { // beyond all numbers
		n = 0
	}
	rest = text[end:]
	if after, ok := strings.CutPrefix(rest, "m"); ok && (after == "" || !isLetter(after[0])) {
		return token{isAmount: true, amount: n * m}, after
	}
	for _, u := range units {
		if after, ok := strings.CutPrefix(rest, u.name); ok && (after == "" || !isLetter(after[0])) {
			return token{isAmount: true, amount: n * u.factor}, after
		}
	}
	return token{isAmount: true, amount: n}, rest
}

const (
	minute     = 60
	thousandth = 1e-3
)

// unitOfM returns what m is in a column: minutes if another cell has seconds, hours or days.
func unitOfM(cells []string) float64 {
	for _, c := range cells {
		if n := digits(c); n > 0 && n+1 == len(c) && strings.ContainsRune("shd", rune(c[n])) {
			return minute
		}
	}
	return thousandth
}

func digits(text string) int {
	n := 0
	for n < len(text) && text[n] >= '0' && text[n] <= '9' {
		n++
	}
	return n
}

func isLetter(c byte) bool { return c|0x20 >= 'a' && c|0x20 <= 'z' }

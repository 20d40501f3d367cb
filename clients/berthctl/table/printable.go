package table

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Printable spells what a terminal would act on instead of showing it as Go does in a text between quotes: control
// characters, ends of lines, signs that turn the direction of writing, what is no UTF-8. Names and messages come from
// plugins, containers and manifests, and must not look like something else.
func Printable(s string) string { return escape(s, false) }

// Lines is Printable for a text that may have several lines. Those after the first are indented, so that none looks like
// a line of the program's own.
func Lines(s string) string { return strings.ReplaceAll(escape(s, true), "\n", "\n  ") }

func escape(s string, lines bool) string {
	shown := func(r rune, size int) bool {
		return unicode.IsPrint(r) && (r != utf8.RuneError || size > 1) || lines && r == '\n'
	}
	at := 0
	for at < len(s) {
		r, size := utf8.DecodeRuneInString(s[at:])
		if !shown(r, size) {
			break
		}
		at += size
	}
	if at == len(s) {
		return s // nearly always
	}
	out := []byte(s[:at])
	for at < len(s) {
		r, size := utf8.DecodeRuneInString(s[at:])
		switch {
		case shown(r, size):
			out = append(out, s[at:at+size]...)
		default:
			quoted := strconv.Quote(s[at : at+size])
			out = append(out, quoted[1:len(quoted)-1]...)
		}
		at += size
	}
	return string(out)
}

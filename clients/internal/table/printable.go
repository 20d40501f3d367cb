package table

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// Printable escapes characters that a terminal interprets, as in a Go string literal: control
// characters, ends of lines, changes of the writing direction, invalid UTF-8. Names and messages
// come from plugins, containers and manifests, and must not imitate other output.
func Printable(s string) string { return escape(s, false) }

// Lines is Printable for a text with several lines. Lines after the first are indented, so that
// none looks like a line of the program itself.
func Lines(s string) string { return strings.ReplaceAll(escape(s, true), "\n", "\n  ") }

// Text is Printable for a whole output with the program's own ends of lines. Untrusted texts in
// it must have been reduced to one line each.
func Text(s string) string { return escape(s, true) }

// JSON is a document in which the strings are escaped so that a terminal shows them. Its
// meaning is the same (RFC 8259, section 7).
func JSON(raw []byte) []byte {
	out := make([]byte, 0, len(raw))
	for len(raw) > 0 {
		r, size := utf8.DecodeRune(raw)
		switch {
		case r < ' ' || unicode.IsPrint(r):
			out = append(out, raw[:size]...)
		default:
			for _, unit := range utf16.Encode([]rune{r}) {
				out = fmt.Appendf(out, "\\u%04x", unit)
			}
		}
		raw = raw[size:]
	}
	return out
}

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

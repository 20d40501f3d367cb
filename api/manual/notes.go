package manual

import "strings"

// Notes are the sections of a program's pages that its commands and flags do not have. The pages of its verbs have Exit alone.
type Notes struct {
	Exit, Environment, Files []Entry
}

// Entry is a line of a section.
type Entry struct{ Name, Text string }

// Roff returns the sections as the source of a page has them; whole is whether they are for the page of the program itself.
func (n Notes) Roff(whole bool) string {
	var b strings.Builder
	section := func(title string, entries []Entry) {
		if len(entries) == 0 {
			return
		}
		b.WriteString(".SH " + title + "\n")
		for _, e := range entries {
			b.WriteString(".TP\n\\fB" + escape(e.Name) + "\\fP\n" + escape(e.Text) + "\n")
		}
	}
	section("EXIT STATUS", n.Exit)
	if whole {
		section("ENVIRONMENT", n.Environment)
		section("FILES", n.Files)
	}
	return b.String()
}

// escape writes a text so that roff takes no part of it as a request.
func escape(text string) string {
	text = strings.NewReplacer(`\`, `\\`, "-", `\-`).Replace(text)
	if strings.HasPrefix(text, ".") || strings.HasPrefix(text, "'") {
		text = `\&` + text
	}
	return text
}

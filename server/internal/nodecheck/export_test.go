package nodecheck

import (
	"cmp"
	"fmt"
	"strings"
)

// Page returns the table of checks as docs/check.md has it.
func Page() string {
	var b strings.Builder
	b.WriteString("| Check | Severity | Finds | Do | Report |\n| --- | --- | --- | --- | --- |\n")
	for _, c := range checks {
		var do []string
		for _, s := range c.do {
			text := s.text
			switch {
			case strings.HasPrefix(text, "systemctl "):
				text = "`" + text + "`"
			case text == "":
				text = "[drain](#drain) the node and remove"
				for i, kind := range s.reset {
					text += []string{" ", " and "}[min(i, 1)] + "`" + files[kind] + "`"
				}
			}
			do = append(do, text)
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", c.id, c.severity, c.finds, strings.ReplaceAll(strings.Join(do, "; "), ":;", ":"),
			cmp.Or(strings.Join(c.report, ", "), "–"))
	}
	return b.String()
}

package page

import (
	"regexp"
	"strconv"
	"strings"

	"github.com/berthd/berth/api/yamltext"
)

// remark is what is to be said about a pod's text.
type remark struct {
	// Line is counted from 1; 0 if it is not known.
	Line int    `json:"line"`
	Text string `json:"text"`
}

var (
	// fieldPath finds the paths of fields in messages, as all readers of pods write them.
	fieldPath = regexp.MustCompile(`(?:^|[^\w.])(?:pod\.)?((?:metadata|spec|status)(?:\.[\w-]+|\[\d+\]|\["[^"]{1,300}"\])+)`)
	// unknownResource names a resource, and then the list in which it stands.
	unknownResource = regexp.MustCompile(`unknown resource "([^"]{1,300})" in "([^"]{1,300})"`)
	// syntaxLine is where the reader of YAML gave up.
	syntaxLine = regexp.MustCompile(`\bline (\d{1,7})\b`)
	topField   = regexp.MustCompile(`\b(kind|apiVersion)\b`)
)

// maxRemarks bounds how many mistakes are shown at their line.
const maxRemarks = 20

// remarks finds the line of each message.
func remarks(text []byte, messages []string) []remark {
	out := []remark{}
	if len(messages) == 0 {
		return out
	}
	line := yamltext.Lines(text)
	for _, m := range messages[:min(len(messages), maxRemarks)] {
		out = append(out, remark{lineOf(line, m), m})
	}
	return out
}

// mistakes divides an error of reading a pod into its parts, each with its line.
func mistakes(text []byte, message string) []remark {
	var parts []string
	for part := range strings.SplitSeq(message, "; ") {
		if len(parts) > 0 && !fieldPath.MatchString(part) {
			parts[len(parts)-1] += "; " + part
			continue
		}
		parts = append(parts, part)
	}
	return remarks(text, parts)
}

// lineOf is the line that a message is about; 0 if it names none.
func lineOf(line func(path string) int, message string) int {
	if found := unknownResource.FindStringSubmatch(message); found != nil {
		return line(found[2] + `["` + found[1] + `"]`)
	}
	if found := fieldPath.FindStringSubmatch(message); found != nil {
		return line(found[1])
	}
	if found := syntaxLine.FindStringSubmatch(message); found != nil {
		n, _ := strconv.Atoi(found[1]) // digits
		return n
	}
	if found := topField.FindStringSubmatch(message); found != nil {
		return max(1, line(found[1]))
	}
	return 0
}

package kubelet

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/berthd/berth/managers/errdefs"
)

// misread describes why a file does not have its kind's form: where, what was expected, and what
// was found, and after how many bytes. It uses the file's names, not those of Go types.
func misread(err error) error {
	var wrong *json.UnmarshalTypeError
	var syntax *json.SyntaxError
	switch {
	case errors.As(err, &syntax):
		return errdefs.Invalidf("no JSON: %w at byte %d", err, syntax.Offset)
	case !errors.As(err, &wrong):
		return errdefs.Invalidf("cannot be read: %w", err)
	}
	// The decoder names embedded types like keys.
	wrong.Field = strings.NewReplacer("memoryData.", "", "sealed.", "").Replace(wrong.Field)
	if wrong.Field == "" {
		return errdefs.Invalidf("expected %s, found %s at byte %d", expected(wrong.Type), found(wrong.Value), wrong.Offset)
	}
	// The decoder takes the keys of such maps for numbers.
	if number, ok := strings.CutPrefix(wrong.Value, "number "); ok && !json.Valid([]byte(number)) {
		return errdefs.Invalidf("%s: expected whole numbers as keys, found %s at byte %d", wrong.Field, strconv.Quote(short(number)),
			wrong.Offset)
	}
	return errdefs.Invalidf("%s: expected %s, found %s at byte %d", wrong.Field, expected(wrong.Type), found(wrong.Value), wrong.Offset)
}

// expected names what a type is read from.
func expected(t reflect.Type) string {
	switch t.Kind() {
	case reflect.String:
		return "a text"
	case reflect.Uint64:
		return "a whole number from 0 to 2^64-1"
	case reflect.Int, reflect.Int64:
		return "a whole number"
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return "a text in base64"
		}
		return "a list"
	}
	return "an object"
}

// maxQuoted is how much of a file's number is in an error.
const maxQuoted = 64

// short shortens a number for a message.
func short(number string) string {
	if len(number) > maxQuoted {
		return number[:maxQuoted] + "..."
	}
	return number
}

// found names what the decoder calls by the names of JSON.
func found(value string) string {
	if number, ok := strings.CutPrefix(value, "number "); ok {
		return short(number)
	}
	switch value {
	case "string":
		return "a text"
	case "array":
		return "a list"
	case "bool":
		return "a truth value"
	case "object":
		return "an object"
	}
	return "a " + value
}

// longestText is the most bytes of a text of a file that Printable leaves as they are: the name of a resource may have that many.
const longestText = 80

// Printable returns a text of a file for messages. A long text is cut, and is quoted as one is that a terminal could
// take for more than text.
func Printable(text string) string {
	if len(text) > longestText || !utf8.ValidString(text) || strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return fmt.Sprintf("%.*q", longestText, text)
	}
	return text
}

package errdefs

import (
	"fmt"
	"strings"
)

// Violation is one field of an input and what is wrong with it.
type Violation struct {
	// Field is the path of the field as the caller wrote it, for example pod.spec.containers[1].resources.requests["cpu"].
	Field string
	// Description is what was expected, and what was found where that helps.
	Description string
}

// String gives "field: description".
func (v Violation) String() string { return v.Field + ": " + v.Description }

// Violations collects what is wrong with one input, in the order of discovery. The zero value is ready for use.
type Violations []Violation

// Addf notes one more violation.
func (vs *Violations) Addf(field, format string, args ...any) {
	*vs = append(*vs, Violation{Field: field, Description: fmt.Sprintf(format, args...)})
}

// Precondition makes an error of class Precondition that lists the violations: each names the object that prevents the operation
// instead of a field. The message is the context and all descriptions.
func (vs Violations) Precondition(context string) *Error {
	texts := make([]string, len(vs))
	for i, v := range vs {
		texts[i] = v.Description
	}
	e := Preconditionf("%s%s", context, strings.Join(texts, "; "))
	e.Fields = vs
	return e
}

// Err gives nil where nothing was noted, else an *Error of class Invalid for the named object with all violations as its
// Fields. The message names the first one and counts the others.
func (vs Violations) Err(object string) error {
	if len(vs) == 0 {
		return nil
	}
	e := Invalidf("%s is invalid: %s", object, vs[0])
	if more := len(vs) - 1; more > 0 {
		e.Message += fmt.Sprintf(" (and %d more)", more)
	}
	e.Fields = vs
	return e
}

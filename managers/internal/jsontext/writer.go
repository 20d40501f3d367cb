// Package jsontext writes JSON objects of known shape without reflection: the very
// bytes that encoding/json gives for the same value, which reads them back, at a
// fraction of its time and memory. It is for what is written in every admission
// (records, claims, traces, digests); everything else is encoding/json's.
//
// A Writer knows no types: whoever uses it names the members in the order of the
// fields, and says which are left out when empty.
package jsontext

import (
	"encoding/base64"
	"encoding/json"
	"strconv"
	"time"
)

// Writer is JSON in the making. Out is what has been written, Err the first error;
// it stays.
type Writer struct {
	Out []byte
	Err error
}

// New starts with room for as many bytes.
func New(room int) *Writer { return &Writer{Out: make([]byte, 0, room)} }

// Value writes what encoding/json makes of a value.
func (w *Writer) Value(v any) {
	out, err := json.Marshal(v)
	if err != nil && w.Err == nil {
		w.Err = err
	}
	w.Out = append(w.Out, out...)
}

// Raw writes text that is JSON already.
func (w *Writer) Raw(text string) { w.Out = append(w.Out, text...) }

// Begin and End write the braces of an object.
func (w *Writer) Begin() { w.Out = append(w.Out, '{') }

// End closes what Begin has begun.
func (w *Writer) End() { w.Out = append(w.Out, '}') }

// Key begins the next member of an object: with a comma unless it is the first.
// The name is one that needs no escapes.
func (w *Writer) Key(name string) {
	w.next()
	w.Out = append(w.Out, '"')
	w.Out = append(w.Out, name...)
	w.Out = append(w.Out, '"', ':')
}

func (w *Writer) next() {
	if w.Out[len(w.Out)-1] != '{' {
		w.Out = append(w.Out, ',')
	}
}

// String writes a string; whatever has to be escaped is left to encoding/json.
func (w *Writer) String(s string) {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' {
			w.Value(s)
			return
		}
	}
	w.Out = append(w.Out, '"')
	w.Out = append(w.Out, s...)
	w.Out = append(w.Out, '"')
}

// Member writes a member that is a string.
func (w *Writer) Member(name, s string) {
	w.Key(name)
	w.String(s)
}

// Some is Member, left out if it is empty.
func (w *Writer) Some(name, s string) {
	if s != "" {
		w.Member(name, s)
	}
}

// Number writes a member that is a number.
func (w *Writer) Number(name string, n uint64) {
	w.Key(name)
	w.Out = strconv.AppendUint(w.Out, n, 10)
}

// Count writes a member that is a number, left out if it is 0.
func (w *Writer) Count(name string, n int) {
	if n != 0 {
		w.Key(name)
		w.Int(int64(n))
	}
}

// Int writes a number.
func (w *Writer) Int(n int64) { w.Out = strconv.AppendInt(w.Out, n, 10) }

// Bool writes true or false.
func (w *Writer) Bool(is bool) { w.Out = strconv.AppendBool(w.Out, is) }

// Flag writes a member that is true, left out if it is not.
func (w *Writer) Flag(name string, is bool) {
	if is {
		w.Key(name)
		w.Bool(true)
	}
}

// Bytes writes a member in base64, left out if it is empty.
func (w *Writer) Bytes(name string, b []byte) {
	if len(b) > 0 {
		w.Key(name)
		w.Out = append(w.Out, '"')
		w.Out = base64.StdEncoding.AppendEncode(w.Out, b)
		w.Out = append(w.Out, '"')
	}
}

// Time writes a moment, which is an error outside of the years 0 to 9999.
func (w *Writer) Time(t time.Time) {
	out, err := t.AppendText(append(w.Out, '"'))
	if err != nil {
		w.Value(t) // in the words of encoding/json
		return
	}
	w.Out = append(out, '"')
}

// Array writes the elements of a list; no list at all is null.
func Array[E any](w *Writer, list []E, element func(*Writer, *E)) {
	if list == nil {
		w.Raw("null")
		return
	}
	w.Out = append(w.Out, '[')
	for i := range list {
		if i > 0 {
			w.Out = append(w.Out, ',')
		}
		element(w, &list[i])
	}
	w.Out = append(w.Out, ']')
}

// Entry begins a member of an object whose names are anybody's.
func (w *Writer) Entry(name string) {
	w.next()
	w.String(name)
	w.Out = append(w.Out, ':')
}

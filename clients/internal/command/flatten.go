package command

import (
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// flatten makes one line of each text in an answer for people, so that an untrusted text cannot
// start a line of its own. Control characters are escaped when the text is printed.
func flatten(m protoreflect.Message) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.IsMap():
			flattenMap(f, v.Map())
		case f.IsList():
			for i := range v.List().Len() {
				if e := v.List().Get(i); f.Kind() == protoreflect.StringKind {
					v.List().Set(i, flat(e))
				} else if f.Kind() == protoreflect.MessageKind {
					flatten(e.Message())
				}
			}
		case f.Kind() == protoreflect.StringKind:
			m.Set(f, flat(v))
		case f.Kind() == protoreflect.MessageKind:
			flatten(v.Message())
		}
		return true
	})
}

// flattenMap makes one line of each value, and of each key.
func flattenMap(f protoreflect.FieldDescriptor, m protoreflect.Map) {
	type entry struct {
		key   protoreflect.MapKey
		value protoreflect.Value
	}
	entries := make([]entry, 0, m.Len())
	m.Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
		switch f.MapValue().Kind() {
		case protoreflect.StringKind:
			v = flat(v)
		case protoreflect.MessageKind:
			flatten(v.Message())
		}
		entries = append(entries, entry{k, v})
		return true
	})
	for _, e := range entries {
		if f.MapKey().Kind() == protoreflect.StringKind {
			m.Clear(e.key)
			e.key = flat(e.key.Value()).MapKey()
		}
		m.Set(e.key, e.value)
	}
}

func flat(v protoreflect.Value) protoreflect.Value {
	if !strings.ContainsAny(v.String(), "\n\r") {
		return v
	}
	return protoreflect.ValueOfString(strings.Join(strings.FieldsFunc(v.String(), func(r rune) bool { return r == '\n' || r == '\r' }),
		"; "))
}

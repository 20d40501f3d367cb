package podspec

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
)

// unknownFields lists the fields of a document that a type does not have, as `unknown field "spec.nodename"`, ordered. A field counts in
// the upper and lower case of its name. The converter of Kubernetes lists them only if it finds nothing else wrong.
func unknownFields(doc object, t reflect.Type) []string {
	var u unknown
	u.walk("", doc, t)
	slices.Sort(u)
	return u
}

// unknown collects the unknown fields of a document.
type unknown []string

func (u *unknown) walk(path string, value any, t reflect.Type) {
	if reflect.PointerTo(t).Implements(reflect.TypeFor[json.Unmarshaler]()) {
		return
	}
	switch t.Kind() {
	case reflect.Pointer:
		u.walk(path, value, t.Elem())
	case reflect.Struct:
		entries, _ := value.(object)
		known := fieldsOf(t)
		for name, v := range entries {
			at := strings.TrimPrefix(path+"."+name, ".")
			if of, ok := known[name]; ok {
				u.walk(at, v, of)
			} else {
				*u = append(*u, fmt.Sprintf(`unknown field "%s"`, at))
			}
		}
	case reflect.Slice:
		items, _ := value.([]any)
		for i, v := range items {
			u.walk(fmt.Sprintf("%s[%d]", path, i), v, t.Elem())
		}
	case reflect.Map:
		entries, _ := value.(object)
		for key, v := range entries {
			u.walk(path+"."+key, v, t.Elem())
		}
	}
}

// fields are those of structs, by type: a node has hundreds of pods.
var fields sync.Map

// fieldsOf returns the fields of a struct by their names in JSON.
func fieldsOf(t reflect.Type) map[string]reflect.Type {
	if known, ok := fields.Load(t); ok {
		return known.(map[string]reflect.Type)
	}
	known := map[string]reflect.Type{}
	addFields(known, t)
	fields.Store(t, known)
	return known
}

// addFields adds the fields of a struct by their names in JSON, with those of embedded structs.
func addFields(known map[string]reflect.Type, t reflect.Type) {
	for f := range t.Fields() {
		switch name, _, _ := strings.Cut(f.Tag.Get("json"), ","); {
		case name != "":
			known[name] = f.Type
		case f.Anonymous:
			addFields(known, f.Type)
		}
	}
}

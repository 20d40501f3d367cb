package config

import (
	"encoding"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
)

// shape compares a document with the type that it is decoded to. The decoders report only the
// first misfit, without its path. This reports all of them, with the paths of the fields.
type shape struct {
	unknown, misfits errdefs.Violations
}

// walk checks one value that encoding/json has decoded. nil, which leaves a field unchanged,
// always fits.
func (s *shape) walk(at string, t reflect.Type, value any) {
	if value == nil {
		return
	}
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if readsItself(t) {
		s.leaf(at, t, value)
		return
	}
	switch v := value.(type) {
	case map[string]any:
		s.object(at, t, v)
	case []any:
		if t.Kind() != reflect.Slice {
			s.misfits.Addf(at, "expected %s, found a list", wanted(t))
			return
		}
		for i, e := range v {
			s.walk(fmt.Sprintf("%s[%d]", at, i), t.Elem(), e)
		}
	default:
		s.leaf(at, t, value)
	}
}

// object checks an object in the order of its keys, and removes unknown keys.
func (s *shape) object(at string, t reflect.Type, value map[string]any) {
	switch t.Kind() {
	case reflect.Map:
		for _, key := range slices.Sorted(maps.Keys(value)) {
			s.walk(fmt.Sprintf("%s[%q]", at, key), t.Elem(), value[key])
		}
	case reflect.Struct:
		known := fields(t)
		for _, key := range slices.Sorted(maps.Keys(value)) {
			path := strings.TrimPrefix(at+"."+key, ".")
			if field, ok := known[key]; ok {
				s.walk(path, field, value[key])
				continue
			}
			s.unknown.Addf(path, "unknown field%s", among(key, known))
			delete(value, key) // the decoders would accept a key in another case
		}
	default:
		s.misfits.Addf(at, "expected %s, found an object", wanted(t))
	}
}

// leaf tries a value that has no parts, or that its type reads by itself.
func (s *shape) leaf(at string, t reflect.Type, value any) {
	if t.Kind() == reflect.String {
		return // YAML's numbers and truths are texts where a text is expected
	}
	text, err := json.Marshal(value)
	if err == nil {
		err = json.Unmarshal(text, reflect.New(t).Interface())
	}
	if err == nil {
		return
	}
	if _, isText := value.(string); isText && readsItself(t) && t != reflect.TypeFor[metav1.Duration]() {
		s.misfits.Addf(at, "%v", err) // its own error is more precise
		return
	}
	s.misfits.Addf(at, "expected %s, found %s", wanted(t), text)
}

// readsItself reports whether a type has a text form of its own.
func readsItself(t reflect.Type) bool {
	p := reflect.PointerTo(t)
	return p.Implements(reflect.TypeFor[json.Unmarshaler]()) || p.Implements(reflect.TypeFor[encoding.TextUnmarshaler]())
}

// fields are the fields of a struct by their names in JSON, including those of embedded structs.
func fields(t reflect.Type) map[string]reflect.Type {
	out := map[string]reflect.Type{}
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous && name == "":
			maps.Copy(out, fields(f.Type))
		case name != "" && name != "-":
			out[name] = f.Type
		}
	}
	return out
}

// few is how many fields a section may have for an error to list them.
const few = 12

// among names the expected field: the one with another case, or all of a few.
func among(key string, known map[string]reflect.Type) string {
	names := slices.Sorted(maps.Keys(known))
	if i := slices.IndexFunc(names, func(name string) bool { return strings.EqualFold(name, key) }); i >= 0 {
		return ", expected " + names[i]
	}
	if len(names) > few {
		return ""
	}
	return ", expected any of " + strings.Join(names, ", ")
}

// wanted describes the expected type for a message.
func wanted(t reflect.Type) string {
	switch {
	case t == reflect.TypeFor[metav1.Duration]():
		return "a duration such as 10s"
	case t == reflect.TypeFor[cpuset.Set]():
		return `a list of CPUs as text, such as "0-3"`
	case readsItself(t):
		return "a text"
	}
	switch t.Kind() {
	case reflect.Slice:
		return "a list"
	case reflect.Map, reflect.Struct:
		return "an object"
	case reflect.String:
		return "a text"
	case reflect.Bool:
		return "true or false"
	case reflect.Float32, reflect.Float64:
		return "a number"
	}
	return "a whole number"
}

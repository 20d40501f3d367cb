package main

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
)

// unknownKey returns the path of a key of a case that no type declares and unread does not list;
// empty if there is none. An ignored key could change the right answer.
//
// Paths have dots between keys and no list indexes: steps.state.
func unknownKey(raw json.RawMessage, unread []string, types ...reflect.Type) (string, error) {
	var v any
	if err := json.Unmarshal(raw, &v); err != nil {
		return "", err
	}
	return unknownIn(v, "", unread, types), nil
}

func unknownIn(v any, path string, unread []string, types []reflect.Type) string {
	switch v := v.(type) {
	case []any:
		var elems []reflect.Type
		for _, t := range types {
			if t = bare(t); t.Kind() == reflect.Slice {
				elems = append(elems, t.Elem())
			}
		}
		for _, e := range v {
			if at := unknownIn(e, path, unread, elems); at != "" {
				return at
			}
		}
	case map[string]any:
		for key := range v {
			at := strings.TrimPrefix(path+"."+key, ".")
			known, below := declared(types, key)
			if slices.Contains(unread, at) {
				continue
			}
			if !known {
				return at
			}
			if below == nil {
				continue
			}
			if at := unknownIn(v[key], at, unread, below); at != "" {
				return at
			}
		}
	}
	return ""
}

// declared reports whether any type has a key, and returns the types of its value; none if a type
// decodes the value itself.
func declared(types []reflect.Type, key string) (known bool, below []reflect.Type) {
	for _, t := range types {
		switch t = bare(t); {
		case opaque(t):
			return true, nil
		case t.Kind() == reflect.Map:
			known, below = true, append(below, t.Elem())
		case t.Kind() == reflect.Struct:
			if f, has := fieldsOf(t)[key]; has {
				known, below = true, append(below, f)
			}
		}
	}
	if slices.ContainsFunc(below, func(t reflect.Type) bool { return opaque(bare(t)) }) {
		return known, nil
	}
	return known, below
}

// fields are the keys of structs that were looked at, with the types of their
// values.
var fields sync.Map

func fieldsOf(t reflect.Type) map[string]reflect.Type {
	if m, ok := fields.Load(t); ok {
		return m.(map[string]reflect.Type)
	}
	m := map[string]reflect.Type{}
	for _, f := range reflect.VisibleFields(t) {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" {
			m[name] = f.Type
		}
	}
	fields.Store(t, m)
	return m
}

// bare is what a pointer points to.
func bare(t reflect.Type) reflect.Type {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t
}

var unmarshaler = reflect.TypeFor[json.Unmarshaler]()

// opaque reports whether a type reads JSON in its own way, or not at all yet.
func opaque(t reflect.Type) bool {
	return t.Kind() == reflect.Interface || t.Implements(unmarshaler) || reflect.PointerTo(t).Implements(unmarshaler)
}

// decode reads JSON strictly: a key that v does not declare is an error.
func decode(text json.RawMessage, v any) error {
	at, err := unknownKey(text, nil, reflect.TypeOf(v))
	if err != nil {
		return err
	}
	if at != "" {
		return fmt.Errorf("unknown key %q", at)
	}
	return json.Unmarshal(text, v)
}

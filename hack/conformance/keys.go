package main

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
)

// keys are the keys that an object, or each object of a list, may have, with the keys below them.
// The key "*" stands for all keys of a map. An ignored key could change the right answer, so a
// case with another key fails.
type keys struct {
	below map[string]*keys
	// open is set if a type decodes the value itself, or if the value is not read.
	open bool
}

// keysOf returns the keys that any of the types declares. The paths in unread are known too; a
// path has dots between keys.
func keysOf(unread []string, types ...reflect.Type) *keys {
	all := &keys{}
	for _, t := range types {
		all.add(t)
	}
	for _, path := range unread {
		at := all
		for key := range strings.SplitSeq(path, ".") {
			at = at.at(key)
		}
		at.open = true
	}
	return all
}

// at returns the keys below a key, which it adds.
func (k *keys) at(key string) *keys {
	if k.below[key] == nil {
		if k.below == nil {
			k.below = map[string]*keys{}
		}
		k.below[key] = &keys{}
	}
	return k.below[key]
}

var unmarshaler = reflect.TypeFor[json.Unmarshaler]()

// add adds the keys of a type.
func (k *keys) add(t reflect.Type) {
	switch {
	case t.Kind() == reflect.Interface, reflect.PointerTo(t).Implements(unmarshaler):
		k.open = true
	case t.Kind() == reflect.Pointer, t.Kind() == reflect.Slice:
		k.add(t.Elem())
	case t.Kind() == reflect.Map:
		k.at("*").add(t.Elem())
	case t.Kind() == reflect.Struct:
		for _, f := range reflect.VisibleFields(t) {
			if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" {
				k.at(name).add(f.Type)
			}
		}
	}
}

// unknown returns the path of a key that is not known; empty if there is none.
func (k *keys) unknown(raw json.RawMessage) (string, error) {
	var v any
	err := json.Unmarshal(raw, &v)
	return k.unknownIn(v, ""), err
}

func (k *keys) unknownIn(v any, path string) string {
	switch v := v.(type) {
	case []any:
		for _, e := range v {
			if at := k.unknownIn(e, path); at != "" {
				return at
			}
		}
	case map[string]any:
		for key, e := range v {
			at := strings.TrimPrefix(path+"."+key, ".")
			below := k.below[key]
			if below == nil {
				below = k.below["*"]
			}
			switch {
			case k.open:
				return ""
			case below == nil:
				return at
			}
			if at := below.unknownIn(e, at); at != "" {
				return at
			}
		}
	}
	return ""
}

// decode reads JSON strictly: a key that v does not declare is an error.
func decode(text json.RawMessage, v any) error {
	at, err := keysOf(nil, reflect.TypeOf(v)).unknown(text)
	if err != nil {
		return err
	}
	if at != "" {
		return fmt.Errorf("unknown key %q", at)
	}
	return json.Unmarshal(text, v)
}

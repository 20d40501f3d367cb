package podspec

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	utiljson "k8s.io/apimachinery/pkg/util/json"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"

	"github.com/berthd/berth/api/yamltext"
)

// object is a document of unknown kind.
type object = map[string]any

// errNoObject is returned for a document that is a list, a number or a text.
var errNoObject = errors.New("expected an object of kind Pod or List")

// documents reads all objects and calls f with each. Errors count from 1, documents without content included, as a
// person does.
func documents(r io.Reader, f func(object) error) error {
	in := bufio.NewReader(r)
	first, err := firstByte(in)
	if errors.Is(err, io.EOF) {
		return nil
	}
	if err != nil {
		return err
	}
	next := yamlDocuments(in)
	if first == '{' {
		next = jsonDocuments(in)
	}
	for n := 1; ; n++ {
		o, err := next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil && o != nil {
			err = f(o)
		}
		if err != nil {
			return fmt.Errorf("document %d: %w", n, err)
		}
	}
}

// firstByte returns the first byte that is no white space, without reading past it.
func firstByte(in *bufio.Reader) (byte, error) {
	for {
		b, err := in.ReadByte()
		if err != nil {
			return 0, err
		}
		if !bytes.ContainsRune([]byte(" \t\r\n"), rune(b)) {
			return b, in.UnreadByte()
		}
	}
}

// jsonDocuments gives one object after the other. Whole numbers come as int64, as the converter requires. Keys that occur
// twice are refused.
func jsonDocuments(in io.Reader) func() (object, error) {
	decoder := json.NewDecoder(in)
	return func() (object, error) {
		var raw json.RawMessage
		if err := decoder.Decode(&raw); errors.Is(err, io.EOF) {
			return nil, io.EOF
		} else if err != nil {
			return nil, fmt.Errorf("not JSON: %w", err)
		}
		if key, ok := repeatedKey(raw); ok {
			return nil, fmt.Errorf("key %q is set twice in one object", key)
		}
		return parse(raw)
	}
}

// repeatedKey returns a key that an object of a JSON text has twice. Of such keys each reader takes another one.
func repeatedKey(raw []byte) (key string, ok bool) {
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	type level struct {
		keys  map[string]bool // nil in a list
		value bool            // the next token is the value of a key
	}
	levels := []level{{}}
	for {
		token, err := decoder.Token()
		if err != nil {
			return "", false // the end: the text is JSON
		}
		top := &levels[len(levels)-1]
		switch token {
		case json.Delim('}'), json.Delim(']'):
			levels = levels[:len(levels)-1]
			continue
		}
		if name, is := token.(string); is && top.keys != nil && !top.value {
			if top.keys[name] {
				return name, true
			}
			top.keys[name], top.value = true, true
			continue
		}
		top.value = false
		switch token {
		case json.Delim('{'):
			levels = append(levels, level{keys: map[string]bool{}})
		case json.Delim('['):
			levels = append(levels, level{})
		}
	}
}

// yamlDocuments gives one object after the other, nil for a document without content. Keys that occur twice are refused.
func yamlDocuments(in *bufio.Reader) func() (object, error) {
	reader := utilyaml.NewYAMLReader(in)
	return func() (object, error) {
		text, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return nil, io.EOF
		}
		if err != nil {
			return nil, fmt.Errorf("not YAML: %w", err)
		}
		raw, err := yamltext.ToJSON(text)
		if err != nil {
			return nil, fmt.Errorf("not YAML: %w", err)
		}
		return parse(raw)
	}
}

// parse gives an object, or nil for null.
func parse(raw []byte) (object, error) {
	var any any
	if err := utiljson.Unmarshal(raw, &any); err != nil {
		return nil, err
	}
	switch v := any.(type) {
	case nil:
		return nil, nil
	case object:
		return v, nil
	}
	return nil, errNoObject
}

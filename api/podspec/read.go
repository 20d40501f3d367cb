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
	text, err := io.ReadAll(in)
	if err != nil {
		return func() (object, error) { return nil, err }
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	return func() (object, error) {
		start := decoder.InputOffset()
		key, err := repeatedKey(decoder)
		switch {
		case errors.Is(err, io.EOF):
			return nil, io.EOF
		case err != nil:
			return nil, fmt.Errorf("not JSON: %w", err)
		case key != nil:
			return nil, fmt.Errorf("key %q is set twice in one object", *key)
		}
		return parse(text[start:decoder.InputOffset()])
	}
}

// repeatedKey reads a value, and returns a key that an object has twice in it. Of such keys each reader takes another one.
func repeatedKey(decoder *json.Decoder) (key *string, err error) {
	type level struct {
		keys  map[string]bool // nil in a list
		value bool            // the next token is the value of a key
	}
	levels := []level{{}}
	for {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) && len(levels) > 1 {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return nil, err
		}
		top := &levels[len(levels)-1]
		name, isText := token.(string)
		switch {
		case token == json.Delim('}') || token == json.Delim(']'):
			levels = levels[:len(levels)-1]
		case isText && top.keys != nil && !top.value:
			if top.keys[name] {
				return &name, nil
			}
			top.keys[name], top.value = true, true
		default:
			top.value = false
			switch token {
			case json.Delim('{'):
				levels = append(levels, level{keys: map[string]bool{}})
			case json.Delim('['):
				levels = append(levels, level{})
			}
		}
		if len(levels) == 1 {
			return nil, nil
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

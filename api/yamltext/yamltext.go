// Package yamltext reads YAML from untrusted authors.
//
// In YAML an alias repeats the value of an anchor. Aliases of aliases, and many aliases of a long text,
// make a file of some kilobytes a value of gigabytes. The library limits only how many values aliases
// add, and not their sizes. This package computes the size with all aliases first, without expanding
// them, and refuses what is too large. A text without aliases is not limited here.
package yamltext

import (
	"bytes"
	"errors"
	"io"

	"sigs.k8s.io/yaml"
	goyaml "sigs.k8s.io/yaml/goyaml.v3"

	"github.com/berthd/berth/managers/errdefs"
)

const (
	// maxExpanded bounds the bytes of a text with all aliases expanded.
	maxExpanded = 4 << 20
	// perValue is what a value counts in addition to its text.
	perValue = 8
)

// ToJSON converts the first document of a text to JSON. A key that occurs twice is an error, and so
// are aliases that expand to too much.
func ToJSON(text []byte) ([]byte, error) {
	if err := CheckAliases(text); err != nil {
		return nil, err
	}
	return yaml.YAMLToJSONStrict(text)
}

// Unmarshal reads the first document of a text like encoding/json. Unknown fields, a key that occurs
// twice, and aliases that expand to too much are errors.
func Unmarshal(text []byte, into any) error {
	if err := CheckAliases(text); err != nil {
		return err
	}
	return yaml.UnmarshalStrict(text, into)
}

// CheckAliases refuses a text of any number of documents whose aliases expand to too much, with class
// Invalid.
func CheckAliases(text []byte) error {
	if bytes.IndexByte(text, '&') < 0 || bytes.IndexByte(text, '*') < 0 {
		return nil
	}
	decoder := goyaml.NewDecoder(bytes.NewReader(text))
	e := expansion{sizes: map[*goyaml.Node]int{}}
	for total := 0; ; {
		var document goyaml.Node
		err := decoder.Decode(&document)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return errdefs.Invalidf("not YAML: %w", err)
		}
		size := e.size(&document)
		if total = min(total+size, maxExpanded+1); e.aliases && total > maxExpanded {
			return errdefs.Invalidf("its aliases (*NAME) expand it to more than %d bytes: write the values out, or use fewer", maxExpanded)
		}
	}
}

// expansion computes the sizes of values.
type expansion struct {
	sizes   map[*goyaml.Node]int // of the values of anchors
	aliases bool
}

// size returns the size of a value with all aliases, at most maxExpanded+1.
func (e *expansion) size(n *goyaml.Node) int {
	if n.Kind == goyaml.AliasNode {
		e.aliases = true
		n = n.Alias
	}
	if n.Anchor != "" {
		if known, ok := e.sizes[n]; ok {
			return known
		}
		e.sizes[n] = maxExpanded + 1 // a value that contains itself is endless
	}
	total := len(n.Value) + perValue
	for _, c := range n.Content {
		total = min(total+e.size(c), maxExpanded+1)
	}
	if n.Anchor != "" {
		e.sizes[n] = total
	}
	return total
}

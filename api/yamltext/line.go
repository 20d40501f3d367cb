package yamltext

import (
	"bytes"
	"strconv"
	"strings"

	goyaml "sigs.k8s.io/yaml/goyaml.v3"
)

// Lines reads a text once, and returns a function that returns the line, from 1, on which a field stands:
// "spec.containers[0].resources.limits["cpu"]". Of a field that is not there, it is the line of the nearest field around it; 0 if there is
// none. Of several documents, the first one that has most of the path counts, and what cannot be read ends them.
func Lines(text []byte) func(path string) int {
	var documents []*goyaml.Node
	if CheckAliases(text) == nil {
		decoder := goyaml.NewDecoder(bytes.NewReader(text))
		for {
			document := &goyaml.Node{}
			if decoder.Decode(document) != nil {
				break
			}
			documents = append(documents, document)
		}
	}
	return func(path string) int {
		keys := steps(path)
		line, most := 0, 0
		for _, document := range documents {
			if at, depth := find(document, keys); depth > most {
				line, most = at, depth
			}
		}
		return line
	}
}

// steps divides a path into keys of objects and indexes of lists.
func steps(path string) (out []string) {
	for path != "" {
		var key string
		switch {
		case strings.HasPrefix(path, `["`):
			key, path, _ = strings.Cut(path[2:], `"]`)
		case path[0] == '[':
			key, path, _ = strings.Cut(path[1:], "]")
		default:
			path = strings.TrimPrefix(path, ".")
			end := strings.IndexAny(path, ".[")
			if end < 0 {
				end = len(path)
			}
			key, path = path[:end], path[end:]
		}
		out = append(out, key)
	}
	return out
}

// find follows keys as far as they exist, and returns the line of the last one and how many there are.
func find(n *goyaml.Node, keys []string) (line, depth int) {
	if n.Kind == goyaml.DocumentNode && len(n.Content) > 0 {
		n = n.Content[0]
	}
	for _, key := range keys {
		if n.Kind == goyaml.AliasNode {
			n = n.Alias
		}
		var next *goyaml.Node
		switch n.Kind {
		case goyaml.MappingNode:
			for i := 0; i+1 < len(n.Content); i += 2 {
				if n.Content[i].Value == key {
					line, next = n.Content[i].Line, n.Content[i+1]
				}
			}
		case goyaml.SequenceNode:
			if i, err := strconv.Atoi(key); err == nil && i >= 0 && i < len(n.Content) {
				next = n.Content[i]
				line = next.Line
			}
		}
		if next == nil {
			break
		}
		n, depth = next, depth+1
	}
	return line, depth
}

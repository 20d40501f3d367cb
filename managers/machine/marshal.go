package machine

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"strconv"

	"github.com/berthd/berth/managers/errdefs"
)

// Load reads what Marshal writes. It is strict: an unknown field, a missing
// version, anything after the object, and whatever New refuses is an error of
// class Invalid.
func Load(data []byte) (*Topology, error) {
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	var s Snapshot
	if err := decoder.Decode(&s); err != nil {
		return nil, errdefs.Invalidf("read machine: %w", err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, errdefs.Invalidf("read machine: unexpected text after the end of the object, at byte %d", decoder.InputOffset())
	}
	if s.Version == 0 {
		return nil, errdefs.Invalidf("read machine: version is missing, expected %d", FormatVersion)
	}
	return New(s)
}

// Marshal returns the snapshot of t in the format that the package comment
// describes: JSON with one line for a CPU, a node and a row of distances.
func (t *Topology) Marshal() ([]byte, error) {
	data, err := json.Marshal(t.snap)
	if err != nil {
		return nil, errdefs.Internalf("write machine: %w", err)
	}
	return breakLines(data), nil
}

// breakLines starts a new line for every element of the two outer levels of a
// JSON text without white space, so that machines can be read and compared.
func breakLines(compact []byte) []byte {
	const levels = 2
	out := make([]byte, 0, 2*len(compact))
	depth := 0
	newLine := func() {
		out = append(out, '\n')
		for range depth {
			out = append(out, "  "...)
		}
	}
	inText := false
	for i, c := range compact {
		if inText {
			out = append(out, c)
			inText = c != '"' || isEscaped(compact[:i])
			continue
		}
		switch c {
		case '"':
			out = append(out, c)
			inText = true
		case '{', '[':
			out = append(out, c)
			if depth++; depth <= levels {
				newLine()
			}
		case '}', ']':
			if depth--; depth < levels {
				newLine()
			}
			out = append(out, c)
		case ',':
			out = append(out, c)
			if depth <= levels {
				newLine()
			} else {
				out = append(out, ' ')
			}
		case ':':
			out = append(out, ':', ' ')
		default:
			out = append(out, c)
		}
	}
	return append(out, '\n')
}

// isEscaped reports whether the character after text is escaped: an odd number of
// backslashes stands before it.
func isEscaped(text []byte) bool {
	return (len(text)-len(bytes.TrimRight(text, `\`)))%2 == 1
}

// fingerprint hashes the places of CPUs and the ids of nodes. The text that is
// hashed is part of the stored format: after a change every ledger is taken for
// one of another machine.
func fingerprint(s Snapshot) string {
	text := []byte("berth machine 1\n")
	for _, cpu := range s.CPUs {
		text = append(text, "cpu"...)
		for _, n := range [...]int{cpu.ID, cpu.Core, cpu.Socket, cpu.Node, cpu.Uncore} {
			text = strconv.AppendInt(append(text, ' '), int64(n), 10)
		}
		text = append(text, '\n')
	}
	for _, node := range s.Nodes {
		text = strconv.AppendInt(append(text, "node "...), int64(node.ID), 10)
		text = append(text, '\n')
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:16])
}

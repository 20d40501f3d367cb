package machine

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"strconv"

	"github.com/berthd/berth/managers/fault"
)

// Load reads what Marshal writes. It is strict: an unknown field, a missing
// version, anything after the object, and whatever New refuses is an error of
// class Invalid.
func Load(data []byte) (*Topology, error) {
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	var s Snapshot
	if err := decoder.Decode(&s); err != nil {
		return nil, fault.Invalidf("read machine: %w", err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, fault.Invalidf("read machine: there is more after the end of the object, at byte %d", decoder.InputOffset())
	}
	if s.Version == 0 {
		return nil, fault.Invalidf("read machine: version is missing, expected %d", FormatVersion)
	}
	return New(s)
}

// Marshal returns the snapshot of t as indented JSON with a newline at the end,
// the format that the package comment describes.
func (t *Topology) Marshal() ([]byte, error) {
	data, err := json.MarshalIndent(t.snap, "", "  ")
	if err != nil {
		return nil, fault.Internalf("write machine: %w", err)
	}
	return append(data, '\n'), nil
}

// fingerprint hashes the places of CPUs and the ids of nodes. The text that is
// hashed is part of the stored format: changing it makes every ledger believe
// that it moved to another machine.
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

package config

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/berthd/berth/managers/errdefs"
)

// Policy is the part of a configuration that can be changed while berthd runs. Its
// JSON form is that of the file.
type Policy struct {
	CPU      CPU      `json:"cpu"`
	Memory   Memory   `json:"memory"`
	Topology Topology `json:"topology"`
	Reserved Reserved `json:"reserved"`
}

// Policy returns the configuration's policy. It shares nothing with it.
func (c Config) Policy() Policy {
	p := Policy{CPU: c.CPU, Memory: c.Memory, Topology: c.Topology, Reserved: c.Reserved}
	for _, m := range []*map[string]string{
		&p.CPU.Options, &p.Topology.Options, &p.Reserved.System, &p.Reserved.Kube, &p.Reserved.EvictionHard,
	} {
		*m = maps.Clone(*m)
	}
	p.Memory.Reserved = slices.Clone(p.Memory.Reserved)
	for i := range p.Memory.Reserved {
		p.Memory.Reserved[i].Limits = maps.Clone(p.Memory.Reserved[i].Limits)
	}
	return p
}

// With returns the configuration with another policy.
func (c Config) With(p Policy) Config {
	c.CPU, c.Memory, c.Topology, c.Reserved = p.CPU, p.Memory, p.Topology, p.Reserved
	return c
}

// Marshal returns the policy as it is kept.
func (p Policy) Marshal() ([]byte, error) {
	text, err := json.Marshal(p)
	if err != nil {
		return nil, fmt.Errorf("keep the policy: %w", err)
	}
	return text, nil
}

// ReadPolicy parses a stored policy. An error is of class Invalid: a newer berthd has stored it.
func ReadPolicy(text []byte) (p Policy, err error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&p); err != nil {
		return p, errdefs.Invalidf("read the policy that was kept: %w", err)
	}
	// A policy of a berthd without this setting has none.
	p.Topology.Planning = cmp.Or(p.Topology.Planning, Default().Topology.Planning)
	return p, nil
}

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/yaml"

	"github.com/berthd/berth/clients/berthctl/table"
)

// format is how answers are printed.
type format string

const (
	formatTable format = "table"
	formatWide  format = "wide"
	formatJSON  format = "json"
	formatYAML  format = "yaml"
)

func formats() []string {
	return []string{string(formatTable), string(formatWide), string(formatJSON), string(formatYAML)}
}

// String, Set and Type make it a flag.
func (f *format) String() string { return string(*f) }

func (f *format) Set(text string) error {
	if !slices.Contains(formats(), text) {
		return fmt.Errorf("expected one of %s", strings.Join(formats(), ", "))
	}
	*f = format(text)
	return nil
}

func (f *format) Type() string { return "format" }

// wide reports whether people want all columns.
func (c *ctl) wide() bool { return c.format == formatWide }

// forPrograms reports whether a program reads the output.
func (c *ctl) forPrograms() bool { return c.format == formatJSON || c.format == formatYAML }

// show prints an answer: the message itself for programs, what people writes for people.
func (c *ctl) show(m proto.Message, people func(w io.Writer)) error {
	if !c.forPrograms() {
		return c.say(people)
	}
	raw, err := marshal(m)
	if err != nil {
		return err
	}
	return c.print(raw)
}

// say prints for people.
func (c *ctl) say(people func(w io.Writer)) error {
	var b bytes.Buffer
	people(&b)
	_, err := c.out.Write([]byte(table.Text(b.String())))
	return err
}

// marshal gives a message as JSON. Zeros are there, so that programs find every number and every list; what is absent in
// the message is absent.
func marshal(m proto.Message) ([]byte, error) {
	raw, err := protojson.MarshalOptions{EmitDefaultValues: true}.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("print the answer: %w", err)
	}
	return raw, nil
}

// print prints JSON in the wanted format. Several answers follow each other as documents.
func (c *ctl) print(raw []byte) error {
	if c.format == formatYAML {
		text, err := yaml.JSONToYAML(raw)
		if err != nil {
			return fmt.Errorf("print the answer: %w", err)
		}
		_, err = fmt.Fprintf(c.out, "---\n%s", text)
		return err
	}
	// protojson varies its blanks on purpose; indenting removes them.
	var b bytes.Buffer
	if err := json.Indent(&b, raw, "", "  "); err != nil {
		return fmt.Errorf("print the answer: %w", err)
	}
	b.WriteByte('\n')
	_, err := c.out.Write(table.JSON(b.Bytes()))
	return err
}

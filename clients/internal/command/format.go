package command

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/util/jsonpath"
	"sigs.k8s.io/yaml"

	"github.com/berthd/berth/clients/internal/output"
	"github.com/berthd/berth/clients/internal/table"
)

// Format selects how answers are printed.
type Format string

const (
	FormatTable Format = "table"
	formatWide  Format = "wide"
	FormatJSON  Format = "json"
	FormatYAML  Format = "yaml"
	// formatName prints the names of objects, as other verbs take them.
	FormatName Format = "name"
	// formatPath is the beginning of a format with an expression.
	formatPath = "jsonpath="
	// formatColumns is the beginning of a format with a table of one's own.
	formatColumns = "custom-columns="
)

// apiVersion is of all documents. Their kinds are in docs/cli-output.md.
const apiVersion = "berthctl.berthd.github.io/v1"

func Formats() []string {
	return []string{string(FormatTable), string(formatWide), string(FormatName), string(FormatJSON), string(FormatYAML), formatPath,
		formatColumns}
}

// String, Set and Type make it a flag.
func (f *Format) String() string { return string(*f) }

func (f *Format) Set(text string) error {
	if expression, ok := strings.CutPrefix(text, formatPath); ok {
		if expression == "" {
			return errors.New("expected jsonpath={EXPRESSION}, such as jsonpath={.items[*].name}")
		}
		if _, err := parsePath(expression); err != nil {
			return err
		}
		*f = Format(text)
		return nil
	}
	if spec, ok := strings.CutPrefix(text, formatColumns); ok {
		if _, err := parseColumns(spec); err != nil {
			return err
		}
		*f = Format(text)
		return nil
	}
	if !slices.Contains(Formats(), text) {
		return fmt.Errorf("expected one of %s", strings.Join(Formats(), ", "))
	}
	*f = Format(text)
	return nil
}

func (f *Format) Type() string { return "format" }

// path returns the expression of a format, empty for another format.
func (f Format) path() string { return f.behind(formatPath) }

// columns returns the columns of a format, empty for another format.
func (f Format) columns() string { return f.behind(formatColumns) }

func (f Format) behind(prefix string) string {
	text, ok := strings.CutPrefix(string(f), prefix)
	if !ok {
		return ""
	}
	return text
}

func parsePath(expression string) (*jsonpath.JSONPath, error) {
	p := jsonpath.New("output").AllowMissingKeys(true)
	// As kubectl, which takes an expression without braces too.
	if !strings.Contains(expression, "{") {
		expression = "{" + expression + "}"
	}
	if err := p.Parse(expression); err != nil {
		return nil, fmt.Errorf("jsonpath %s: %w", expression, err)
	}
	return p, nil
}

// Wide reports whether all columns are requested.
func (c *Ctl) Wide() bool { return c.Format == formatWide }

// ForPrograms reports whether a program reads the output.
func (c *Ctl) ForPrograms() bool {
	return c.Format == FormatJSON || c.Format == FormatYAML || c.Format.path() != "" || c.Format.columns() != ""
}

// Part begins the nth of several answers, from 0: people get an empty line between two.
func (c *Ctl) Part(n int) {
	if n > 0 && !c.ForPrograms() {
		_, _ = fmt.Fprintln(c.Out)
	}
}

// Show prints an answer: its documented JSON for programs, what people writes for people.
func (c *Ctl) Show(m proto.Message, people func(w io.Writer)) error {
	if !c.ForPrograms() {
		return c.Say(people)
	}
	raw, err := output.JSON(m)
	if err != nil {
		return err
	}
	return c.Print(output.Kind(m), raw)
}

// Say prints for people.
func (c *Ctl) Say(people func(w io.Writer)) error {
	p := &sheet{color: c.Colored()}
	people(p)
	_, err := c.Out.Write(p.text.Bytes())
	return err
}

// sheet collects what people read. All that is written to it is escaped, but for the colors that paint adds.
type sheet struct {
	text  bytes.Buffer
	color bool
}

func (p *sheet) Write(b []byte) (int, error) {
	p.text.WriteString(table.Text(string(b)))
	return len(b), nil
}

// Paint writes a text in a color, if the output has colors.
func Paint(w io.Writer, color, text string) {
	if p, ok := w.(*sheet); ok && p.color {
		p.text.WriteString(table.Painted(color, table.Text(text)))
		return
	}
	fmt.Fprint(w, text)
}

// table writes a table with the colors of its states.
func (c *Ctl) table(w io.Writer, t *table.Table, style table.Style) {
	p, ok := w.(*sheet)
	if !ok {
		fmt.Fprint(w, t.Print(style))
		return
	}
	if p.color {
		style.Paint = stateColor
	}
	// A table escapes its cells itself.
	p.text.WriteString(t.Print(style))
}

// Print prints a JSON object in the requested format, with its kind and apiVersion. Several answers are separate documents.
func (c *Ctl) Print(kind string, raw []byte) error {
	raw, err := headed(apiVersion, kind, raw)
	if err != nil {
		return err
	}
	return c.PrintWhole(raw)
}

// headed puts the apiVersion and the kind of an object before its fields.
func headed(version, kind string, raw []byte) ([]byte, error) {
	head, err := json.Marshal(struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
	}{version, kind})
	if err != nil {
		return nil, fmt.Errorf("print the answer: %w", err)
	}
	fields := bytes.TrimPrefix(raw, []byte{'{'})
	if !bytes.Equal(fields, []byte{'}'}) {
		head[len(head)-1] = ','
		return append(head, fields...), nil
	}
	return head, nil
}

// PrintWhole prints an object of Kubernetes, which has a kind and an apiVersion of its own, in the requested format.
func (c *Ctl) PrintWhole(raw []byte) error {
	if c.Format == FormatYAML {
		text, err := yaml.JSONToYAML(raw)
		if err != nil {
			return fmt.Errorf("print the answer: %w", err)
		}
		_, err = fmt.Fprintf(c.Out, "---\n%s", text)
		return err
	}
	if expression := c.Format.path(); expression != "" {
		return c.printPath(expression, raw)
	}
	if spec := c.Format.columns(); spec != "" {
		return c.printColumns(spec, raw)
	}
	var b bytes.Buffer
	if c.Lines {
		b.Write(raw)
	} else if err := json.Indent(&b, raw, "", "  "); err != nil {
		return fmt.Errorf("print the answer: %w", err)
	}
	b.WriteByte('\n')
	_, err := c.Out.Write(table.JSON(b.Bytes()))
	return err
}

// oneLines escapes the strings of a document, so that each is one line and safe for a terminal.
func oneLines(document any) any {
	switch v := document.(type) {
	case string:
		return table.Printable(v)
	case []any:
		for i := range v {
			v[i] = oneLines(v[i])
		}
	case map[string]any:
		for key, value := range v {
			v[key] = oneLines(value)
		}
	}
	return document
}

// execute evaluates an expression. The library panics on some that it has parsed.
func execute(p *jsonpath.JSONPath, b *bytes.Buffer, document any) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("it cannot be evaluated: %v", r)
		}
	}()
	return p.Execute(b, document)
}

// printPath prints what an expression selects of a document.
func (c *Ctl) printPath(expression string, raw []byte) error {
	p, err := parsePath(expression)
	if err != nil {
		return err
	}
	var document any
	if err := utiljson.Unmarshal(raw, &document); err != nil {
		return fmt.Errorf("print the answer: %w", err)
	}
	var b bytes.Buffer
	if err := execute(p, &b, oneLines(document)); err != nil {
		return fmt.Errorf("jsonpath %s: %w", expression, err)
	}
	text := table.Text(b.String())
	if !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	_, err = io.WriteString(c.Out, text)
	return err
}

package command

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"

	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/util/jsonpath"

	"github.com/berthd/berth/clients/internal/table"
)

// column is one of -o custom-columns: what it is called, and the expression of its cells.
type column struct {
	header string
	path   *jsonpath.JSONPath
}

// parseColumns reads HEADER:EXPRESSION,...; as kubectl, also without braces and without the first point.
func parseColumns(spec string) ([]column, error) {
	var out []column
	for part := range strings.SplitSeq(spec, ",") {
		header, expression, ok := strings.Cut(part, ":")
		if !ok || header == "" || expression == "" {
			return nil, errors.New("expected custom-columns=HEADER:EXPRESSION,..., such as custom-columns=POD:.name,CPUS:.containers[*].cpus")
		}
		if !strings.HasPrefix(expression, ".") && !strings.HasPrefix(expression, "{") {
			expression = "." + expression
		}
		path, err := parsePath(expression)
		if err != nil {
			return nil, err
		}
		out = append(out, column{header, path})
	}
	return out, nil
}

// printColumns prints a line for each item of a list, or one for an object. The headers are above the first document.
func (c *Ctl) printColumns(spec string, raw []byte) error {
	columns, err := parseColumns(spec)
	if err != nil {
		return err
	}
	var document map[string]any
	if err := utiljson.Unmarshal(raw, &document); err != nil {
		return fmt.Errorf("print the answer: %w", err)
	}
	items, isList := document["items"].([]any)
	if !isList {
		items = []any{document}
	}
	headers := make([]string, len(columns))
	for i, col := range columns {
		headers[i] = col.header
	}
	t := table.New(headers...)
	for _, item := range items {
		cells := make([]string, len(columns))
		for i, col := range columns {
			if cells[i], err = cellOf(col.path, item); err != nil {
				return err
			}
		}
		t.Row(cells...)
	}
	if err := c.sort(t); err != nil {
		return err
	}
	if c.columnWidths == nil {
		c.columnWidths = &[]int{}
	}
	_, err = fmt.Fprint(c.Out, t.Print(table.Style{NoHeaders: c.noHeaders, Widths: c.columnWidths}))
	c.noHeaders = true
	return err
}

// cellOf returns what an expression selects, several values with commas.
func cellOf(path *jsonpath.JSONPath, item any) (text string, err error) {
	// The library fails so on some expressions that it has parsed.
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("custom-columns: this expression cannot be evaluated: %v", r)
		}
	}()
	found, err := path.FindResults(item)
	if err != nil {
		return "", fmt.Errorf("custom-columns: %w", err)
	}
	var values []string
	for _, group := range found {
		for _, v := range group {
			if !v.IsValid() {
				continue
			}
			value, err := valueText(v)
			if err != nil {
				return "", err
			}
			values = append(values, value)
		}
	}
	return strings.Join(values, ","), nil
}

// valueText returns a string as it is, and everything else as JSON.
func valueText(v reflect.Value) (string, error) {
	if text, ok := v.Interface().(string); ok {
		return text, nil
	}
	raw, err := json.Marshal(v.Interface())
	if err != nil {
		return "", fmt.Errorf("custom-columns: %w", err)
	}
	return string(raw), nil
}

// sort sorts a table by the column of --sort-by, if that is set.
func (c *Ctl) sort(tables ...*table.Table) error {
	if c.sortBy == "" {
		return nil
	}
	sorted := false
	for _, t := range tables {
		sorted = t.SortBy(c.sortBy) || sorted
	}
	if !sorted {
		return &UsageError{Verb: c.verb, Err: fmt.Errorf("--sort-by %s: expected a column: one of %s", c.sortBy,
			strings.Join(tables[0].Columns(), ", "))}
	}
	return nil
}

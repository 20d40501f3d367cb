package yamltext

import (
	"fmt"
	"strings"
	"testing"

	"github.com/berthd/berth/managers/errdefs"
)

// bombs are small texts with large values.
func bombs() map[string]string {
	lists := "a: &a [x,x,x,x,x,x,x,x,x,x]\n"
	for c := 'b'; c < 'k'; c++ {
		lists += fmt.Sprintf("%c: &%c [%s]\n", c, c, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*%c,", c-1), 10), ","))
	}
	long := strings.Repeat("x", 20_000)
	return map[string]string{
		"aliases of aliases":     lists,
		"aliases of a long text": "a: &a " + long + "\nb: [" + strings.Repeat("*a,", 20_000) + "]\n",
		"a long key":             "? &a " + long + "\n: 1\nb: [" + strings.Repeat("{*a : 1},", 5_000) + "]\n",
		"merged objects":         "a: &a {k: " + long + "}\nb: [" + strings.Repeat("{<<: *a},", 5_000) + "]\n",
		"a later document":       "a: 1\n---\na: &a " + long + "\nb: [" + strings.Repeat("*a,", 20_000) + "]\n",
		"a value in itself":      "a: &a [*a]\n",
	}
}

func TestAliasesAreBounded(t *testing.T) {
	t.Parallel()
	for name, text := range bombs() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var into any
			_, err := ToJSON([]byte(text))
			for _, err := range []error{err, Unmarshal([]byte(text), &into), CheckAliases([]byte(text))} {
				if errdefs.ClassOf(err) != errdefs.Invalid || !strings.Contains(fmt.Sprint(err), "aliases (*NAME) expand it to more than") {
					t.Errorf("%.300v", err)
				}
			}
		})
	}
}

func TestUsualTexts(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"a: &x {b: 1}\nc: *x\nd: [*x, *x]\n":               `{"a":{"b":1},"c":{"b":1},"d":[{"b":1},{"b":1}]}`,
		"a: &x {b: 1}\nc: {<<: *x, d: '&*'}\n":             `{"a":{"b":1},"c":{"b":1,"d":"\u0026*"}}`,
		`{"a": "& *"}`:                                     `{"a":"\u0026 *"}`,
		"a: '& *" + strings.Repeat("x", maxExpanded) + "'": `{"a":"\u0026 *` + strings.Repeat("x", maxExpanded) + `"}`,
	} {
		got, err := ToJSON([]byte(text))
		if err != nil || string(got) != want {
			t.Errorf("%.100q: %.100q, %v", text, got, err)
		}
	}
	for _, text := range []string{"a: &a [", "a: *b &", "a: 1\na: &x 2\nb: *x"} {
		if got, err := ToJSON([]byte(text)); err == nil {
			t.Errorf("%q: %s", text, got)
		}
	}
}

// FuzzToJSON: what is accepted is not much larger than its text, or than the bound.
func FuzzToJSON(f *testing.F) {
	for _, text := range bombs() {
		f.Add([]byte(text))
	}
	f.Add([]byte("a: &x {b: 1}\nc: {<<: *x}\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		const escaped = 6 // bytes of a character in JSON
		got, err := ToJSON(text)
		if err == nil && len(got) > escaped*max(maxExpanded, (1+perValue)*len(text)+perValue) {
			t.Errorf("%d bytes become %d", len(text), len(got))
		}
	})
}

// TestLines: a field has its line, and one that is not there has that of the field around it.
func TestLines(t *testing.T) {
	t.Parallel()
	const text = "kind: Pod\nmetadata: {name: a}\nspec:\n  containers:\n  - name: b\n    resources:\n      limits:\n        cpu: x\n        example.com/gpu: 1\n"
	line := Lines([]byte(text))
	for path, want := range map[string]int{
		"kind": 1, "metadata.name": 2, "spec.containers": 4, "spec.containers[0]": 5, "spec.containers[0].resources.limits.cpu": 8,
		`spec.containers[0].resources.limits["example.com/gpu"]`: 9, "spec.containers[0].resources.requests": 6, "spec.containers[3].name": 4,
		"status": 0, "": 0, "[": 0, `["`: 0, "spec.containers[-1]": 4,
	} {
		if got := line(path); got != want {
			t.Errorf("%s: line %d, want %d", path, got, want)
		}
	}
	if got := Lines([]byte("a: 1\n---\nb:\n  c: 1\n"))("b.c"); got != 4 {
		t.Errorf("in a later document: line %d", got)
	}
	for name, bomb := range bombs() {
		if got := Lines([]byte(bomb))("b"); got != 0 {
			t.Errorf("%s: line %d", name, got)
		}
	}
}

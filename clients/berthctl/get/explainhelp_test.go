package get_test

import (
	"bytes"
	"testing"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/clients/berthctl/get"
)

// TestExplainHelp: each suggestion is followed by what carries it out.
func TestExplainHelp(t *testing.T) {
	t.Parallel()
	trace := &typesv1.Trace{Suggestions: []*typesv1.Suggestion{
		{Text: "without pods", How: []string{"kubectl delete pod -n shop web", "kubectl delete pod -n shop db"}},
		{Text: "with a policy"},
	}}
	const want = `
it would fit
  without pods, or
    kubectl delete pod -n shop web
    kubectl delete pod -n shop db
  with a policy
`
	var out bytes.Buffer
	if get.ExplainHelp(&out, trace); out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
}

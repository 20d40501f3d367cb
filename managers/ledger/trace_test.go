package ledger

import (
	"encoding/json"
	"testing"
)

// TestStepKinds: a step is read as it was written, and a step of an earlier build under its new kind.
func TestStepKinds(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]StepKind{
		`{"kind":"asked","provider":"cpu"}`: StepAnswered, `{"kind":"answered","provider":"cpu"}`: StepAnswered,
		`{"kind":"merged","provider":"cpu"}`: StepMerged, `{"kind":"later","provider":"cpu"}`: "later",
	} {
		var s Step
		if err := json.Unmarshal([]byte(text), &s); err != nil || s.Kind != want || s.Provider != "cpu" {
			t.Errorf("%s: %+v, %v, want kind %s", text, s, err, want)
		}
		written, err := json.Marshal(s)
		var again Step
		if err != nil || json.Unmarshal(written, &again) != nil || again.Kind != want {
			t.Errorf("%s: written as %s, %v", text, written, err)
		}
	}
	if err := json.Unmarshal([]byte(`{"kind":2}`), new(Step)); err == nil {
		t.Error("a kind that is a number is accepted")
	}
}

package refusal

import (
	"errors"
	"strings"
	"testing"
	"unicode/utf8"
)

// TestRefusalsAreBounded: an event takes 1 KiB, and a character is not cut in two.
func TestRefusalsAreBounded(t *testing.T) {
	t.Parallel()
	for _, before := range []string{"", "a", "ab", "abc"} {
		cause := errors.New(before + strings.Repeat("\u2603", 1000))
		err := New("admit the pod", cause)
		if text := err.Error(); len(text) > maxRefusal || !utf8.ValidString(text) || !strings.HasSuffix(text, "…") {
			t.Errorf("the text has %d bytes and ends with %q", len(text), text[len(text)-5:])
		}
		if !errors.Is(err, cause) {
			t.Error("the cause of a refusal is lost")
		}
	}
	if got := New("admit the pod", errors.New("no")).Error(); got != "berth: admit the pod: no" {
		t.Errorf("a short refusal: %s", got)
	}
}

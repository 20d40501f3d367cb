package get

import (
	"bytes"
	"fmt"
	"testing"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/clients/internal/command"
)

// TestWarnOfUnadmitted: a list of pods warns of those that run and are not in the ledger. It names ten, and escapes their names.
func TestWarnOfUnadmitted(t *testing.T) {
	t.Parallel()
	var many []*typesv1.PodAllocation
	for i := range 12 {
		many = append(many, &typesv1.PodAllocation{Uid: fmt.Sprint("u", i)})
	}
	text := "warning: not in the ledger: %s (%s). No other pod gets what they hold, until their agent admits or ends them\n"
	for _, test := range []struct {
		pods   []*typesv1.PodAllocation
		format command.Format
		want   string
	}{
		{},
		{[]*typesv1.PodAllocation{{Namespace: "shop", Name: "web\x1b", Uid: "u"}}, "", fmt.Sprintf(text, "1 pod", `shop/web\x1b`)},
		{many, "", fmt.Sprintf(text, "12 pods", "u0, u1, u2, u3, u4, u5, u6, u7, u8, u9, 2 more")},
		{many, "json", ""},
	} {
		var out bytes.Buffer
		warnOfUnadmitted(&command.Session{Ctl: &command.Ctl{Env: command.Env{Err: &out}, Format: test.format}}, "pod", test.pods)
		if got := out.String(); got != test.want {
			t.Errorf("got %q, want %q", got, test.want)
		}
	}
}

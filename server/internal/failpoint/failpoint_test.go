package failpoint_test

import (
	"testing"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/server/internal/failpoint"
)

// That a hook kills is shown by the crash test of package store.
func TestParse(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"store/a:kill": true, "store/b:kill:12": true,
		"store/a": false, ":kill": false, "store/c:kill": false, "store/a:panic": false,
		"store/a:kill:0": false, "store/a:kill:-1": false, "store/a:kill:x": false, "store/a:kill:1:2": false,
	} {
		hook, err := failpoint.Parse(text, "store/a", "store/b")
		if (err == nil) != want || (hook != nil) != want || err != nil && errdefs.ClassOf(err) != errdefs.Invalid {
			t.Errorf("%q: hook %t, %v", text, hook != nil, err)
		}
		if want {
			hook.Hit("store/other")
		}
	}
	hook, err := failpoint.Parse("", "store/a")
	if hook != nil || err != nil {
		t.Errorf("empty text: hook %t, %v", hook != nil, err)
	}
	hook.Hit("store/a")
}

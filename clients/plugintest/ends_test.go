package plugintest

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// TestEndingsAfterALongSoak: ends that the test made do not crowd out one that it did not.
func TestEndingsAfterALongSoak(t *testing.T) {
	t.Parallel()
	l := &life{daemon: &daemon{opened: map[string]time.Time{}}}
	say := func(at time.Time, state string) {
		l.daemon.read(fmt.Sprintf("time=%s level=WARN msg=\"a plugin\" event=peer kind=plugin state=%s resource=a.com/x error=\"it ended\"",
			at.Format("2006-01-02T15:04:05.000Z07:00"), state))
	}
	for range 2 * maxEnds {
		done := l.cause()
		say(time.Now(), "came")
		say(time.Now(), "gone")
		done()
	}
	if err := l.endings(); err != nil || len(l.daemon.ends) > 0 {
		t.Fatalf("%v, and %d ends are kept", err, len(l.daemon.ends))
	}
	later := time.Now().Add(time.Hour)
	say(later, "came")
	say(later.Add(2*time.Second), "gone")
	const want = "a.com/x: the list ended once by itself, at first 2s after it was opened: it ended"
	if err := l.endings(); err == nil || !strings.Contains(err.Error(), want) {
		t.Error(err)
	}
}

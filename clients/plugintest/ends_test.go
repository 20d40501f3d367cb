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

// TestExcerpt: the first lines have the reason of a wrong use, and the last ones that of an end.
func TestExcerpt(t *testing.T) {
	t.Parallel()
	filler := strings.Repeat("filler\n", kept/len("filler\n"))
	for name, row := range map[string]struct{ wrote, want string }{
		"nothing":   {" \n\n", "it wrote nothing"},
		"tabs":      {"\ta\t  b\r\n\n", "it wrote: a   b"},
		"few lines": {"1\n2\n3\n4\n5\n6\n", "it wrote: 1; 2; 3; 4; 5; 6"},
		"lines":     {"1\n2\n3\n4\n5\n6\n7\n", "it wrote: 1; 2; 3; …; 5; 6; 7"},
		"much":      {"1\n2\n3\n" + filler + "a\nb\nc\n", "it wrote: 1; 2; 3; …; a; b; c"},
		"long line": {strings.Repeat("ä", 2*maxLine), "it wrote: " + strings.Repeat("ä", maxLine) + "…"},
		"long start": {strings.Repeat("x", 2*kept) + "\nend\n", "it wrote: " + strings.Repeat("x", maxLine) + "…; …; " +
			strings.Repeat("x", maxLine) + "…; end"},
		"a crash": {"1\n2\n3\n" + filler + "panic: why\n\ngoroutine 1\nmain()\n" + filler[:700] + "exit 2\n",
			"it wrote: panic: why; goroutine 1; main()"},
	} {
		p := &process{}
		if _, err := p.Write([]byte(row.wrote)); err != nil {
			t.Fatal(err)
		}
		if got := p.excerpt(); got != row.want {
			t.Errorf("%s: %.400q, want %.400q", name, got, row.want)
		}
	}
}

package hintproxy

import (
	"strings"
	"testing"
)

// TestComingAndGoingIsLogged: each time that a provider comes and goes there is one line with the keys of a peer.
func TestComingAndGoingIsLogged(t *testing.T) {
	t.Parallel()
	s := newStage(t, Config{})
	has := func(text string, times int) {
		t.Helper()
		s.eventually("the log has "+text, func() bool { return strings.Count(s.log.String(), text) == times })
	}
	_, stop := s.serveScript(slotsOf("slots"))
	s.register("slots")
	has(`msg="hint provider registered" event=peer kind=provider state=came provider=slots endpoint=/slots`, 1)
	const gone, back = `msg="hint provider has gone" event=peer kind=provider state=gone provider=slots`,
		`msg="hint provider is back" event=peer kind=provider state=came provider=slots`
	for i := range 2 {
		s.eventually("the provider is connected", func() bool { return s.status("slots").State == Connected })
		stop()
		has(gone, i+1)
		_, stop = s.serveScript(slotsOf("slots"))
		has(back, i+1)
	}
	if err := s.registry.Unregister(t.Context(), "slots", self); err != nil {
		t.Fatal(err)
	}
	has(`msg="hint provider unregistered" event=peer kind=provider state=gone provider=slots`, 1)
	has(gone, 2)
}

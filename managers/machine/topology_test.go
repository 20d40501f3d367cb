package machine

import "testing"

func TestNewRefusesNothing(t *testing.T) {
	t.Parallel()
	if _, err := New(Snapshot{}); err == nil {
		t.Fatal("a machine without CPUs was accepted")
	}
}

package procfs

import (
	"maps"
	"testing"
	"testing/fstest"
	"time"
)

func TestCPUTimes(t *testing.T) {
	t.Parallel()
	const text = `cpu  30 0 30 900 10 1 2 3 4 0
cpu0 10 1 20 450 5 1 2 3 4 1
cpu12 20 0 10 450 5 0 0 0 0 0
intr 5 0
ctxt 7
`
	got, err := CPUTimes(fstest.MapFS{"stat": {Data: []byte(text)}})
	want := map[int]time.Duration{0: 370 * time.Millisecond, 12: 300 * time.Millisecond}
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("%v, %v; want %v", got, err, want)
	}
	if _, err := CPUTimes(fstest.MapFS{}); err == nil {
		t.Error("no file, and no error")
	}
	if _, err := CPUTimes(fstest.MapFS{"stat": {Data: []byte("cpu0 1 x 3 4 5\n")}}); err == nil {
		t.Error("a word for a number, and no error")
	}
}

func TestUptime(t *testing.T) {
	t.Parallel()
	if got, err := Uptime(fstest.MapFS{"uptime": {Data: []byte("12345.67 99.00\n")}}); err != nil || got != 12345670*time.Millisecond {
		t.Errorf("%v, %v", got, err)
	}
	for _, text := range []string{"", "x 1", "-1 1", "NaN 1", "1e300 1"} {
		if got, err := Uptime(fstest.MapFS{"uptime": {Data: []byte(text)}}); err == nil {
			t.Errorf("%q: %v, and no error", text, got)
		}
	}
	for _, text := range []string{"", "1 (x) S 1 2", "1 (x) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 y"} {
		if got, err := Began(text); err == nil {
			t.Errorf("%q: %v, and no error", text, got)
		}
	}
}

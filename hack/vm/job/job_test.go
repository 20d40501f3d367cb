package job

import (
	"bytes"
	"reflect"
	"strings"
	"testing"
)

func TestEventsSurviveTheLine(t *testing.T) {
	t.Parallel()
	want := []Event{
		{Kind: Boot, Text: "6.1"}, {Kind: Start, Test: 1}, {Kind: Output, Test: 1, Text: "a\r\n\x1b[0m\n"},
		{Kind: End, Test: 1, Status: 137, Seconds: 0.5}, {Kind: Done},
	}
	var line bytes.Buffer
	for _, e := range want {
		if err := Encode(&line, e); err != nil {
			t.Fatal(err)
		}
	}
	// A terminal puts a carriage return before each line feed.
	text := strings.ReplaceAll(line.String(), "\n", "\r\n\r\n")
	var got []Event
	if err := Decode(strings.NewReader(text), func(e Event) { got = append(got, e) }); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestOtherTextIsRefused(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"[    0.1] Linux", `{"Kind":"boot"`, `{"Kind":3}`} {
		if err := Decode(strings.NewReader(text), func(Event) {}); err == nil {
			t.Errorf("%q: no error", text)
		}
	}
}

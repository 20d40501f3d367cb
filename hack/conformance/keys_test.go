package main

import (
	"reflect"
	"testing"

	"github.com/berthd/berth/hack/conformance/vector"
)

func TestUnknownKey(t *testing.T) {
	t.Parallel()
	type inner struct {
		A int `json:"a"`
	}
	type left struct {
		inner
		Named map[string]inner `json:"named"`
		List  []*inner         `json:"list"`
		Gates vector.Gates     `json:"gates"`
	}
	type right struct {
		Any  any              `json:"any"`
		List []struct{ Deep } `json:"list"`
	}
	known := keysOf([]string{"seen"}, reflect.TypeFor[left](), reflect.TypeFor[right]())
	for _, tt := range []struct{ text, want string }{
		{`{}`, ""},
		{`{"a":1,"named":{"x":{"a":1}},"list":[{"a":1,"b":2},null]}`, ""},
		{`{"any":{"x":[{"y":1}]},"gates":{"PodLevelResources":true}}`, ""},
		{`{"x":1}`, "x"},
		{`{"A":1}`, "A"},
		{`{"named":{"x":{"y":1}}}`, "named.x.y"},
		{`{"list":[{"a":1},{"c":1}]}`, "list.c"},
		{`{"seen":{"x":1}}`, ""},
		{`[1]`, ""},
	} {
		got, err := known.unknown([]byte(tt.text))
		if err != nil || got != tt.want {
			t.Errorf("%s: %q, %v; want %q", tt.text, got, err, tt.want)
		}
	}
	if _, err := known.unknown([]byte(`{`)); err == nil {
		t.Error("half an object was taken for one")
	}
	var v inner
	if err := decode([]byte(`{"a":1}`), &v); err != nil || v.A != 1 {
		t.Errorf("decoded %+v, %v", v, err)
	}
	if err := decode([]byte(`{"a":1,"b":2}`), &v); err == nil {
		t.Error("an unknown key was decoded")
	}
}

// Deep is embedded, so it is exported.
type Deep struct {
	B int `json:"b"`
}

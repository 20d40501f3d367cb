package jsontext_test

import (
	"encoding/json"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/berthd/berth/managers/internal/jsontext"
)

// TestAsEncodingJSON: every method gives the bytes of encoding/json.
func TestAsEncodingJSON(t *testing.T) {
	t.Parallel()
	text := rapid.OneOf(rapid.String(), rapid.SampledFrom([]string{"", "pod-1", "<a&b>", "\x00\u2028\xff\"\\\x7f~"}))
	type value struct {
		Member string           `json:"member"`
		Some   string           `json:"some,omitempty"`
		Number uint64           `json:"number"`
		Count  int              `json:"count,omitempty"`
		Flag   bool             `json:"flag,omitempty"`
		Bytes  []byte           `json:"bytes,omitempty"`
		List   []int64          `json:"list"`
		Map    map[string]int64 `json:"map,omitempty"`
		Bool   bool             `json:"bool"`
		Time   time.Time        `json:"time"`
		Value  any              `json:"value"`
	}
	rapid.Check(t, func(t *rapid.T) {
		v := value{
			Member: text.Draw(t, "member"), Some: text.Draw(t, "some"), Number: rapid.Uint64().Draw(t, "number"),
			Count: rapid.IntRange(-2, 2).Draw(t, "count"), Flag: rapid.Bool().Draw(t, "flag"), Bytes: rapid.SliceOfN(rapid.Byte(), 0, 5).Draw(t, "bytes"),
			Bool: rapid.Bool().Draw(t, "bool"), Time: time.Unix(rapid.Int64Range(-1e10, 1e11).Draw(t, "s"), rapid.Int64Range(0, 1e9-1).Draw(t, "ns")).UTC(), Value: text.Draw(t, "value"),
		}
		if rapid.Bool().Draw(t, "listed") {
			v.List = rapid.SliceOfN(rapid.Int64(), 0, 3).Draw(t, "list")
		}
		key := text.Draw(t, "key")
		if rapid.Bool().Draw(t, "mapped") {
			v.Map = map[string]int64{key: rapid.Int64().Draw(t, "amount")}
		}
		want, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		w := jsontext.New(16)
		w.Begin()
		w.Member("member", v.Member)
		w.Some("some", v.Some)
		w.Number("number", v.Number)
		w.Count("count", v.Count)
		w.Flag("flag", v.Flag)
		w.Bytes("bytes", v.Bytes)
		w.Key("list")
		jsontext.Array(w, v.List, func(w *jsontext.Writer, n *int64) { w.Int(*n) })
		if v.Map != nil {
			w.Key("map")
			w.Begin()
			w.Entry(key)
			w.Int(v.Map[key])
			w.End()
		}
		w.Key("bool")
		w.Bool(v.Bool)
		w.Key("time")
		w.Time(v.Time)
		w.Raw(`,"value":`)
		w.Value(v.Value)
		w.End()
		if w.Err != nil || string(w.Out) != string(want) {
			t.Fatalf("%s, %v\nwant %s", w.Out, w.Err, want)
		}
	})
	for name, wrong := range map[string]func(*jsontext.Writer){
		"a function": func(w *jsontext.Writer) { w.Value(func() {}) },
		"year 10000": func(w *jsontext.Writer) { w.Time(time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)) },
	} {
		w := jsontext.New(0)
		wrong(w)
		if w.Value(1); w.Err == nil {
			t.Errorf("%s is no JSON", name)
		}
	}
}

package wire

import (
	"strings"
	"testing"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/anypb"

	_ "github.com/berthd/berth/api/berth/admission/v1"
	_ "github.com/berthd/berth/api/berth/allocation/v1"
	_ "github.com/berthd/berth/api/berth/device/v1"
	_ "github.com/berthd/berth/api/berth/hint/v1"
	inspectv1 "github.com/berthd/berth/api/berth/inspect/v1"
	_ "github.com/berthd/berth/api/berth/lifecycle/v1"
	_ "github.com/berthd/berth/api/berth/node/v1"
)

// fill sets every text of a message, also in messages in it.
func fill(m protoreflect.Message, text string, depth int) {
	fields := m.Descriptor().Fields()
	value := func(f protoreflect.FieldDescriptor, empty func() protoreflect.Value) protoreflect.Value {
		switch {
		case f.Kind() == protoreflect.StringKind:
			return protoreflect.ValueOfString(text)
		case f.Message() != nil:
			v := empty()
			if depth > 0 && f.Message().FullName() != (*anypb.Any)(nil).ProtoReflect().Descriptor().FullName() {
				fill(v.Message(), text, depth-1)
			}
			return v
		}
		return empty()
	}
	for i := range fields.Len() {
		switch f := fields.Get(i); {
		case f.IsMap():
			if f.MapKey().Kind() == protoreflect.StringKind {
				entries := m.Mutable(f).Map()
				for _, key := range []string{text, "key", text + "\xfe"} {
					entries.Set(protoreflect.ValueOfString(key).MapKey(), value(f.MapValue(), entries.NewValue))
				}
			}
		case f.IsList():
			list := m.Mutable(f).List()
			list.Append(value(f, list.NewElement))
			list.Append(value(f, list.NewElement))
		case f.Kind() == protoreflect.StringKind || f.Message() != nil && depth > 0:
			m.Set(f, value(f, func() protoreflect.Value { return m.NewField(f) }))
		}
	}
}

// TestEncodeInvalidTexts: every message of the API is encoded, whatever bytes its texts have. The message itself does not change.
func TestEncodeInvalidTexts(t *testing.T) {
	t.Parallel()
	tried := 0
	protoregistry.GlobalTypes.RangeMessages(func(mt protoreflect.MessageType) bool {
		if !strings.HasPrefix(string(mt.Descriptor().FullName()), "berth.") || mt.Descriptor().IsMapEntry() {
			return true
		}
		tried++
		m := mt.New()
		fill(m, "a\xffb", 3)
		before := proto.Clone(m.Interface())
		data, err := Encode(m.Interface())
		if err != nil {
			t.Errorf("%s: %v", mt.Descriptor().FullName(), err)
			return true
		}
		if !proto.Equal(before, m.Interface()) {
			t.Errorf("%s was changed", mt.Descriptor().FullName())
		}
		if err := proto.Unmarshal(data, mt.New().Interface()); err != nil {
			t.Errorf("%s cannot be decoded: %v", mt.Descriptor().FullName(), err)
		}
		return true
	})
	if tried < 100 {
		t.Errorf("%d messages were tried", tried)
	}
}

// FuzzEncode: texts arrive as they are if they are valid, and otherwise with a replacement of what is invalid.
func FuzzEncode(f *testing.F) {
	f.Add("text", "\xc3\x28", "")
	f.Fuzz(func(t *testing.T, reason, message, name string) {
		in := &inspectv1.HistoryEntry{Reason: reason, Message: message, Caller: &inspectv1.HistoryCaller{Name: name}}
		data, err := Encode(in)
		if err != nil {
			t.Fatal(err)
		}
		var out inspectv1.HistoryEntry
		if err := proto.Unmarshal(data, &out); err != nil {
			t.Fatal(err)
		}
		for have, want := range map[string]string{out.GetReason(): reason, out.GetMessage(): message, out.GetCaller().GetName(): name} {
			if utf8.ValidString(want) && have != want || !utf8.ValidString(have) || have != ValidText(want) {
				t.Errorf("%q became %q", want, have)
			}
		}
	})
}

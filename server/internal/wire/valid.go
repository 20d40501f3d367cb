package wire

import (
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// replacement stands for bytes that are no UTF-8.
const replacement = "\uFFFD"

// ValidText returns a text that a message can hold.
func ValidText(text string) string { return strings.ToValidUTF8(text, replacement) }

// Encode encodes a message into a buffer of its size. The texts of a message may come from a damaged file, a plugin or a file name, and
// are then no UTF-8, which protobuf refuses. Encode replaces what is invalid in them, in a copy of the message.
func Encode(m proto.Message) ([]byte, error) { return encodeValid(0, m) }

// EncodeField encodes a message as a field of another.
func EncodeField(number protowire.Number, m proto.Message) ([]byte, error) {
	return encodeValid(number, m)
}

func encodeValid(number protowire.Number, m proto.Message) ([]byte, error) {
	out, err := encode(number, m)
	if err == nil {
		return out, nil
	}
	valid := proto.Clone(m)
	MakeValid(valid)
	return encode(number, valid)
}

// MakeValid replaces what is no UTF-8 in the texts of a message.
func MakeValid(m proto.Message) { makeValid(m.ProtoReflect()) }

// encode encodes a message, as a field if the number is not 0.
func encode(number protowire.Number, m proto.Message) ([]byte, error) {
	size := proto.Size(m)
	var out []byte
	if number == 0 {
		out = make([]byte, 0, size)
	} else {
		out = make([]byte, 0, protowire.SizeTag(number)+protowire.SizeBytes(size))
		out = protowire.AppendVarint(protowire.AppendTag(out, number, protowire.BytesType), uint64(size))
	}
	return proto.MarshalOptions{UseCachedSize: true}.MarshalAppend(out, m)
}

// makeValid makes the texts of a message valid, also those in messages in it.
func makeValid(m protoreflect.Message) {
	m.Range(func(field protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case field.IsMap():
			makeMapValid(field, v.Map())
		case field.IsList():
			for i := range v.List().Len() {
				if one, changed := validValue(field, v.List().Get(i)); changed {
					v.List().Set(i, one)
				}
			}
		default:
			if one, changed := validValue(field, v); changed {
				m.Set(field, one)
			}
		}
		return true
	})
}

// makeMapValid makes the keys and the values of a map valid. Of two keys that become the same, one stays.
func makeMapValid(field protoreflect.FieldDescriptor, entries protoreflect.Map) {
	type keys struct{ from, to protoreflect.MapKey }
	var renamed []keys
	entries.Range(func(key protoreflect.MapKey, v protoreflect.Value) bool {
		if one, changed := validValue(field.MapValue(), v); changed {
			entries.Set(key, one)
		}
		if one, changed := validValue(field.MapKey(), key.Value()); changed {
			renamed = append(renamed, keys{key, one.MapKey()})
		}
		return true
	})
	for _, k := range renamed {
		v := entries.Get(k.from)
		entries.Clear(k.from)
		entries.Set(k.to, v)
	}
}

// validValue returns a valid text in place of an invalid one. A message is changed itself.
func validValue(field protoreflect.FieldDescriptor, v protoreflect.Value) (one protoreflect.Value, changed bool) {
	switch field.Kind() {
	case protoreflect.StringKind:
		text := ValidText(v.String())
		return protoreflect.ValueOfString(text), text != v.String()
	case protoreflect.MessageKind, protoreflect.GroupKind:
		makeValid(v.Message())
	}
	return v, false
}

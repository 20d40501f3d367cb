// Package wire counts the elements of messages before they are decoded, because a message of
// few bytes can decode to many elements. An element is a message, an item of a list, or an
// entry of a map.
package wire

import (
	"fmt"

	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // the codec that is wrapped
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Codec is gRPC's for proto messages.
func Codec() encoding.CodecV2 { return encoding.GetCodecV2("proto") }

// TooMany is in the error of Bounded's codec, which gRPC turns into a text.
const TooMany = "the message has more than"

// Bounded is a codec that does not decode messages with more elements than most.
func Bounded(most int) encoding.CodecV2 { return bounded{Codec(), most} }

type bounded struct {
	encoding.CodecV2
	most int
}

// Unmarshal implements encoding.CodecV2.
func (b bounded) Unmarshal(data mem.BufferSlice, v any) error {
	m, ok := v.(proto.Message)
	if !ok || data.Len() <= b.most { // an element takes a byte or more
		return b.CodecV2.Unmarshal(data, v)
	}
	buf := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer buf.Free()
	if Count(m.ProtoReflect().Descriptor(), buf.ReadOnlyData(), b.most) < 0 {
		return fmt.Errorf("%s %d elements (items of lists, entries of maps)", TooMany, b.most)
	}
	return proto.Unmarshal(buf.ReadOnlyData(), m)
}

// Count takes the elements of a message from how many there may be, and returns what is left; below 0 if there are too
// many. What cannot be read counts as nothing: decoding refuses it.
func Count(m protoreflect.MessageDescriptor, data []byte, left int) int {
	for len(data) > 0 && left >= 0 {
		num, typ, n := protowire.ConsumeTag(data)
		if n < 0 {
			return left
		}
		data = data[n:]
		size := protowire.ConsumeFieldValue(num, typ, data)
		if size < 0 {
			return left
		}
		value := data[:size]
		data = data[size:]
		field := m.Fields().ByNumber(num)
		switch {
		case field == nil:
			left--
		case typ != protowire.BytesType:
			if field.Cardinality() == protoreflect.Repeated || typ == protowire.StartGroupType {
				left--
			}
		case field.Message() != nil:
			inner, _ := protowire.ConsumeBytes(value)
			left = Count(field.Message(), inner, left-1)
		case field.Kind() != protoreflect.StringKind && field.Kind() != protoreflect.BytesKind:
			left -= packed(field.Kind(), value)
		case field.Cardinality() == protoreflect.Repeated:
			left--
		}
	}
	return left
}

// packed counts the numbers of a packed list, whose length comes first.
func packed(kind protoreflect.Kind, value []byte) (n int) {
	list, _ := protowire.ConsumeBytes(value)
	switch kind {
	case protoreflect.Fixed32Kind, protoreflect.Sfixed32Kind, protoreflect.FloatKind:
		return len(list) / 4
	case protoreflect.Fixed64Kind, protoreflect.Sfixed64Kind, protoreflect.DoubleKind:
		return len(list) / 8
	}
	for _, b := range list { // a varint ends with a byte below 0x80
		if b < 0x80 {
			n++
		}
	}
	return n
}

package rpc

import (
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // the codec that is wrapped
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// DefaultMaxElements is how many elements a request of a user other than root may have unless configured.
const DefaultMaxElements = 20_000

// letter is a message that is to be decoded if it has no more elements than it may have: messages in it, items of lists
// and entries of maps. An element of two bytes costs a hundred of them decoded.
type letter struct {
	message any
	most    int
	// exact has the elements counted. Root's are not.
	exact bool

	bytes, elements int
	tooMany         bool // then message is as it was
}

// size is about what the decoded message takes.
func (l *letter) size() int { return 4*l.bytes + 300*l.elements }

// counting is the codec of proto messages that takes letters.
type counting struct{ encoding.CodecV2 }

// Unmarshal implements encoding.CodecV2.
func (c counting) Unmarshal(data mem.BufferSlice, v any) error {
	l, ok := v.(*letter)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	l.bytes = data.Len()
	m, ok := l.message.(proto.Message)
	if !ok || !l.exact {
		return c.CodecV2.Unmarshal(data, l.message)
	}
	buf := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer buf.Free()
	left := count(m.ProtoReflect().Descriptor(), buf.ReadOnlyData(), l.most)
	if l.elements = l.most - left; left < 0 {
		l.tooMany = true
		return nil
	}
	return proto.Unmarshal(buf.ReadOnlyData(), m)
}

// count takes the elements of a message from how many there may be, and returns what is left; below 0 if there are too
// many. What cannot be read counts as nothing: decoding refuses it.
func count(m protoreflect.MessageDescriptor, data []byte, left int) int {
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
			left = count(field.Message(), inner, left-1)
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

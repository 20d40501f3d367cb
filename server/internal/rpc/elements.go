package rpc

import (
	"fmt"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/berthd/berth/server/internal/wire"
)

// DefaultMaxElements limits the elements of a request of a user other than root unless configured.
const DefaultMaxElements = 20_000

// letter is a message to decode, with its maximum number of elements: nested messages, items of
// lists and entries of maps. An element of two bytes takes a hundred bytes decoded.
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

// Marshal implements encoding.CodecV2. An answer's buffer is kept until the client has read it,
// so the buffer has the size of the answer. gRPC's own buffers above 32 KiB have at least 1 MiB.
func (c counting) Marshal(v any) (mem.BufferSlice, error) {
	switch v := v.(type) {
	case encoded:
		return v.data, nil
	case *Shared:
		return v.data, nil
	case proto.Message:
		return marshal(v)
	}
	return c.CodecV2.Marshal(v)
}

// Shared is a message that is encoded once for many streams.
type Shared struct {
	kind protoreflect.MessageType
	data mem.BufferSlice
}

// Share encodes a message.
func Share(m proto.Message) (*Shared, error) {
	data, err := marshal(m)
	return &Shared{m.ProtoReflect().Type(), data}, err
}

// Len returns the bytes of the message.
func (s *Shared) Len() int { return s.data.Len() }

// ProtoReflect implements proto.Message, for streams without a codec.
func (s *Shared) ProtoReflect() protoreflect.Message {
	m := s.kind.New()
	_ = proto.Unmarshal(s.data.Materialize(), m.Interface()) // marshal made it
	return m
}

// marshal encodes a message into a buffer of its size.
func marshal(m proto.Message) (mem.BufferSlice, error) {
	buf, err := wire.Encode(m)
	if err != nil {
		return nil, fmt.Errorf("encode an answer of %d bytes: %w", proto.Size(m), err)
	}
	return mem.BufferSlice{mem.SliceBuffer(buf)}, nil
}

// maxPooled is the size of the largest buffer with its own size class in gRPC's pool. Larger
// buffers share one class, which keeps one or two for each processor, whatever their size.
const maxPooled = 1 << 20

func pool(size int) mem.BufferPool {
	if size > maxPooled {
		return mem.NopBufferPool{}
	}
	return mem.DefaultBufferPool()
}

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
	buf := data.MaterializeToBuffer(pool(data.Len()))
	defer buf.Free()
	left := wire.Count(m.ProtoReflect().Descriptor(), buf.ReadOnlyData(), l.most)
	if l.elements = l.most - left; left < 0 {
		l.tooMany = true
		return nil
	}
	return proto.Unmarshal(buf.ReadOnlyData(), m)
}

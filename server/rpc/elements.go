package rpc

import (
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/berthd/berth/server/wire"
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
	left := wire.Count(m.ProtoReflect().Descriptor(), buf.ReadOnlyData(), l.most)
	if l.elements = l.most - left; left < 0 {
		l.tooMany = true
		return nil
	}
	return proto.Unmarshal(buf.ReadOnlyData(), m)
}

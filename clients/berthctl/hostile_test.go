package main

import (
	"context"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// hostile is what a plugin, a provider or who admits pods may put into a text: it sets the
// title of a terminal, begins a line of its own, changes colours by a C1 sign, and turns the
// direction of writing.
const hostile = "\x1b]0;x\x07\nFORGED\u009b31m\u202e"

// twist adds it to all texts of a message, but those that are kept as they are.
func twist(m protoreflect.Message, kept []string, added string) {
	text := func(v protoreflect.Value) protoreflect.Value {
		if slices.Contains(kept, v.String()) {
			return v
		}
		return protoreflect.ValueOfString(v.String() + added)
	}
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.IsMap():
			v.Map().Range(func(k protoreflect.MapKey, e protoreflect.Value) bool {
				switch f.MapValue().Kind() {
				case protoreflect.StringKind:
					v.Map().Set(k, text(e))
				case protoreflect.MessageKind:
					twist(e.Message(), kept, added)
				}
				return true
			})
		case f.IsList():
			for i := range v.List().Len() {
				switch f.Kind() {
				case protoreflect.StringKind:
					v.List().Set(i, text(v.List().Get(i)))
				case protoreflect.MessageKind:
					twist(v.List().Get(i).Message(), kept, added)
				}
			}
		case f.Kind() == protoreflect.StringKind:
			m.Set(f, text(v))
		case f.Kind() == protoreflect.MessageKind:
			twist(v.Message(), kept, added)
		}
		return true
	})
}

// twisted registers services whose answers are twisted.
type twisted struct {
	grpc.ServiceRegistrar
	kept []string
	// added is the hostile text.
	added string
}

func (w twisted) answer(m any) any {
	if m, ok := m.(proto.Message); ok && m.ProtoReflect().IsValid() {
		m = proto.Clone(m)
		twist(m.ProtoReflect(), w.kept, w.added)
		return m
	}
	return m
}

// RegisterService implements grpc.ServiceRegistrar.
func (w twisted) RegisterService(desc *grpc.ServiceDesc, impl any) {
	own := *desc
	own.Methods, own.Streams = slices.Clone(desc.Methods), slices.Clone(desc.Streams)
	for i := range own.Methods {
		handler := own.Methods[i].Handler
		own.Methods[i].Handler = func(srv any, ctx context.Context, decode func(any) error,
			interceptor grpc.UnaryServerInterceptor) (any, error) {
			resp, err := handler(srv, ctx, decode, interceptor)
			if err != nil {
				return nil, err
			}
			return w.answer(resp), nil
		}
	}
	for i := range own.Streams {
		handler := own.Streams[i].Handler
		own.Streams[i].Handler = func(srv any, s grpc.ServerStream) error { return handler(srv, twistedStream{s, w}) }
	}
	w.ServiceRegistrar.RegisterService(&own, impl)
}

type twistedStream struct {
	grpc.ServerStream
	twisted twisted
}

// SendMsg implements grpc.ServerStream.
func (s twistedStream) SendMsg(m any) error { return s.ServerStream.SendMsg(s.twisted.answer(m)) }

var color = regexp.MustCompile("\x1b\\[[0-9;]*m")

// TestHostileAnswers runs all that the golden files do with answers in which every text is
// hostile: nothing that a terminal acts on is printed, and no line is forged.
func TestHostileAnswers(t *testing.T) {
	t.Parallel()
	printed := 0
	for name, kept := range map[string][]string{
		"every text": nil,
		// Or pods are not found by their names.
		"but names": {"web", "default", "app", "shop", "db", "main", webUID, otherUID, twinUID, "example.com/gpu", "cpu", "memory"},
	} {
		for golden, steps := range goldens {
			for _, s := range steps {
				t.Run(name+"/"+golden+"/"+s.args, func(t *testing.T) {
					f := &fake{}
					if s.fake != nil {
						f = &fake{empty: s.fake.empty, sick: s.fake.sick}
					}
					f.twist = func(r grpc.ServiceRegistrar) grpc.ServiceRegistrar { return twisted{r, kept, hostile} }
					got := invoke(t.Context(), f.start(t), s.stdin, strings.Fields(s.args)...)
					all := got.out + "\n" + got.err
					if strings.Contains(s.args, "--color always") { // the colors are berthctl's own
						all = color.ReplaceAllString(all, "")
					}
					if strings.Contains(all, "FORGED") {
						printed++
					}
					for line := range strings.Lines(all) {
						if strings.HasPrefix(strings.TrimSpace(line), "FORGED") {
							t.Errorf("a line of somebody else's: %q", line)
						}
						if i := strings.IndexFunc(strings.TrimSuffix(line, "\n"),
							func(r rune) bool { return !unicode.IsPrint(r) }); i >= 0 {
							t.Errorf("a terminal acts on %q", line)
							return
						}
					}
				})
			}
		}
	}
	if printed < 20 {
		t.Errorf("%d runs have printed a hostile text", printed)
	}
}

package convert

import (
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// enum is a generated enum type.
type enum interface {
	~int32
	protoreflect.Enum
}

// Word returns the plain word for an enum value: "pod-exclusive" for
// CPU_SHARING_POD_EXCLUSIVE. It is empty for the unspecified value, and for a number that
// this build does not know.
func Word(e protoreflect.Enum) string { return WordOf(e.Descriptor(), e.Number()) }

// WordOf is Word for a value that is known by its descriptor and number.
func WordOf(d protoreflect.EnumDescriptor, n protoreflect.EnumNumber) string {
	v := d.Values().ByNumber(n)
	if v == nil || n == 0 {
		return ""
	}
	return word(v, prefix(d))
}

// EnumOf returns the value that a plain word stands for, and the unspecified one for any
// other word.
func EnumOf[E enum](plain string) E { return Words[E]()[plain] }

// Choices returns the plain words of an enum, in its order.
func Choices[E enum]() []string {
	var zero E
	values := zero.Descriptor().Values()
	out := make([]string, 0, values.Len()-1)
	for i := 1; i < values.Len(); i++ {
		out = append(out, word(values.Get(i), prefix(zero.Descriptor())))
	}
	return out
}

// Words returns the values of an enum by their plain words.
func Words[E enum]() map[string]E {
	var zero E
	values := zero.Descriptor().Values()
	out := make(map[string]E, values.Len())
	for i := 1; i < values.Len(); i++ {
		out[word(values.Get(i), prefix(zero.Descriptor()))] = E(values.Get(i).Number())
	}
	return out
}

// prefix returns what all values of an enum begin with: the zero value is PREFIX_UNSPECIFIED.
func prefix(d protoreflect.EnumDescriptor) string {
	return strings.TrimSuffix(string(d.Values().ByNumber(0).Name()), "UNSPECIFIED")
}

func word(v protoreflect.EnumValueDescriptor, prefix string) string {
	return strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(string(v.Name()), prefix)), "_", "-")
}

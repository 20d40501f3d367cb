// Package output defines the JSON that berthctl prints for messages of the API. docs/cli-output.md has the rules for people.
//
// Words:
//
//   - rule: how a kind of field becomes JSON. Every kind has exactly one rule.
//   - list: an answer of a verb that lists objects. The objects are called items.
//
// Invariants: names and order of fields are those of the schema; the output is the same for the same message.
package output

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/convert"
)

// lists are the answers with items, and the fields that have the items.
var lists = map[protoreflect.FullName]protoreflect.Name{
	"berth.admission.v1.Replay":             "differences",
	"berth.admission.v1.Simulation":         "pods",
	"berth.allocation.v1.ListResponse":      "pods",
	"berth.cgroup.v1.ListResponse":          "cgroups",
	"berth.cpu.v1.GetStateResponse":         "assignments",
	"berth.device.v1.GetStateResponse":      "resources",
	"berth.device.v1.ListResourcesResponse": "resources",
	"berth.fit.v1.FitResponse":              "pods",
	"berth.hint.v1.ListProvidersResponse":   "providers",
	"berth.inspect.v1.DumpResponse":         "entries",
	"berth.inspect.v1.ListTracesResponse":   "traces",
	"berth.memory.v1.GetStateResponse":      "nodes",
	"berth.node.v1.GetMachineResponse":      "nodes",
	"berth.inspect.v1.ListHistoryResponse":  "entries",
	"v1.ListPodResourcesResponse":           "pod_resources",
}

// Kind returns the kind of a message: a list's is that of its items with the word List behind it, another message's is its name.
func Kind(m proto.Message) string {
	d := m.ProtoReflect().Descriptor()
	if items := lists[d.FullName()]; items != "" {
		return string(d.Fields().ByName(items).Message().Name()) + "List"
	}
	return string(d.Name())
}

// JSON returns the documented JSON of a message, on one line.
func JSON(m proto.Message) ([]byte, error) {
	var b bytes.Buffer
	if err := message(&b, m.ProtoReflect()); err != nil {
		return nil, fmt.Errorf("print the answer: %w", err)
	}
	return b.Bytes(), nil
}

// Field returns the documented JSON of one field of a message, which must be set.
func Field(m protoreflect.Message, f protoreflect.FieldDescriptor) ([]byte, error) {
	var b bytes.Buffer
	err := field(&b, f, m.Get(f))
	return b.Bytes(), err
}

// message writes a message by the rule of its type.
func message(b *bytes.Buffer, m protoreflect.Message) error {
	switch v := m.Interface().(type) {
	case *typesv1.CPUSet:
		return text(b, v.GetList())
	case *typesv1.NUMANodeSet:
		return text(b, ranges(v.GetIds()))
	case *timestamppb.Timestamp:
		return text(b, v.AsTime().Format(time.RFC3339Nano))
	case *durationpb.Duration:
		return text(b, v.AsDuration().String())
	}
	if m.Descriptor().ParentFile().Package() == "google.protobuf" {
		return fmt.Errorf("no rule for %s", m.Descriptor().FullName())
	}
	items := lists[m.Descriptor().FullName()]
	b.WriteByte('{')
	first := true
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		name := f.JSONName()
		if f.Name() == items {
			name = "items"
		} else if !shown(m, f) {
			continue
		}
		if !first {
			b.WriteByte(',')
		}
		first = false
		if err := text(b, name); err != nil {
			return err
		}
		b.WriteByte(':')
		if err := field(b, f, m.Get(f)); err != nil {
			return err
		}
	}
	b.WriteByte('}')
	return nil
}

// shown reports whether a field is printed. Numbers and truth values are, also 0 and false, unless they are optional and absent.
func shown(m protoreflect.Message, f protoreflect.FieldDescriptor) bool {
	if m.Has(f) || f.HasPresence() || f.IsList() || f.IsMap() {
		return m.Has(f)
	}
	switch f.Kind() {
	case protoreflect.StringKind, protoreflect.BytesKind, protoreflect.EnumKind:
		return false
	}
	return true
}

// field writes the value of a field.
func field(b *bytes.Buffer, f protoreflect.FieldDescriptor, v protoreflect.Value) error {
	switch {
	case f.IsList():
		b.WriteByte('[')
		for i := range v.List().Len() {
			if i > 0 {
				b.WriteByte(',')
			}
			if err := single(b, f, v.List().Get(i)); err != nil {
				return err
			}
		}
		b.WriteByte(']')
		return nil
	case f.IsMap():
		return object(b, f, v.Map())
	}
	return single(b, f, v)
}

// object writes a map, ordered by key: numbers as numbers.
func object(b *bytes.Buffer, f protoreflect.FieldDescriptor, m protoreflect.Map) error {
	var keys []protoreflect.MapKey
	m.Range(func(k protoreflect.MapKey, _ protoreflect.Value) bool { keys = append(keys, k); return true })
	slices.SortFunc(keys, func(x, y protoreflect.MapKey) int {
		if f.MapKey().Kind() != protoreflect.StringKind && len(x.String()) != len(y.String()) {
			return len(x.String()) - len(y.String())
		}
		return strings.Compare(x.String(), y.String())
	})
	b.WriteByte('{')
	for i, k := range keys {
		if i > 0 {
			b.WriteByte(',')
		}
		if err := text(b, k.String()); err != nil {
			return err
		}
		b.WriteByte(':')
		if err := single(b, f.MapValue(), m.Get(k)); err != nil {
			return err
		}
	}
	b.WriteByte('}')
	return nil
}

// single writes a value that is neither list nor map.
func single(b *bytes.Buffer, f protoreflect.FieldDescriptor, v protoreflect.Value) error {
	switch f.Kind() {
	case protoreflect.MessageKind:
		return message(b, v.Message())
	case protoreflect.StringKind:
		return text(b, v.String())
	case protoreflect.EnumKind:
		return text(b, word(f.Enum(), v.Enum()))
	case protoreflect.BytesKind, protoreflect.BoolKind, protoreflect.FloatKind, protoreflect.DoubleKind:
		raw, err := json.Marshal(v.Interface())
		b.Write(raw)
		return err
	case protoreflect.GroupKind:
		return fmt.Errorf("no rule for %s", f.FullName())
	}
	b.WriteString(v.String()) // an integer
	return nil
}

// text writes a string as JSON.
func text(b *bytes.Buffer, s string) error {
	e := json.NewEncoder(b)
	e.SetEscapeHTML(false)
	if err := e.Encode(s); err != nil {
		return err
	}
	b.Truncate(b.Len() - 1) // the encoder ends with a new line
	return nil
}

// word returns the plain word of an enum value; a number that this build does not know stays a number. The unspecified value,
// which only a list can have here, is empty.
func word(d protoreflect.EnumDescriptor, n protoreflect.EnumNumber) string {
	if d.Values().ByNumber(n) == nil {
		return strconv.Itoa(int(n))
	}
	return convert.WordOf(d, n)
}

// ranges returns ascending numbers as the kernel does: "0-3,8".
func ranges(ids []uint32) string {
	var parts []string
	for i := 0; i < len(ids); {
		last := i
		for last+1 < len(ids) && ids[last+1] == ids[last]+1 {
			last++
		}
		part := strconv.FormatUint(uint64(ids[i]), 10)
		if last > i {
			part += "-" + strconv.FormatUint(uint64(ids[last]), 10)
		}
		parts = append(parts, part)
		i = last + 1
	}
	return strings.Join(parts, ",")
}

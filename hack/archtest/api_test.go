package archtest_test

import (
	"slices"
	"strings"
	"testing"
	"unicode"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	_ "github.com/berthd/berth/api/berth/admission/v1"
	_ "github.com/berthd/berth/api/berth/allocation/v1"
	_ "github.com/berthd/berth/api/berth/cgroup/v1"
	_ "github.com/berthd/berth/api/berth/cpu/v1"
	_ "github.com/berthd/berth/api/berth/device/v1"
	_ "github.com/berthd/berth/api/berth/errors/v1"
	_ "github.com/berthd/berth/api/berth/hint/v1"
	_ "github.com/berthd/berth/api/berth/inspect/v1"
	_ "github.com/berthd/berth/api/berth/lifecycle/v1"
	_ "github.com/berthd/berth/api/berth/memory/v1"
	_ "github.com/berthd/berth/api/berth/node/v1"
	_ "github.com/berthd/berth/api/berth/qos/v1"
	_ "github.com/berthd/berth/api/berth/topology/v1"
	_ "github.com/berthd/berth/api/berth/types/v1"
)

// keywords are the reserved words of languages in which clients are generated, and what
// compilers predefine there. Words that are reserved in one spelling only are as they are.
var keywords = map[string]string{
	"Python": `False None True and as assert async await break class continue def del elif else except finally for from
		global if import in is lambda nonlocal not or pass raise return try while with yield match case type print exec`,
	"C++": `alignas alignof and and_eq asm atomic_cancel atomic_commit atomic_noexcept auto bitand bitor bool break case
		catch char char8_t char16_t char32_t class compl concept const consteval constexpr constinit const_cast continue
		co_await co_return co_yield decltype default delete do double dynamic_cast else enum explicit export extern false
		float for friend goto if inline int long mutable namespace new noexcept not not_eq nullptr operator or or_eq
		private protected public reflexpr register reinterpret_cast requires return short signed sizeof static
		static_assert static_cast struct switch synchronized template this thread_local throw true try typedef typeid
		typename union unsigned using virtual void volatile wchar_t while xor xor_eq linux unix NULL errno major minor`,
	"Rust": `as async await break const continue crate dyn else enum extern false fn for if impl in let loop match mod move
		mut pub ref return self Self static struct super trait true type unsafe use where while abstract become box do
		final macro override priv typeof unsized virtual yield try gen union`,
}

// each visits every name of berth's API: fields, oneofs, messages, enums, their values,
// services and methods.
func each(visit func(d protoreflect.Descriptor)) {
	var messages func(list protoreflect.MessageDescriptors)
	enums := func(list protoreflect.EnumDescriptors) {
		for i := range list.Len() {
			visit(list.Get(i))
			for j := range list.Get(i).Values().Len() {
				visit(list.Get(i).Values().Get(j))
			}
		}
	}
	messages = func(list protoreflect.MessageDescriptors) {
		for i := range list.Len() {
			m := list.Get(i)
			if m.IsMapEntry() {
				continue
			}
			visit(m)
			for j := range m.Fields().Len() {
				visit(m.Fields().Get(j))
			}
			for j := range m.Oneofs().Len() {
				visit(m.Oneofs().Get(j))
			}
			enums(m.Enums())
			messages(m.Messages())
		}
	}
	protoregistry.GlobalFiles.RangeFiles(func(f protoreflect.FileDescriptor) bool {
		if !strings.HasPrefix(string(f.Package()), "berth.") {
			return true
		}
		messages(f.Messages())
		enums(f.Enums())
		for i := range f.Services().Len() {
			visit(f.Services().Get(i))
			for j := range f.Services().Get(i).Methods().Len() {
				visit(f.Services().Get(i).Methods().Get(j))
			}
		}
		return true
	})
}

// snake is how Rust spells a method.
func snake(name string) string {
	var out strings.Builder
	for i, r := range name {
		if unicode.IsUpper(r) && i > 0 {
			out.WriteByte('_')
		}
		out.WriteRune(unicode.ToLower(r))
	}
	return out.String()
}

// kubernetes is Kubernetes' name of a field of pods, which C++ spells namespace_.
const kubernetes = "namespace"

// TestNoKeywords: no name of the API is a reserved word of a language in which clients are
// generated.
func TestNoKeywords(t *testing.T) {
	t.Parallel()
	seen := 0
	each(func(d protoreflect.Descriptor) {
		seen++
		for language, words := range keywords {
			name := string(d.Name())
			if _, ok := d.(protoreflect.MethodDescriptor); ok && language == "Rust" {
				name = snake(name)
			}
			if slices.Contains(strings.Fields(words), name) && name != kubernetes {
				t.Errorf("%s: %q is a reserved word of %s", d.FullName(), name, language)
			}
		}
	})
	if seen < 1000 {
		t.Errorf("%d names: expected those of the whole API", seen)
	}
}

// spellings are the names that fields of a type have, and the types that fields of a name
// have. A field that is something else has another name.
var spellings = []struct {
	name string // of the field; a suffix if it begins with "_"
	want string // its type
}{
	{"container_name", "string"},
	{"pod_uid", "string"},
	{"numa_node", "uint32"},
	{"numa_nodes", "berth.types.v1.NUMANodeSet"},
	{"cpus", "berth.types.v1.CPUSet"},
	{"_cpus", "berth.types.v1.CPUSet"},
	{"_time", "google.protobuf.Timestamp"},
	{"page_size_bytes", "uint64"},
	{"revision", "uint64"},
	{"qos_class", "berth.types.v1.QOSClass"},
	{"edits", "berth.types.v1.ContainerEdits"},
	{"owner", "string"},
	{"pid", "int32"},
	{"pids", "int32"},
	{"holder", "berth.types.v1.ContainerRef"},
	{"holders", "berth.types.v1.ContainerRef"},
	{"drifts", "berth.cgroup.v1.Drift"},
}

// otherwise are fields whose name and type do not go together, each with its reason.
var otherwise = map[string]string{
	"berth.types.v1.PodStatus.qos_class":                "Kubernetes' spelling",
	"berth.node.v1.GetMachineResponse.cpus":             "CPUs with their places",
	"berth.types.v1.ContainerAllocation.exclusive_cpus": "whether, not which",
}

// TestOneSpelling: what is the same has the same name and the same type in every message,
// and words of Kubernetes' resource maps have quantities.
func TestOneSpelling(t *testing.T) {
	t.Parallel()
	old := []string{"container", "generation", "unix", "node", "mask", "numa_mask"}
	units := []string{"_us", "_ns", "_ms", "_usec", "_mib", "_kb"}
	each(func(d protoreflect.Descriptor) {
		f, ok := d.(protoreflect.FieldDescriptor)
		if !ok {
			return
		}
		if slices.Contains(old, string(f.Name())) || strings.HasSuffix(string(f.Name()), "_unix") {
			t.Errorf("%s: the name is spelled otherwise elsewhere", f.FullName())
		}
		if slices.ContainsFunc(units, func(u string) bool { return strings.HasSuffix(string(f.Name()), u) }) {
			t.Errorf("%s: units are whole words, as in cpu_quota_microseconds", f.FullName())
		}
		for _, s := range spellings {
			if string(f.Name()) != s.name && !(s.name[0] == '_' && strings.HasSuffix(string(f.Name()), s.name)) {
				continue
			}
			if got := typeOf(f); got != s.want && otherwise[string(f.FullName())] == "" {
				t.Errorf("%s is a %s, and fields called %s are a %s", f.FullName(), got, s.name, s.want)
			}
		}
		for _, set := range []string{"berth.types.v1.CPUSet", "berth.types.v1.NUMANodeSet"} {
			if typeOf(f) != set {
				continue
			}
			// A set in a message of its own would nest twice in JSON.
			if m := f.ContainingMessage(); m.Fields().Len() == 1 && !strings.HasSuffix(string(m.Name()), "Response") {
				t.Errorf("%s has nothing but a set", m.FullName())
			}
			if f.Name() == f.Message().Fields().Get(0).Name() {
				t.Errorf("%s is called as the field in the set", f.FullName())
			}
		}
	})
}

func typeOf(f protoreflect.FieldDescriptor) string {
	switch {
	case f.Message() != nil:
		return string(f.Message().FullName())
	case f.Enum() != nil:
		return string(f.Enum().FullName())
	}
	return f.Kind().String()
}

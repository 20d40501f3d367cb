// Command apidoc writes the reference of the API (docs/api-reference.md) from the comments in
// proto/. It reads a FileDescriptorSet with source information from the standard input, as
// "buf build -o -" writes it; hack/gen.sh calls it.
package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/berthd/berth/api/access"
	errorsv1 "github.com/berthd/berth/api/berth/errors/v1"
	"github.com/berthd/berth/hack/apireasons"
)

func main() {
	if err := run(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "apidoc:", err)
		os.Exit(1)
	}
}

func run(in io.Reader, out io.Writer) error {
	text, err := io.ReadAll(in)
	if err != nil {
		return err
	}
	set := new(descriptorpb.FileDescriptorSet)
	if err := proto.Unmarshal(text, set); err != nil {
		return fmt.Errorf("read the descriptors: %w", err)
	}
	files, err := protodesc.NewFiles(set)
	if err != nil {
		return fmt.Errorf("read the descriptors: %w", err)
	}
	var own []protoreflect.FileDescriptor
	files.RangeFiles(func(f protoreflect.FileDescriptor) bool {
		if strings.HasPrefix(string(f.Package()), "berth.") {
			own = append(own, f)
		}
		return true
	})
	slices.SortFunc(own, func(a, b protoreflect.FileDescriptor) int { return strings.Compare(a.Path(), b.Path()) })
	_, err = io.WriteString(out, reference(own))
	return err
}

// reference returns the whole page.
func reference(files []protoreflect.FileDescriptor) string {
	w := new(page)
	w.line("# Which methods, messages and fields does the API have?")
	w.line("")
	w.line("This page is generated from [`proto/`](../proto/berth) by `make generate`. [api.md](api.md) has the rules for all calls.")
	w.line("")
	w.line("Every method may fail with these reasons of [ErrorReason](#%s): %s. Methods have their other reasons in their descriptions.",
		anchor("berth.errors.v1.ErrorReason"), names(apireasons.Common))
	w.line("")
	w.line("| package | services |")
	w.line("| --- | --- |")
	services := map[protoreflect.FullName][]string{}
	var packages []protoreflect.FullName // in the order of their files
	for _, f := range files {
		if !slices.Contains(packages, f.Package()) {
			packages = append(packages, f.Package())
		}
		for i := range f.Services().Len() {
			name := string(f.Services().Get(i).Name())
			services[f.Package()] = append(services[f.Package()], fmt.Sprintf("[%s](#%s)", name, strings.ToLower(name)))
		}
	}
	for _, p := range packages {
		w.line("| [%s](#%s) | %s |", p, anchor(string(p)), strings.Join(services[p], ", "))
	}
	var last protoreflect.FullName
	for _, f := range files {
		if f.Package() != last {
			w.line("")
			w.line("## %s", f.Package())
		}
		last = f.Package()
		for i := range f.Services().Len() {
			w.service(f.Services().Get(i))
		}
		w.messages(f.Messages())
		for i := range f.Enums().Len() {
			w.enum(f.Enums().Get(i))
		}
	}
	return w.String()
}

// anchor is the name that a heading has as the target of a link.
func anchor(heading string) string { return strings.ReplaceAll(strings.ToLower(heading), ".", "") }

type page struct{ strings.Builder }

func (w *page) line(format string, args ...any) { fmt.Fprintf(w, format+"\n", args...) }

func (w *page) service(s protoreflect.ServiceDescriptor) {
	w.line("")
	w.line("### %s", s.Name())
	w.text(s)
	for i := range s.Methods().Len() {
		m := s.Methods().Get(i)
		full := fmt.Sprintf("/%s/%s", s.FullName(), m.Name())
		stream := ""
		if m.IsStreamingServer() {
			stream = "stream of "
		}
		w.line("")
		w.line("#### %s.%s", s.Name(), m.Name())
		w.line("")
		role := "served by the provider"
		if r, ok := access.RoleOf(full); ok {
			role = "role `" + string(r) + "`"
		}
		w.line("`%s(`%s`)` → %s%s, %s.", m.Name(), link(m.Input()), stream, link(m.Output()), role)
		w.text(m)
		if reasons, ok := apireasons.Methods[full[1:]]; ok {
			w.line("")
			w.line("Reasons of errors: %s.", names(reasons, "those of every method"))
		}
	}
}

// names lists reasons, and what else there is.
func names(reasons []errorsv1.ErrorReason, more ...string) string {
	var out []string
	for _, r := range reasons {
		out = append(out, "`"+r.String()+"`")
	}
	return strings.Join(append(out, more...), ", ")
}

// text writes the comment of a declaration as paragraphs.
func (w *page) text(d protoreflect.Descriptor) {
	if c := comment(d); c != "" {
		w.line("")
		w.line("%s", c)
	}
}

func (w *page) messages(all protoreflect.MessageDescriptors) {
	for i := range all.Len() {
		m := all.Get(i)
		if m.IsMapEntry() {
			continue
		}
		w.line("")
		w.line("### %s", heading(m))
		w.text(m)
		if m.Fields().Len() > 0 {
			w.line("")
			w.line("| field | type | |")
			w.line("| --- | --- | --- |")
		}
		for j := range m.Fields().Len() {
			f := m.Fields().Get(j)
			c := comment(f)
			if o := f.ContainingOneof(); o != nil && !o.IsSynthetic() {
				c = strings.TrimSpace(fmt.Sprintf("One of `%s`. %s", o.Name(), c))
			}
			w.line("| `%s` | %s | %s |", f.Name(), kind(f), strings.ReplaceAll(strings.ReplaceAll(c, "\n\n", "<br>"), "|", "\\|"))
		}
		w.messages(m.Messages())
		for j := range m.Enums().Len() {
			w.enum(m.Enums().Get(j))
		}
	}
}

func (w *page) enum(e protoreflect.EnumDescriptor) {
	w.line("")
	w.line("### %s", heading(e))
	w.text(e)
	w.line("")
	w.line("| value | number | |")
	w.line("| --- | --- | --- |")
	for i := range e.Values().Len() {
		v := e.Values().Get(i)
		w.line("| `%s` | %d | %s |", v.Name(), v.Number(), strings.ReplaceAll(comment(v), "\n\n", "<br>"))
	}
}

// heading is the full name of a type: types of several packages have the same short name.
func heading(d protoreflect.Descriptor) string { return string(d.FullName()) }

// kind is the type of a field, with a link to its own types.
func kind(f protoreflect.FieldDescriptor) string {
	switch {
	case f.IsMap():
		return fmt.Sprintf("map of %s to %s", kind(f.MapKey()), kind(f.MapValue()))
	case f.IsList():
		return "list of " + single(f)
	case f.HasOptionalKeyword():
		return "optional " + single(f)
	}
	return single(f)
}

func single(f protoreflect.FieldDescriptor) string {
	switch {
	case f.Message() != nil:
		return link(f.Message())
	case f.Enum() != nil:
		return link(f.Enum())
	}
	return f.Kind().String()
}

func link(d protoreflect.Descriptor) string {
	if !strings.HasPrefix(string(d.FullName()), "berth.") {
		return "`" + string(d.FullName()) + "`"
	}
	return fmt.Sprintf("[%s](#%s)", d.Name(), anchor(string(d.FullName())))
}

// comment is the comment before a declaration: its paragraphs, each in one line.
func comment(d protoreflect.Descriptor) string {
	var paragraphs []string
	var words []string
	end := func() {
		if len(words) > 0 {
			paragraphs = append(paragraphs, strings.Join(words, " "))
		}
		words = nil
	}
	text := d.ParentFile().SourceLocations().ByDescriptor(d).LeadingComments
	for line := range strings.SplitSeq(text, "\n") {
		line = strings.TrimSpace(line)
		switch {
		case line == "":
			end()
		case strings.HasPrefix(line, "buf:lint:"):
		default:
			words = append(words, strings.NewReplacer("<", "&lt;", "*", "\\*").Replace(line))
		}
	}
	end()
	return strings.Join(paragraphs, "\n\n")
}

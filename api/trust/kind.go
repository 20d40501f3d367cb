package trust

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/berthd/berth/managers/errdefs"
)

// Kind tells what a flag, or a field of a configuration, names.
type Kind string

const (
	// Directory is a directory whose contents decide, or that the program writes to.
	Directory Kind = "directory"
	// Files is a directory that the program reads files of fixed names from, each with ReadFile. As above a file, all may be able to write
	// to it if it has the sticky bit: a file that another user makes there is refused.
	Files Kind = "files"
	// File is a file whose contents decide.
	File Kind = "file"
	// FileOrText is a file whose contents decide, if there is one of that name, else a text.
	FileOrText Kind = "fileOrText"
	// Socket is the socket of another program, or of the program itself: a path, or unix:// and a path.
	Socket Kind = "socket"
	// Address is host and port, or a socket with unix://.
	Address Kind = "address"
	// Input is what a person names for this one call of a program, as standard input is: what it says
	// is what the person wants. It is read within bounds (api/input).
	Input Kind = "input"
	// Output is a file that a person lets a program write.
	Output Kind = "output"
	// Text names neither a file nor a directory.
	Text Kind = "text"
)

// Kinds lists all of them.
func Kinds() []Kind {
	return []Kind{Directory, Files, File, FileOrText, Socket, Address, Input, Output, Text}
}

// Decides reports whether what is named has to be trusted.
func (k Kind) Decides() bool {
	return slices.Contains([]Kind{Directory, Files, File, FileOrText, Socket, Address}, k)
}

// annotation is where pflag keeps a flag's kind, and tag is the key of a field's kind.
const (
	annotation = "berth-names"
	tag        = "names"
)

// Mark says what flags name. It panics for a flag that there is not.
func Mark(flags *pflag.FlagSet, kind Kind, names ...string) {
	for _, name := range names {
		if err := flags.SetAnnotation(name, annotation, []string{string(kind)}); err != nil {
			panic(err) // an error of the program's author
		}
	}
}

// KindOf returns what a flag names; empty if nobody has said.
func KindOf(f *pflag.Flag) Kind {
	if kinds := f.Annotations[annotation]; len(kinds) == 1 {
		return Kind(kinds[0])
	}
	return ""
}

// CheckFlags checks what flags name, those with their default values, too. What is not there yet is
// checked as far as it is. Standard input, "-", can be named once.
func CheckFlags(flags *pflag.FlagSet) error {
	var errs []error
	var streams []string
	flags.VisitAll(func(f *pflag.Flag) {
		values := []string{f.Value.String()}
		if list, ok := f.Value.(pflag.SliceValue); ok {
			values = list.GetSlice()
		}
		for _, value := range values {
			if err := CheckNamed(KindOf(f), value); err != nil {
				errs = append(errs, fmt.Errorf("--%s: %w", f.Name, err))
			}
			if KindOf(f) == Input && value == "-" {
				streams = append(streams, "--"+f.Name+" -")
			}
		}
	})
	if len(streams) > 1 {
		errs = append(errs, fmt.Errorf("%s: standard input can be read once; name files", strings.Join(streams, ", ")))
	}
	return errors.Join(errs...)
}

// CheckNamed checks a value by its kind. An empty value names nothing.
func CheckNamed(kind Kind, value string) error {
	if value == "" {
		return nil
	}
	switch kind {
	case Directory:
		return CheckExisting(value)
	case Files:
		return check(value, want{partly: true, above: true})
	case File, FileOrText:
		return checkFileOrText(kind, value)
	case Socket:
		return CheckSocket(value)
	case Address:
		if path, ok := strings.CutPrefix(value, "unix://"); ok {
			return CheckSocket(path)
		}
	}
	return nil
}

// checkFileOrText checks a file. A text that is no file may look like one of the current directory.
func checkFileOrText(kind Kind, value string) error {
	if kind == FileOrText && !there(value) {
		return nil
	}
	return check(value, want{file: true, partly: true}) // the file may not be there yet
}

// SocketPath is the path of a socket in an endpoint; false for one without a file. Other schemes are for the program
// to refuse.
func SocketPath(endpoint string) (string, bool) {
	for _, scheme := range []string{"unix://", "unix:"} {
		if rest, ok := strings.CutPrefix(endpoint, scheme); ok {
			endpoint = rest
			break
		}
	}
	return endpoint, !strings.HasPrefix(endpoint, "@") && !strings.Contains(endpoint, "\x00") && endpoint != ""
}

var errNoSocket = errdefs.Preconditionf("expected the path of a socket, whose directory says who answers")

// Field is a field of a configuration that has text.
type Field struct {
	// Path is the path in the configuration's file.
	Path string
	// Kind is empty if nobody has said.
	Kind Kind
	// Values is what it has, in a list or a map every item.
	Values []string
}

// Fields lists the fields of a struct that have text, with those of its structs, by their names in JSON.
func Fields(config any) []Field {
	var out []Field
	walkFields(reflect.ValueOf(config), "", "", &out)
	return out
}

func walkFields(v reflect.Value, path string, kind Kind, out *[]Field) {
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			v = reflect.New(v.Type().Elem())
		}
		walkFields(v.Elem(), path, kind, out)
	case reflect.String:
		*out = append(*out, Field{Path: path, Kind: kind, Values: []string{v.String()}})
	case reflect.Slice, reflect.Array:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return
		}
		items := Field{Path: path, Kind: kind, Values: []string{}}
		if elem := v.Type().Elem(); elem.Kind() != reflect.String {
			if v.Len() == 0 {
				walkFields(reflect.Zero(elem), path+"[]", kind, out)
			}
			for i := range v.Len() {
				walkFields(v.Index(i), path+"[]", kind, out)
			}
			return
		}
		for i := range v.Len() {
			items.Values = append(items.Values, v.Index(i).String())
		}
		*out = append(*out, items)
	case reflect.Map:
		values := Field{Path: path, Kind: kind, Values: []string{}}
		if v.Type().Elem().Kind() != reflect.String {
			walkFields(reflect.Zero(v.Type().Elem()), path+"{}", kind, out)
			return
		}
		for _, key := range v.MapKeys() {
			values.Values = append(values.Values, v.MapIndex(key).String())
		}
		*out = append(*out, values)
	case reflect.Struct:
		for i := range v.NumField() {
			field := v.Type().Field(i)
			if !field.IsExported() {
				continue
			}
			name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			if name == "" {
				name = field.Name
			}
			walkFields(v.Field(i), strings.TrimPrefix(path+"."+name, "."), Kind(field.Tag.Get(tag)), out)
		}
	}
}

// CheckFields checks what the fields of a configuration name.
func CheckFields(config any) error {
	var errs []error
	for _, f := range Fields(config) {
		for _, value := range f.Values {
			if err := CheckNamed(f.Kind, value); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", f.Path, err))
			}
		}
	}
	return errors.Join(errs...)
}

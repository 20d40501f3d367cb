package podspec

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/input"
)

// Decode reads every pod of a YAML or JSON text, in its order. Objects of other kinds, and a text without any pod, are
// errors for that.
func Decode(r io.Reader, o Options) ([]*typesv1.Pod, error) {
	var pods []*typesv1.Pod
	err := documents(r, func(doc object) error { return o.flatten(doc, &pods) })
	if err != nil {
		return nil, err
	}
	if len(pods) == 0 {
		return nil, errors.New("there is no pod in it")
	}
	return pods, nil
}

// Load reads the pods of a file or pipe; "-" is stdin. It reads at most input.Most bytes, and ends
// with the context.
func Load(ctx context.Context, path string, stdin io.Reader, o Options) ([]*typesv1.Pod, error) {
	text, err := input.FileOrStream(ctx, path, stdin, input.Most)
	if err != nil {
		return nil, err
	}
	pods, err := Decode(bytes.NewReader(text), o)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", FileName(path), err)
	}
	return pods, nil
}

// FileName names a file of Load in messages.
func FileName(path string) string { return input.Name(path) }

// flatten appends the pods of an object: its own, or those of a list.
func (o Options) flatten(doc object, pods *[]*typesv1.Pod) error {
	kind, version := text(doc, "kind"), text(doc, "apiVersion")
	switch {
	case kind == "":
		return errors.New("kind is missing: expected Pod or List")
	case version == "v1" && kind == "Pod":
		pod, err := o.convert(doc)
		if err != nil {
			return err
		}
		*pods = append(*pods, pod)
		return nil
	case version == "v1" && (kind == "List" || kind == "PodList"):
		return o.flattenItems(kind, doc, pods)
	}
	return fmt.Errorf("kind %s of apiVersion %q: expected Pod or List of apiVersion \"v1\"", kind, version)
}

func (o Options) flattenItems(kind string, doc object, pods *[]*typesv1.Pod) error {
	items, ok := doc["items"].([]any)
	if !ok && doc["items"] != nil {
		return errors.New("items: expected a list")
	}
	for i, item := range items {
		entry, ok := item.(object)
		if !ok {
			return fmt.Errorf("items[%d]: %w", i, errNoObject)
		}
		// The items of a typed list leave out the kind and version of the list.
		if kind == "PodList" && text(entry, "kind") == "" {
			entry["kind"], entry["apiVersion"] = "Pod", "v1"
		}
		if err := o.flatten(entry, pods); err != nil {
			return fmt.Errorf("items[%d]: %w", i, err)
		}
	}
	return nil
}

func text(doc object, key string) string {
	s, _ := doc[key].(string)
	return s
}

// convert reads a pod object.
func (o Options) convert(doc object) (*typesv1.Pod, error) {
	meta, _ := doc["metadata"].(object)
	name := title(text(meta, "namespace"), text(meta, "name"))
	// Before every check: what a pod is refused for may be the effect of a misspelt name.
	unknown := slices.Concat(unknownFields(doc, reflect.TypeFor[corev1.Pod]()), unknownResources(doc))
	for _, what := range unknown {
		if o.Ignored != nil {
			o.Ignored(name, what)
		}
	}
	if err := checkAmounts(doc); err != nil {
		return nil, fmt.Errorf("pod %s: %w", name, err)
	}
	var pod corev1.Pod
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(doc, &pod); err != nil {
		return nil, fmt.Errorf("pod %s: %w", name, misfit(doc, err))
	}
	if fields := Dropped(&pod); o.Dropped != nil && len(fields) > 0 {
		o.Dropped(name, fields)
	}
	out, err := FromPod(&pod, o)
	if err == nil && o.whole != nil {
		err = o.whole(&pod, out, unknown)
	}
	return out, err
}

// misfit returns which field of an object has the wrong type. Only the JSON decoder reports it.
func misfit(doc object, otherwise error) error {
	raw, err := json.Marshal(doc)
	if err != nil {
		return otherwise
	}
	var wrong *json.UnmarshalTypeError
	if errors.As(json.Unmarshal(raw, new(corev1.Pod)), &wrong) && wrong.Field != "" {
		return fmt.Errorf("pod.%s: expected %s, found %s", wrong.Field, wanted(wrong.Type), wrong.Value)
	}
	return otherwise
}

// wanted names a Go type in JSON's words.
func wanted(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Slice, reflect.Array:
		return "a list"
	case reflect.Map, reflect.Struct:
		return "an object"
	case reflect.String:
		return "a text"
	case reflect.Bool:
		return "true or false"
	case reflect.Pointer:
		return wanted(t.Elem())
	}
	if strings.Contains(t.Kind().String(), "int") {
		return "a whole number"
	}
	return t.String()
}

package command

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/berthd/berth/clients/internal/table"
)

// KindOf gives the kind of what a verb lists, as names have it in front.
func KindOf(verb string) string { return strings.TrimSuffix(verb, "s") }

// WithoutKind removes the kind from a name of the form KIND/NAME, if it is one of the named verbs' or a short name of it.
func WithoutKind(name string, verbs ...string) string {
	kind, rest, found := strings.Cut(name, "/")
	if !found || rest == "" {
		return name
	}
	for _, verb := range verbs {
		if kind == verb || kind == KindOf(verb) || slices.Contains(short[verb], kind) {
			return rest
		}
	}
	return name
}

// IsPod reports whether a word is the kind of pods.
func IsPod(word string) bool {
	return word == "pods" || word == KindOf("pods") || slices.Contains(short["pods"], word)
}

// WithoutPod removes the kind from a pod's name.
func WithoutPod(name string) string { return WithoutKind(name, "pods") }

// printNames prints KIND/NAME on each line, as kubectl does and as other verbs take it. A pod has its namespace in front if
// another one of the list has the same name.
func printNames(w io.Writer, kind string, t, all *table.Table) {
	count := map[string]int{}
	if kind == KindOf("pods") {
		for _, name := range all.Names() {
			_, short, _ := strings.Cut(name, "/")
			count[short]++
		}
	}
	for _, name := range t.Names() {
		if _, short, _ := strings.Cut(name, "/"); kind == KindOf("pods") && count[short] < 2 {
			name = short
		}
		fmt.Fprintln(w, OneLine(kind+"/"+strings.TrimSuffix(name, "/")))
	}
}

// SplitKind replaces "get KIND/NAME" by "get KIND NAME", for each group of verbs about kinds.
func SplitKind(root *cobra.Command, args []string) []string {
	group, rest, err := root.Find(args)
	if err != nil || group.Annotations[kinds] == "" {
		return args
	}
	for i, arg := range args {
		kind, name, found := strings.Cut(arg, "/")
		if !found || name == "" || !slices.Contains(rest, arg) {
			continue
		}
		for _, verb := range group.Commands() {
			if verb.Name() == kind || verb.HasAlias(kind) {
				return slices.Replace(slices.Clone(args), i, i+1, kind, name)
			}
		}
	}
	return args
}

// kinds is the annotation of commands whose verbs are kinds.
const kinds = "kinds"

// short are the names that kubectl has for kinds, or would have.
var short = map[string][]string{
	"pods": {"po"}, "pod": {"po"}, "containers": {"co"}, "container": {"co"}, "node": {"nodes", "no"}, "devices": {"dev"},
	"device":    {"dev"},
	"resources": {"res"}, "memory": {"mem"}, "claims": {"resourceclaims", "resourceclaim"}, "providers": {"prov"}, "cgroups": {"cg"},
	"cgroup": {"cg"}, "rejections": {"rej"},
}

// ShortNames gives the verbs of a group their singular, their plural and their short names.
func ShortNames(group *cobra.Command) {
	group.Annotations = map[string]string{kinds: "yes"}
	for _, verb := range group.Commands() {
		verb.Aliases = slices.Clone(short[verb.Name()])
		if one, plural := strings.CutSuffix(verb.Name(), "s"); plural {
			verb.Aliases = append(verb.Aliases, one)
		} else if _, known := short[verb.Name()+"s"]; known {
			verb.Aliases = append(verb.Aliases, verb.Name()+"s")
		}
	}
}

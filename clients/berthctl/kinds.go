package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/berthd/berth/clients/berthctl/table"
)

// kindOf gives the kind of what a verb lists, as names have it in front.
func kindOf(verb string) string { return strings.TrimSuffix(verb, "s") }

// withoutKind removes the kind from a name of the form KIND/NAME, if it is one of the named verbs' or a short name of it.
func withoutKind(name string, verbs ...string) string {
	kind, rest, found := strings.Cut(name, "/")
	if !found || rest == "" {
		return name
	}
	for _, verb := range verbs {
		if kind == verb || kind == kindOf(verb) || slices.Contains(short[verb], kind) {
			return rest
		}
	}
	return name
}

// withoutPod removes the kind from a pod's name.
func withoutPod(name string) string { return withoutKind(name, "pods") }

// printNames prints KIND/NAME on each line, as kubectl does and as other verbs take it. A pod has its namespace in front if
// another one of the list has the same name.
func printNames(w io.Writer, kind string, t, all *table.Table) {
	count := map[string]int{}
	if kind == kindOf("pods") {
		for _, name := range all.Names() {
			_, short, _ := strings.Cut(name, "/")
			count[short]++
		}
	}
	for _, name := range t.Names() {
		if _, short, _ := strings.Cut(name, "/"); kind == kindOf("pods") && count[short] < 2 {
			name = short
		}
		fmt.Fprintln(w, oneLine(kind+"/"+strings.TrimSuffix(name, "/")))
	}
}

// splitKind replaces "get KIND/NAME" by "get KIND NAME", for each group of verbs about kinds.
func splitKind(root *cobra.Command, args []string) []string {
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

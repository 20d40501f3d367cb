// Package trusttest checks that every flag of a program says what it names (trust.Mark), and that a
// program refuses what another user could change. Only tests import it.
package trusttest

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/berthd/berth/api/trust"
)

// stranger owns files in these tests.
const stranger = 65534

// numbers are the types of flags that cannot name a file.
var numbers = []string{"bool", "int", "int32", "int64", "uint", "uint32", "uint64", "float64", "duration", "count"}

// Classified fails for a flag of a program that neither says what it names nor is in the list of those that name no
// file; and for a name in the list that no flag has.
func Classified(t *testing.T, root *cobra.Command, texts ...string) {
	t.Helper()
	seen := map[string]bool{}
	each(root, func(cmd *cobra.Command, f *pflag.Flag) {
		if slices.Contains(numbers, f.Value.Type()) {
			return
		}
		kind := trust.KindOf(f)
		text := slices.Contains(texts, f.Name)
		seen[f.Name] = true
		switch {
		case kind == "" && !text:
			t.Errorf("%s --%s (%s): say with trust.Mark what it names, or add it to the texts of this test if it names no file",
				cmd.CommandPath(), f.Name, f.Usage)
		case kind != "" && !slices.Contains(trust.Kinds(), kind):
			t.Errorf("%s --%s: the kind %q is not known", cmd.CommandPath(), f.Name, kind)
		}
	})
	for _, name := range texts {
		if !seen[name] {
			t.Errorf("there is no flag --%s: remove it from the texts of this test", name)
		}
	}
}

// each calls for every flag of a command and of those below it.
func each(cmd *cobra.Command, found func(*cobra.Command, *pflag.Flag)) {
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) { found(cmd, f) })
	for _, sub := range cmd.Commands() {
		each(sub, found)
	}
}

// Refused runs a program once for each flag that decides, with something that another user could change, and fails if
// the program does not refuse it with the flag's name, the owner and a command that repairs it. run gets the words of
// the command line, and returns what the program printed with its error. It completes commands that only hold others.
func Refused(t *testing.T, root *cobra.Command, run func(t *testing.T, args []string) string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("files of another user need root")
	}
	each(root, func(cmd *cobra.Command, f *pflag.Flag) {
		kind := trust.KindOf(f)
		if !kind.Decides() {
			return
		}
		for what, value := range theirs(t, kind) {
			words := append(strings.Fields(cmd.CommandPath())[1:], "--"+f.Name, value)
			if f.NoOptDefVal != "" {
				words = append(words[:len(words)-2], "--"+f.Name+"="+value)
			}
			t.Run(strings.Join(append(strings.Fields(cmd.CommandPath()), f.Name, what), "_"), func(t *testing.T) {
				said := run(t, words)
				for _, want := range []string{"--" + f.Name, fmt.Sprintf("belongs to user %d", stranger), "chown root "} {
					if !strings.Contains(said, want) {
						t.Errorf("%q: it says %q, without %q", words, said, want)
					}
				}
			})
		}
	})
}

// theirs makes what another user owns.
func theirs(t *testing.T, kind trust.Kind) map[string]string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "theirs")
	file := filepath.Join(t.TempDir(), "file")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	inside := filepath.Join(dir, "inside")
	for _, path := range []string{file, inside} {
		if err := os.WriteFile(path, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{file, dir} {
		if err := os.Chown(path, stranger, stranger); err != nil {
			t.Fatal(err)
		}
	}
	switch kind {
	case trust.Directory, trust.Files:
		return map[string]string{"directory": dir, "beneath": filepath.Join(dir, "none")}
	case trust.File, trust.FileOrText:
		return map[string]string{"file": file, "beneath": inside}
	case trust.Address:
		return map[string]string{"socket": "unix://" + inside}
	default:
		return map[string]string{"socket": inside}
	}
}

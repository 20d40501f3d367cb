package command

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// UsageError is a command line that cannot be understood.
type UsageError struct {
	// Verb is the command as far as it was understood.
	Verb string
	Err  error
}

func (e *UsageError) Error() string { return e.Err.Error() }
func (e *UsageError) Unwrap() error { return e.Err }

// Usagef returns a usageError about a combination of flags.
func Usagef(verb, text string, args ...any) error {
	return &UsageError{Verb: "berthctl " + verb, Err: fmt.Errorf(text, args...)}
}

// FlagError says what a flag of numbers expects; other errors stay.
func FlagError(err error) error {
	bad := (*pflag.InvalidValueError)(nil)
	if !errors.As(err, &bad) || !errors.As(err, new(*strconv.NumError)) {
		return err
	}
	expected := "a whole number"
	switch kind := bad.GetFlag().Value.Type(); {
	case errors.Is(err, strconv.ErrRange):
		expected = "a smaller number"
	case kind == "bool":
		expected = "true or false"
	case strings.HasPrefix(kind, "uint"):
		expected = "a whole number, 0 or more"
	}
	return fmt.Errorf("--%s %q: expected %s", bad.GetFlag().Name, bad.GetValue(), expected)
}

// several ends the name of an argument that may be there more than once.
const several = "..."

// argument is the name of the nth argument, empty if there is none.
func argument(names []string, n int) string {
	if last := len(names) - 1; n > last && last >= 0 && strings.HasSuffix(names[last], several) {
		n = last
	}
	if n >= len(names) {
		return ""
	}
	return strings.TrimSuffix(strings.Trim(names[n], "[]"), several)
}

// misplaced says that an argument is meant as the value of --kubelet, which is the running node without one; nil if it is not.
func misplaced(cmd *cobra.Command, args []string) error {
	f := cmd.Flags().Lookup("kubelet")
	if f == nil || !f.Changed || f.Value.String() != f.NoOptDefVal {
		return nil
	}
	for _, arg := range args {
		if isNode(arg) {
			return fmt.Errorf("--kubelet %s: a directory or an archive comes after =: --kubelet=%s", arg, arg)
		}
	}
	return nil
}

// isNode reports whether an argument may be where a node's files are. The name of a pod may be that of some file, too.
func isNode(arg string) bool {
	info, err := os.Stat(arg)
	if err != nil {
		return false
	}
	_, err = os.Stat(filepath.Join(arg, "sys"))
	return err == nil || filepath.IsAbs(arg) || !info.IsDir() && strings.Contains(filepath.Base(arg), ".t")
}

// arguments checks the number of arguments against their names; names in brackets are optional.
func arguments(names ...string) cobra.PositionalArgs {
	least := 0
	for _, n := range names {
		if !strings.HasPrefix(n, "[") {
			least++
		}
	}
	return func(cmd *cobra.Command, args []string) error {
		if err := misplaced(cmd, args); err != nil {
			return err
		}
		switch {
		case len(args) < least:
			return fmt.Errorf("%s is missing", argument(names, len(args)))
		case len(args) > 0 && argument(names, len(args)-1) == "":
			return fmt.Errorf("unexpected argument %q", args[len(names)])
		}
		// An unset variable of a script, which must not mean every pod.
		for i, arg := range args {
			if arg == "" {
				return fmt.Errorf("%s is empty", argument(names, i))
			}
		}
		return nil
	}
}

// Subcommand refuses arguments of a command that only holds others.
func Subcommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	text := fmt.Sprintf("unknown command %q", args[0])
	if instead, known := foreign[args[0]]; known && cmd.Parent() == nil {
		return fmt.Errorf("%s: %s", text, instead)
	}
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		text += ", did you mean " + strings.Join(near, " or ") + "?"
	}
	return fmt.Errorf("%s", text)
}

// foreign are commands of kubectl and of crictl that people try, and what does their job.
var foreign = map[string]string{
	"apply":    "'berthctl admit -f FILE' admits a pod, 'berthctl resize -f FILE' changes the resources of an admitted one",
	"create":   "'berthctl admit -f FILE' admits a pod",
	"run":      "'berthctl admit -f FILE' admits a pod; its containers are run by an agent, such as berthlet",
	"edit":     "'berthctl resize POD' changes the resources of an admitted pod, 'berthctl policy set' the policies",
	"patch":    "'berthctl resize POD' changes the resources of an admitted pod, 'berthctl policy set' the policies",
	"logs":     "berthd has no output of containers; 'kubectl logs' or 'crictl logs' prints it, and berthlet keeps it in --pod-logs-dir",
	"exec":     "berthd runs nothing in containers; 'kubectl exec' or 'crictl exec' does",
	"attach":   "berthd runs nothing in containers; 'kubectl attach' or 'crictl attach' does",
	"cordon":   "berthd does not choose which pods come; 'kubectl cordon NODE' keeps new ones away",
	"uncordon": "berthd does not choose which pods come; 'kubectl uncordon NODE' lets new ones in",
	"drain":    "berthd does not choose which pods stay; 'kubectl drain NODE' evicts them, 'berthctl remove POD' removes one",
	"ps":       "'berthctl get pods' lists pods, 'berthctl get containers' containers",
	"pods":     "'berthctl get pods' lists them",
	"stats":    "'berthctl top' shows what containers use",
	"inspect":  "'berthctl describe pod POD' or 'berthctl describe container POD CONTAINER' shows one",
	"events":   "'berthctl watch' follows what changes, 'berthctl history' lists what was called",
	"config":   "'berthctl describe node' shows berthd's configuration, 'berthctl reload' reads it again",
}

// Foreign reports that a command line begins with a command of kubectl or crictl, whatever its flags are.
func Foreign(root *cobra.Command, args []string) error {
	for i := 0; i < len(args); i++ {
		name, isFlag := strings.CutPrefix(args[i], "-")
		if !isFlag {
			if foreign[args[i]] == "" {
				return nil
			}
			return Subcommand(root, args[i:])
		}
		name = strings.TrimPrefix(name, "-")
		flag := root.PersistentFlags().Lookup(name)
		if flag == nil && len(name) == 1 {
			flag = root.PersistentFlags().ShorthandLookup(name)
		}
		if flag != nil && flag.NoOptDefVal == "" {
			i++ // its value
		}
	}
	return nil
}

// errMissing lists the commands of a group.
func errMissing(cmd *cobra.Command) error {
	var names []string
	for _, verb := range cmd.Commands() {
		if verb.IsAvailableCommand() {
			names = append(names, verb.Name())
		}
	}
	return fmt.Errorf("expected one of %s", strings.Join(names, ", "))
}

// Execute runs a program with its arguments, and returns its exit code.
func (c *Ctl) Execute(ctx context.Context, root *cobra.Command, args []string) int {
	root.SetArgs(SplitKind(root, args))
	root.SetIn(c.In)
	root.SetOut(c.Out)
	root.SetErr(c.Err)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return ExitDone
	}
	if ctx.Err() != nil {
		return c.Fail(ErrInterrupted)
	}
	if !c.Began {
		if instead := Foreign(root, args); instead != nil && c.Program == "" { // what it names are verbs of berthctl
			err = instead
		}
		err = &UsageError{Err: FlagError(err)}
		c.Wanted(args)
	}
	if usage := (*UsageError)(nil); errors.As(err, &usage) {
		usage.Verb = cmd.CommandPath() // several commands may share flags
	}
	return c.Fail(err)
}

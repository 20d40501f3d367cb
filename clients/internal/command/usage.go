package command

import (
	"errors"
	"fmt"
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

// arguments checks the number of arguments against their names; names in brackets are optional.
func arguments(names ...string) cobra.PositionalArgs {
	least := 0
	for _, n := range names {
		if !strings.HasPrefix(n, "[") {
			least++
		}
	}
	return func(_ *cobra.Command, args []string) error {
		switch {
		case len(args) < least:
			return fmt.Errorf("%s is missing", names[len(args)])
		case len(args) > len(names):
			return fmt.Errorf("unexpected argument %q", args[len(names)])
		}
		// An unset variable of a script, which must not mean every pod.
		for i, arg := range args {
			if arg == "" {
				return fmt.Errorf("%s is empty", strings.Trim(names[i], "[]"))
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
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		text += ", did you mean " + strings.Join(near, " or ") + "?"
	}
	return fmt.Errorf("%s", text)
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

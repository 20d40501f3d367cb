package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/berthd/berth/api/trust"
	"github.com/berthd/berth/clients/berthlet/agent"
	"github.com/berthd/berth/clients/berthlet/builtin"
	"github.com/berthd/berth/managers/errdefs"
)

// endedError is the exit code of a program that was run, if it is not 0.
type endedError int

func (e endedError) Error() string { return fmt.Sprintf("the program ended with exit code %d", int(e)) }

// executing is the flags of exec.
type executing struct {
	logging
	container  string
	stdin, tty bool
}

// execCommand runs a program in a container.
func execCommand(state *string) *cobra.Command {
	e := &executing{}
	cmd := &cobra.Command{
		Use: "exec POD -- PROGRAM [ARGUMENT]...", Short: "Run a program in a container", DisableFlagsInUseLine: true,
		Long: `Run a program in a running container, in addition to the container's own: in its cgroup and namespaces, as its user, with its
capabilities and under its seccomp filter. POD is a name, namespace/name or a uid of 'berthlet status'. -c can be left out if the
pod has only one container.

The exit code is the program's, or 128 and the number of the signal that ended it. Signals of berthlet are sent to the program. If
the program cannot be run, the exit code is 1.`,
		Example: "  berthlet exec web -- cat /etc/hosts\n  berthlet exec -it default/web -c main -- sh",
		Args: func(cmd *cobra.Command, args []string) error {
			switch at := cmd.ArgsLenAtDash(); {
			case len(args) == 0:
				return errors.New("POD is missing")
			case at < 0:
				return errors.New("-- is missing between POD and the program")
			case at != 1:
				return fmt.Errorf("expected one POD before --, got %d arguments", at)
			case len(args) == 1:
				return errors.New("the program after -- is missing")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := trust.CheckFlags(cmd.Flags()); err != nil {
				return err
			}
			e.state = *state
			return e.run(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr(), args[0], args[1:])
		},
	}
	f := cmd.Flags()
	f.StringVarP(&e.namespace, "namespace", "n", "", "namespace of the pod, if POD is only its name")
	f.StringVarP(&e.container, "container", "c", "", "container of the pod")
	f.BoolVarP(&e.stdin, "stdin", "i", false, "pass the input on to the program")
	f.BoolVarP(&e.tty, "tty", "t", false, "give the program a terminal of the container")
	return cmd
}

func (e *executing) run(ctx context.Context, in io.Reader, out, errs io.Writer, pod string, args []string) error {
	what := []string{pod}
	if e.container != "" {
		what = append(what, e.container)
	}
	p, c, err := e.find(what)
	if err != nil {
		return err
	}
	name := fmt.Sprintf("container %s of pod %s/%s", c.Name, p.Namespace, p.Name)
	if c.State.Running == nil {
		return fmt.Errorf("%s does not run: %s", name, state(c.State))
	}
	x := builtin.Execution{Args: args, Stdout: out, Stderr: errs, TTY: e.tty}
	if e.stdin {
		x.Stdin = in
	}
	signals := make(chan os.Signal, 16)
	// A terminal in raw mode sends no signals: the keys go to the program, and the program's own
	// terminal creates the signals.
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2)
	defer signal.Stop(signals)
	x.Signals = signals
	if e.tty {
		restore, err := e.terminal(&x, in, out)
		if err != nil {
			return err
		}
		defer restore()
	} else {
		x.Stdout, x.Stderr = forPeople(out), forPeople(errs)
	}
	// A signal is for the program, so it is not the end of the context.
	code, err := builtin.Exec(context.WithoutCancel(ctx), filepath.Join(e.state, "runtime"), c.ContainerID, x)
	if errdefs.ClassOf(err) == errdefs.NotFound {
		return fmt.Errorf("%s is not one of the built-in runtime: with --runtime-endpoint, 'crictl exec' runs programs in containers", name)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if code != 0 {
		return endedError(code)
	}
	return nil
}

// state describes a container that does not run.
func state(s agent.ContainerState) string {
	switch {
	case s.Terminated != nil:
		return "it has ended"
	case s.Waiting != nil && s.Waiting.Reason != "":
		return s.Waiting.Reason
	}
	return "it was not started"
}

// forPeople escapes what a program writes to a person's terminal, unless the program has a terminal of its own (-t).
func forPeople(out io.Writer) io.Writer {
	file, ok := out.(*os.File)
	if !ok || !isTerminal(file) {
		return out
	}
	return &escaping{to: out}
}

// escaping escapes control characters but line breaks and tabs, also of characters that come in parts.
type escaping struct {
	to   io.Writer
	part []byte
}

func (e *escaping) Write(p []byte) (int, error) {
	text := append(e.part, p...)
	whole := len(text)
	for back := 1; back < utf8.UTFMax && back <= len(text); back++ {
		if utf8.RuneStart(text[len(text)-back]) {
			if !utf8.FullRune(text[len(text)-back:]) {
				whole = len(text) - back
			}
			break
		}
	}
	e.part = append([]byte(nil), text[whole:]...)
	lines := strings.Split(string(text[:whole]), "\n")
	for i := range lines {
		lines[i] = forTerminal(strings.TrimSuffix(lines[i], "\r"))
	}
	if _, err := io.WriteString(e.to, strings.Join(lines, "\n")); err != nil {
		return 0, err
	}
	return len(p), nil
}

package command

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"

	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/grpc/codes"

	"github.com/berthd/berth/api/podspec"
	"github.com/berthd/berth/clients/berth"
	"github.com/berthd/berth/clients/internal/table"
	"github.com/berthd/berth/managers/errdefs"
)

// The exit codes.
const (
	ExitDone = iota
	ExitError
	ExitUsage
	ExitRejected
	ExitDeferred
	// ExitInterrupted is what shells expect of a program that ended at an interruption.
	ExitInterrupted = 130
)

// ErrInterrupted is the error of a command that was interrupted before it was done.
var ErrInterrupted = errors.New("interrupted")

// Verdict is the exit code of a verb with a negative answer, which has been printed.
type Verdict int

func (v Verdict) Error() string {
	if v == ExitDeferred {
		return "deferred"
	}
	return "rejected"
}

// Fail prints an error for people and returns its exit code.
func (c *Ctl) Fail(err error) int {
	var v Verdict
	if errors.As(err, &v) {
		return int(v)
	}
	var failed *berth.Error
	found := errors.As(err, &failed)
	text := OneLine(err.Error())
	if found && c.Timeout > 0 && failed.Reason == "" && errors.Is(err, context.DeadlineExceeded) {
		text = fmt.Sprintf("berthd did not answer within %s (--timeout): %s", c.Timeout, text)
	}
	if c.Format == FormatJSON || c.Format == FormatYAML {
		return c.failJSON(err, failed, text)
	}
	fmt.Fprintf(c.Err, "%s: %s\n", cmp.Or(c.Program, "berthctl"), text)
	if found {
		for _, f := range failed.Fields {
			line := OneLine(f.Field + ": " + f.Description)
			if failed.Code == codes.FailedPrecondition {
				line = OneLine(f.Description) // which names the object
			}
			// The only one is in the message.
			if len(failed.Fields) > 1 || !strings.Contains(text, line) {
				fmt.Fprintf(c.Err, "  %s\n", line)
			}
		}
	}
	// Found locally, without berthd.
	var wrong *errdefs.Error
	if errors.As(err, &wrong) && len(wrong.Fields) > 1 {
		for _, v := range wrong.Fields {
			fmt.Fprintf(c.Err, "  %s\n", OneLine(v.String()))
		}
	}
	if h := c.hint(err, failed); h != "" {
		fmt.Fprintf(c.Err, "hint: %s\n", h)
	}
	return exitCode(err)
}

func exitCode(err error) int {
	if errors.Is(err, ErrInterrupted) {
		return ExitInterrupted
	}
	if errors.As(err, new(*UsageError)) {
		return ExitUsage
	}
	return ExitError
}

// failure is an error as programs read it. docs/cli-output.md describes it.
type failure struct {
	Code      string     `json:"code"`
	Reason    string     `json:"reason,omitempty"`
	Message   string     `json:"message"`
	Fields    []badField `json:"fields,omitempty"`
	Retryable bool       `json:"retryable"`
	Hint      string     `json:"hint,omitempty"`
}

type badField struct {
	Field       string `json:"field"`
	Description string `json:"description"`
}

// failJSON prints an error for programs, on one line.
func (c *Ctl) failJSON(err error, failed *berth.Error, text string) int {
	f := failure{Message: text, Hint: c.hint(err, failed)}
	status := codes.Unknown
	var wrong *errdefs.Error
	switch {
	case failed != nil:
		status, f.Reason = failed.Code, failed.Reason
		for _, v := range failed.Fields {
			f.Fields = append(f.Fields, badField{v.Field, v.Description})
		}
		f.Retryable = failed.RetryAfter > 0
	case errors.As(err, new(*UsageError)):
		status = codes.InvalidArgument
	case errors.Is(err, ErrInterrupted):
		status = codes.Canceled
	case errors.As(err, new(*UnknownPodError)):
		status = codes.NotFound
	case errors.Is(err, context.DeadlineExceeded):
		status = codes.DeadlineExceeded
	case errors.As(err, &wrong):
		if len(wrong.Fields) > 0 {
			status = codes.InvalidArgument
		}
		for _, v := range wrong.Fields {
			f.Fields = append(f.Fields, badField{v.Field, v.Description})
		}
	}
	switch status {
	case codes.Unavailable, codes.Aborted, codes.DeadlineExceeded:
		f.Retryable = true
	}
	f.Code = code.Code(status).String()
	raw, merr := json.Marshal(map[string]failure{"error": f})
	if merr != nil {
		raw = []byte(`{"error":{"code":"INTERNAL","message":"the error cannot be printed","retryable":false}}`)
	}
	fmt.Fprintf(c.Err, "%s\n", table.JSON(raw))
	return exitCode(err)
}

// Wanted finds the format in a command line with a parse error.
func (c *Ctl) Wanted(args []string) {
	for i, a := range args {
		next := ""
		if i+1 < len(args) {
			next = args[i+1]
		}
		for _, f := range []Format{FormatJSON, FormatYAML} {
			word := string(f)
			if a == "-o"+word || a == "-o="+word || a == "--output="+word || (a == "-o" || a == "--output") && next == word {
				c.Format = f
			}
		}
	}
}

// hint returns advice about an error; empty if there is no general one.
func (c *Ctl) hint(err error, failed *berth.Error) string {
	var usage *UsageError
	var unknown *UnknownPodError
	switch {
	case errors.As(err, &usage):
		return fmt.Sprintf("see '%s --help'", usage.Verb)
	case errors.As(err, &unknown):
		return unknown.hint()
	case errors.As(err, new(*otherVersion)):
		return "use the berthctl that was installed with this berthd, or upgrade the older one"
	case errors.Is(err, podspec.ErrNoUID):
		return "--generate-uid makes one from namespace and name"
	case errors.Is(err, context.DeadlineExceeded):
		return "--timeout gives it more time"
	case failed == nil:
		return ""
	case errors.Is(err, berth.ErrNoAnswer):
		return "berthd is running, but it hangs or the machine is overloaded: read its log"
	}
	switch failed.Code {
	case codes.Unavailable:
		if failed.Reason == "" {
			if c.Socket != "" {
				return "is a program serving " + c.Socket + "?"
			}
			if path, found := strings.CutSuffix(failed.Message, ": connect: "+syscall.EACCES.Error()); found {
				return access(strings.TrimPrefix(path, "dial unix "))
			}
			return "is berthd running? --endpoint or " + berth.EndpointVariable + " say where its socket is"
		}
		if failed.RetryAfter > 0 {
			return fmt.Sprintf("try again in %v", failed.RetryAfter)
		}
	case codes.PermissionDenied:
		return "root has all roles; 'access' in berthd's configuration gives them to other users and groups"
	case codes.Unimplemented:
		if failed.Reason != "" {
			return "" // berthd supports the call, and its error describes the limitation
		}
		return "this berthd is older than this berthctl, or the other way round"
	case codes.Internal, codes.Unknown:
		if failed.RequestID != "" {
			return "see berthd's log for request " + failed.RequestID
		}
	}
	return ""
}

// access says how somebody gets at a socket who may not.
func access(path string) string {
	join := ""
	if info, err := os.Stat(path); err == nil {
		if group := groupOf(info); group != "" && group != "root" {
			join = ", join the group " + group
		}
	}
	return "run it as root" + join + ", or ask for access: 'access' in berthd's configuration gives it to users and groups"
}

// OneLine keeps a text on one line, with nothing in it that a terminal would act on.
func OneLine(text string) string {
	return table.Printable(strings.Join(strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\r' }), "; "))
}

// Warn prints a warning on one line. What it names may come from anybody.
func (c *Ctl) Warn(format string, args ...any) {
	fmt.Fprintln(c.Err, "warning:", OneLine(fmt.Sprintf(format, args...)))
}

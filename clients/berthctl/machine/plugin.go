package machine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/berthd/berth/api/trust"
	"github.com/berthd/berth/clients/internal/command"
	"github.com/berthd/berth/clients/internal/table"
	"github.com/berthd/berth/clients/plugintest"
)

const pluginTestLong = `Start a temporary berthd and test a device plugin with it. The plugin registers, its devices are allocated to pods,
berthd is restarted, berthd's socket and kubelet.sock are removed and created again as in a restart, and the plugin is
killed and started again. Then each method of the plugin is called directly.

COMMAND starts the plugin. In its arguments {plugins} is replaced by the directory with kubelet.sock, {registry} for the
directory of the plugin watcher, and {root} for the directory above both. A plugin with /var/lib/kubelet built in needs
--as-kubelet-dir (and root). SOCKET names a plugin that runs already: it is not restarted, and --answers-only leaves
berthd out. Without both, the first plugin that registers is tested.

Paths of the host in the plugin's answers have to be there; with --elsewhere, on a machine without the devices, those that are
missing are warnings. With --soak pods come and go for a time while berthd and the plugin are restarted again and again.

The test allocates real devices, so do not test a plugin that is in use. With --no-allocate it allocates none. The exit code is
1 if a check failed, and 130 if the test was interrupted; a warning does not change it.`

func Plugin(c *command.Ctl) *cobra.Command {
	return command.Group(command.About{
		Use:     "plugin",
		Short:   "Test a device plugin",
		Example: `  berthctl plugin test -- ./gpu-plugin --plugin-directory {plugins}`,
	}, test(c))
}

// formatJUnit is what build servers read; only this verb has it.
const formatJUnit command.Format = "junit"

// reportFormat is a format of a report.
type reportFormat struct{ *command.Format }

// Set makes it a flag.
func (f reportFormat) Set(text string) error {
	if text == string(formatJUnit) {
		*f.Format = formatJUnit
		return nil
	}
	if err := f.Format.Set(text); err != nil {
		return fmt.Errorf("%w, %s", err, formatJUnit)
	}
	return nil
}

// pluginTest has the values of the flags.
type pluginTest struct {
	plugintest.Options
	plugintest.Plugin
	berthd, junit string
	answersOnly   bool
}

func test(c *command.Ctl) *cobra.Command {
	var o pluginTest
	cmd := c.Local(command.About{
		Use:   "test [SOCKET] [-- COMMAND...]",
		Short: "Check a device plugin against the device plugin API",
		Long:  pluginTestLong,
		Example: `  berthctl plugin test -- ./gpu-plugin --plugin-directory {plugins}
  berthctl plugin test --as-kubelet-dir -o junit -- ./gpu-plugin > report.xml
  berthctl plugin test --soak 10m --elsewhere -- ./gpu-plugin --plugin-directory {plugins}
  berthctl plugin test /var/lib/kubelet/device-plugins/gpu.sock --answers-only --no-allocate`,
	}, nil)
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if dash := cmd.ArgsLenAtDash(); dash >= 0 {
			o.Command, args = args[dash:], args[:dash]
		}
		if len(args) > 1 || len(args) == 1 && len(o.Command) > 0 || cmd.ArgsLenAtDash() >= 0 && len(o.Command) == 0 {
			return fmt.Errorf("expected the socket of a plugin, or -- and the command that starts one")
		}
		return nil
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c.Began = true
		if err := trust.CheckFlags(cmd.Flags()); err != nil {
			return err
		}
		if len(o.Command) == 0 && len(args) == 1 {
			socket, err := filepath.Abs(args[0])
			if err != nil {
				return err
			}
			o.Socket = socket
		}
		return testPlugin(cmd.Context(), c, &o)
	}
	f := cmd.Flags()
	f.BoolVar(&o.NoAllocate, "no-allocate", false, "allocate nothing")
	f.BoolVar(&o.answersOnly, "answers-only", false, "only check the answers at SOCKET, without berthd")
	f.BoolVar(&o.AsKubeletDir, "as-kubelet-dir", false, "let COMMAND see {root} as /var/lib/kubelet")
	f.StringVar(&o.berthd, "berthd", "", "the berthd program (default: next to berthctl, or in PATH)")
	f.StringVar(&o.Resource, "resource", "berthctl.test/device", "what to call the resource of a plugin at SOCKET")
	f.DurationVar(&o.Wait, "wait", time.Minute, "how long the plugin may take to register, also after a restart")
	f.BoolVar(&o.Elsewhere, "elsewhere", false, "this machine does not have the devices: host paths that are missing are warnings")
	f.DurationVar(&o.Soak, "soak", 0, "how long pods come and go while berthd and the plugin are restarted again and again")
	f.DurationVar(&o.Watch, "watch", 0, "how long the plugin's list has to stay open (default 5s)")
	f.DurationVar(&o.Timeout, "call-timeout", 0, "how long the plugin may take for an answer (default 10s)")
	f.IntVar(&o.Flood, "flood", 50, "how many calls are made at once, and pods come and go; 0 leaves that out")
	f.StringVar(&o.junit, "junit", "", "a file to write the report to, in JUnit's form")
	f.VarP(reportFormat{&c.Format}, "output", "o", "table, json, yaml or junit")
	return cmd
}

// testPlugin makes the test and shows the report.
func testPlugin(ctx context.Context, c *command.Ctl, o *pluginTest) error {
	switch {
	case o.Soak < 0 || o.Watch < 0:
		return errors.New("--soak and --watch: expected a time that is not negative")
	case o.Soak > 0 && (o.answersOnly || o.NoAllocate):
		return errors.New("--soak: expected neither --answers-only nor --no-allocate, because its pods get devices from a berthd")
	}
	o.Say = func(text string) { _, _ = fmt.Fprintln(c.Err, command.OneLine(text)) }
	showProgress(c, o)
	report, err := report(ctx, c, o)
	if err != nil {
		return err
	}
	if o.junit != "" {
		text, err := report.JUnit()
		if err != nil {
			return err
		}
		if err := os.WriteFile(o.junit, text, 0o644); err != nil {
			return err
		}
	}
	if err := showReport(c, &report); err != nil {
		return err
	}
	if report.Interrupted {
		return command.ErrInterrupted
	}
	if n := report.Count(plugintest.Failed); n > 0 {
		return fmt.Errorf("%s failed", table.Count(n, "check"))
	}
	return nil
}

// showProgress prints a line for each check as it runs: as the table, or next to a report for build servers.
func showProgress(c *command.Ctl, o *pluginTest) {
	w := c.Out
	switch c.Format {
	case formatJUnit:
		w = c.Err
	case command.FormatTable:
	default:
		return
	}
	const line = "%-20s  "
	_, _ = fmt.Fprintf(w, line+"%-7s  %s\n", "CHECK", "OUTCOME", "WHAT WAS SEEN")
	running := ""
	o.Started = func(name string) { running = table.Printable(name); _, _ = fmt.Fprintf(w, line, running) }
	o.Say = func(text string) {
		_, _ = fmt.Fprintln(w)
		_, _ = fmt.Fprintln(c.Err, command.OneLine(text))
		_, _ = fmt.Fprintf(w, line, running)
	}
	o.Done = func(check plugintest.Check) {
		_, _ = fmt.Fprintf(w, "%-7s  %s\n", check.Outcome, command.OneLine(check.Text))
	}
}

// report runs the test, in a temporary directory.
func report(ctx context.Context, c *command.Ctl, o *pluginTest) (plugintest.Report, error) {
	if o.answersOnly {
		if o.Socket == "" {
			return plugintest.Report{}, errors.New("--answers-only: expected the socket of a plugin")
		}
		return plugintest.Run(ctx, o.Socket, o.Options), nil
	}
	program, err := plugintest.Berthd(o.berthd)
	if err != nil {
		return plugintest.Report{}, err
	}
	o.Berthd = program
	// The length of socket paths is limited (unix(7)), and TMPDIR may be long.
	if o.Root, err = os.MkdirTemp("", "berth"); err != nil {
		return plugintest.Report{}, err
	}
	defer func() { _ = os.RemoveAll(o.Root) }()
	return plugintest.Live(ctx, o.Plugin, o.Options)
}

// showReport prints a report.
func showReport(c *command.Ctl, r *plugintest.Report) error {
	if c.Format == formatJUnit {
		text, err := r.JUnit()
		if err != nil {
			return err
		}
		_, err = c.Out.Write(text)
		return err
	}
	if c.ForPrograms() {
		raw, err := json.Marshal(r)
		if err != nil {
			return err
		}
		return c.Print("PluginTest", raw)
	}
	return c.Say(func(w io.Writer) {
		// The checks were printed as they ran.
		fmt.Fprintf(w, "%d passed, %d warned, %d failed, %d skipped\n",
			r.Count(plugintest.Passed), r.Count(plugintest.Warned), r.Count(plugintest.Failed), r.Count(plugintest.Skipped))
	})
}

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/berthd/berth/clients/berthctl/conform"
	"github.com/berthd/berth/clients/berthctl/table"
)

const pluginTestLong = `Connect to the socket of a device plugin, as berthd would after its registration, and look at how it answers: its
options, its list, what it prefers, what it allocates, whether it stands many calls and a lost connection. berthd need
not run. Devices are allocated for real, so do not test a plugin that is in use; --no-allocate leaves that out.

A check that fails makes the exit code 1. --junit writes the report for build servers.`

func (c *ctl) plugin() *cobra.Command {
	return group(about{
		use:     "plugin",
		short:   "Try a device plugin",
		example: `  berthctl plugin test /var/lib/kubelet/device-plugins/gpu.sock`,
	}, c.pluginTest())
}

func (c *ctl) pluginTest() *cobra.Command {
	var o conform.Options
	var junit string
	cmd := c.local(about{
		use:   "test SOCKET",
		short: "Hold a device plugin against what is expected of one",
		long:  pluginTestLong,
		example: `  berthctl plugin test ./gpu.sock
  berthctl plugin test ./gpu.sock --no-allocate --junit report.xml -o json`,
		args: []string{"SOCKET"},
	}, func(ctx context.Context, args []string) error {
		socket, err := filepath.Abs(args[0])
		if err != nil {
			return err
		}
		report := conform.Run(ctx, socket, o)
		if junit != "" {
			text, err := report.JUnit()
			if err != nil {
				return err
			}
			if err := os.WriteFile(junit, text, 0o644); err != nil {
				return err
			}
		}
		if err := c.showReport(&report); err != nil {
			return err
		}
		if n := report.Count(conform.Failed); n > 0 {
			return fmt.Errorf("%s failed", table.Count(n, "check"))
		}
		return nil
	})
	cmd.Flags().BoolVar(&o.NoAllocate, "no-allocate", false, "allocate nothing")
	cmd.Flags().IntVar(&o.Flood, "flood", 50, "how many calls are made at once; 0 leaves that out")
	cmd.Flags().DurationVar(&o.Patience, "patience", 0, "how long the plugin may take for an answer (default 10s)")
	cmd.Flags().StringVar(&junit, "junit", "", "a file to write the report to, in JUnit's form")
	return cmd
}

// showReport prints a report.
func (c *ctl) showReport(r *conform.Report) error {
	if c.forPrograms() {
		raw, err := json.Marshal(r)
		if err != nil {
			return err
		}
		return c.print(raw)
	}
	return c.say(func(w io.Writer) {
		t := table.New("CHECK", "OUTCOME", "WHAT WAS SEEN")
		for _, check := range r.Checks {
			t.Row(check.Name, string(check.Outcome), oneLine(check.Text))
		}
		fmt.Fprint(w, t)
		fmt.Fprintf(w, "%d passed, %d warned, %d failed, %d skipped\n",
			r.Count(conform.Passed), r.Count(conform.Warned), r.Count(conform.Failed), r.Count(conform.Skipped))
	})
}

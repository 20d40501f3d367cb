// Package check has the verb that finds what is wrong on a node whose kubelet decides.
//
// Words: a finding is something that is wrong; docs/check.md has the checks that make findings.
//
// Invariants: the exit code is the worst severity. Nothing is asked of a berthd.
package check

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/berthd/berth/clients/internal/command"
	"github.com/berthd/berth/clients/internal/table"
)

// The exit codes: of only warnings, and of errors.
const (
	exitWarnings = command.Verdict(1)
	exitErrors   = command.Verdict(3)
)

// Check makes 'berthctl check'.
func Check(c *command.Ctl) *cobra.Command {
	var now bool
	cmd := c.Local(command.About{
		Use:   "check",
		Short: "Find what is wrong on a kubelet's node",
		Long: "Find what is wrong on a node whose kubelet decides: CPUs that are lost or allocated twice, state files with which the kubelet " +
			"does not start the next time, and settings without effect. Each finding has its evidence, public reports about it, and what to " +
			"do next. It requires --kubelet, and --pods for the checks that compare pods. What compares sources that change is read " +
			"again after 15 s, if something is wrong. The exit code is 1 if there are only warnings and 3 if there are errors.",
		Example: `  berthctl check --kubelet --pods pods.json
  berthctl check --kubelet=copy-of-the-node -o json`,
	}, func(ctx context.Context, _ []string) error {
		checked, err := c.CheckNode(ctx, now)
		if err != nil {
			return err
		}
		if err := show(c, checked); err != nil {
			return err
		}
		return verdict(checked)
	})
	cmd.Flags().BoolVar(&now, "now", false, "read the node once; what needs two readings is unconfirmed")
	return cmd
}

// verdict is the exit code.
func verdict(checked *command.Checked) error {
	switch failed, warned := count(checked); {
	case failed > 0:
		return exitErrors
	case warned > 0:
		return exitWarnings
	}
	return nil
}

// count counts errors and warnings.
func count(checked *command.Checked) (failed, warned int) {
	for _, f := range checked.Findings {
		if f.Severity == command.SeverityError {
			failed++
		} else {
			warned++
		}
	}
	return failed, warned
}

func show(c *command.Ctl, checked *command.Checked) error {
	if c.ForPrograms() {
		if checked.Findings == nil {
			checked.Findings = []command.NodeFinding{} // a list is always there
		}
		raw, err := json.Marshal(checked)
		if err != nil {
			return fmt.Errorf("print the findings: %w", err)
		}
		return c.Print("FindingList", raw)
	}
	for _, text := range checked.Missing {
		c.Warn("not read: %s", text)
	}
	for _, s := range checked.Skipped {
		c.Warn("not checked: %s: %s", strings.Join(s.Checks, ", "), s.Reason)
	}
	return c.Say(func(w io.Writer) {
		for _, f := range checked.Findings {
			showFinding(w, f)
		}
		failed, warned := count(checked)
		if failed+warned == 0 {
			fmt.Fprintln(w, "nothing is wrong")
			return
		}
		fmt.Fprintf(w, "%s, %s\n", table.Count(failed, "error"), table.Count(warned, "warning"))
	})
}

func showFinding(w io.Writer, f command.NodeFinding) {
	command.Paint(w, command.SeverityColor(f.Severity), f.Severity)
	unconfirmed := ""
	if f.Unconfirmed {
		unconfirmed = " (unconfirmed: one reading)"
	}
	fmt.Fprintf(w, " %s: %s%s\n  %s\n", f.Check, command.OneLine(f.Object), unconfirmed, command.OneLine(f.Text))
	for _, text := range f.Evidence {
		fmt.Fprintf(w, "  - %s\n", command.OneLine(text))
	}
	if len(f.Reports) > 0 {
		fmt.Fprintf(w, "  reports: %s\n", strings.Join(f.Reports, ", "))
	}
	for i, text := range f.Do {
		begin := "     "
		if i == 0 {
			begin = "  do:"
		}
		fmt.Fprintf(w, "%s %s\n", begin, command.OneLine(text))
	}
	fmt.Fprintln(w)
}

package ledger

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"unicode/utf8"

	"github.com/spf13/cobra"

	inspectv1 "github.com/berthd/berth/api/berth/inspect/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/clients/internal/command"
	"github.com/berthd/berth/clients/internal/table"
)

func Ledger(c *command.Ctl) *cobra.Command {
	return command.Group(command.About{
		Use:   "ledger",
		Short: "Show, check, import and export the ledger",
		Example: `  berthctl ledger check
  berthctl ledger report
  berthctl ledger dump -o json
  berthctl ledger import --kind cpu -f cpu_manager_state --pods pods.json
  berthctl ledger export --kind cpu`,
	}, ledgerDump(c), ledgerCheck(c), ledgerReport(c), ledgerImport(c), ledgerExport(c))
}

// shownValue is how many characters of a stored value a narrow table shows.
const shownValue = 60

func ledgerDump(c *command.Ctl) *cobra.Command {
	return c.Verb(command.About{
		Use:   "dump",
		Short: "Show every stored entry",
		Long:  "Show every stored entry. A narrow table cuts long values; -o wide and json have them whole.",
		Example: `  berthctl ledger dump
  berthctl ledger dump -o json | jq -r '.items[].value | fromjson'`,
	}, func(ctx context.Context, s *command.Session, _ []string) error {
		dump, err := s.Dump(ctx)
		if err != nil {
			return err
		}
		return s.Show(dump, func(w io.Writer) {
			fmt.Fprintf(w, "revision %d\n\n", dump.GetRevision())
			t := table.New("BUCKET", "KEY", "VALUE")
			for _, e := range dump.GetEntries() {
				value := command.OneLine(e.GetValue())
				if !s.Wide() && utf8.RuneCountInString(value) > shownValue {
					value = string([]rune(value)[:shownValue-1]) + "…"
				}
				t.Row(e.GetBucket(), e.GetKey(), value)
			}
			fmt.Fprint(w, t)
		})
	})
}

func ledgerCheck(c *command.Ctl) *cobra.Command {
	return c.Verb(command.About{
		Use:     "check",
		Short:   "Check that nothing is held twice and nothing is lost",
		Long:    "Check the invariants of the ledger, and show the findings of the last start. The exit code is 1 if an invariant is violated.",
		Example: `  berthctl ledger check`,
	}, func(ctx context.Context, s *command.Session, _ []string) error {
		check, err := s.Inspect().Check(ctx, &inspectv1.CheckRequest{})
		if err != nil {
			return err
		}
		if err := s.Show(check, func(w io.Writer) { showCheck(ctx, s, w, check) }); err != nil {
			return err
		}
		if n := len(check.GetFindings()); n > 0 {
			return fmt.Errorf("the ledger has %s", table.Count(n, "finding"))
		}
		return nil
	})
}

func ledgerReport(c *command.Ctl) *cobra.Command {
	return c.Verb(command.About{
		Use:   "report",
		Short: "Show what the last start of berthd found about each pod",
		Long: "Show the data of ledger, claim record and kernel for each pod at the last start of berthd, the claims that were kept, " +
			"and their source. A pod that waits for its agent keeps its claims until the agent admits or removes the pod.",
		Example: `  berthctl ledger report
  berthctl ledger report -o json | jq '.pods[] | select(.waits)'`,
	}, func(ctx context.Context, s *command.Session, _ []string) error {
		report, err := s.Inspect().GetStartReport(ctx, &inspectv1.GetStartReportRequest{})
		if err != nil {
			return err
		}
		return s.Show(report, func(w io.Writer) { showReport(w, report) })
	})
}

func showReport(w io.Writer, report *inspectv1.GetStartReportResponse) {
	for _, line := range report.GetLines() {
		fmt.Fprintf(w, "at the last start: %s\n", command.OneLine(line))
	}
	if len(report.GetPods()) == 0 {
		fmt.Fprintln(w, "there were no pods at the last start")
		return
	}
	t := table.New("POD", "UID", "CASE", "KEPT", "FROM", "WAITS")
	for _, p := range report.GetPods() {
		name, waits := p.GetNamespace()+"/"+p.GetName(), "no"
		if p.GetName() == "" {
			name = "-"
		}
		if p.GetWaits() {
			waits = "yes"
		}
		t.Row(name, p.GetUid(), p.GetFound(), p.GetKept(), cmp.Or(convert.Word(p.GetSource()), "-"), waits)
	}
	fmt.Fprint(w, t)
}

func showCheck(ctx context.Context, s *command.Session, w io.Writer, check *inspectv1.CheckResponse) {
	for _, line := range check.GetStartReport() {
		fmt.Fprintf(w, "at the last start: %s\n", command.OneLine(line))
	}
	if len(check.GetFindings()) == 0 {
		fmt.Fprintf(w, "the ledger is sound at revision %d\n", check.GetRevision())
		return
	}
	t := table.New("KIND", "OWNER", "FINDING")
	known := s.Names(ctx)
	for _, f := range check.GetFindings() {
		t.Row(convert.Word(f.GetKind()), known.Owner(f.GetHolder()), command.OneLine(f.GetText()))
	}
	fmt.Fprint(w, t)
}

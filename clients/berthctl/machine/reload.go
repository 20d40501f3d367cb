package machine

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	nodev1 "github.com/berthd/berth/api/berth/node/v1"
	"github.com/berthd/berth/clients/internal/command"
	"github.com/berthd/berth/clients/internal/table"
)

const reloadLong = `Have berthd read its configuration files again. berthd applies the policy, reserved CPUs that no container has for itself,
access, limits and the log level. The answer lists every field that differs, and why a field needs a restart. A file that
is not valid changes nothing. SIGHUP does the same.`

func Reload(c *command.Ctl) *cobra.Command {
	var dryRun bool
	cmd := c.Verb(command.About{
		Use:     "reload [--dry-run]",
		Short:   "Have berthd read its configuration again",
		Long:    reloadLong,
		Example: "  berthctl reload --dry-run",
	}, func(ctx context.Context, s *command.Session, _ []string) error {
		answer, err := s.Node().Reload(ctx, &nodev1.ReloadRequest{DryRun: dryRun})
		if err != nil {
			return err
		}
		return s.Show(answer, func(w io.Writer) { sayReload(w, answer, dryRun) })
	})
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "print what would change, and change nothing")
	return cmd
}

// sayReload prints the fields that differ.
func sayReload(w io.Writer, r *nodev1.ReloadResponse, dryRun bool) {
	for _, n := range r.GetNotes() {
		fmt.Fprintln(w, "note:", table.Printable(n))
	}
	if len(r.GetChanges()) == 0 {
		fmt.Fprintln(w, "nothing has changed")
		return
	}
	t := table.New("FIELD", "FROM", "TO", "STATUS")
	for _, f := range r.GetChanges() {
		status := f.GetReason()
		switch {
		case f.GetApplied() && dryRun:
			status = "would be applied"
		case f.GetApplied():
			status = "applied"
		}
		t.Row(f.GetField(), f.GetOldValue(), f.GetNewValue(), status)
	}
	fmt.Fprint(w, t)
}

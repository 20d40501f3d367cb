package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	inspectv1 "github.com/berthd/berth/api/berth/inspect/v1"
	"github.com/berthd/berth/clients/berthctl/table"
)

func (c *ctl) getTraces() *cobra.Command {
	req := &inspectv1.ListTracesRequest{}
	cmd := c.verb(about{
		use:   "traces",
		short: "Decisions that berthd remembers, the newest first",
		long: `List the admissions and resizes that berthd remembers, of rejected pods too, the newest first. 'berthctl explain' with
the admission shows one of them.`,
		example: `  berthctl get traces --refused
  berthctl get traces -n shop --reason TopologyAffinityError`,
	}, func(ctx context.Context, s *session, _ []string) error {
		all := &inspectv1.ListTracesResponse{}
		for {
			page, err := s.Inspect().ListTraces(ctx, req)
			if err != nil {
				return err
			}
			page.Traces = append(all.GetTraces(), page.GetTraces()...)
			if all, req.PageToken = page, page.GetNextPageToken(); req.GetPageToken() == "" {
				break
			}
		}
		return s.show(all, func(w io.Writer) {
			if len(all.GetTraces()) == 0 {
				fmt.Fprintln(s.err, "no such decision is remembered")
				return
			}
			t := table.New("POD", "ADMITTED", "REASON", "DRY-RUN", "REVISION", "ADMISSION").Wide(s.wide(), "UID", "MESSAGE")
			for _, tr := range all.GetTraces() {
				t.Row(tr.GetNamespace()+"/"+tr.GetName(), yesNo(tr.GetAdmitted()), tr.GetReason(), yesNo(tr.GetDryRun()),
					fmt.Sprint(tr.GetRevision()), tr.GetAdmissionId(), tr.GetPodUid(), oneLine(tr.GetMessage()))
			}
			fmt.Fprint(w, t)
		})
	})
	f := cmd.Flags()
	f.StringVarP(&req.Namespace, "namespace", "n", "", "only pods of this namespace")
	f.StringVar(&req.Name, "name", "", "only pods of this name")
	f.StringVar(&req.PodUid, "uid", "", "only the pod with this uid")
	f.StringVar(&req.Reason, "reason", "", "only decisions with this reason, such as TopologyAffinityError")
	f.BoolVar(&req.Refused, "refused", false, "only pods that were rejected or deferred")
	return cmd
}

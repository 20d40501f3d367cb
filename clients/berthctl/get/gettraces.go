package get

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	inspectv1 "github.com/berthd/berth/api/berth/inspect/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/clients/berth"
	"github.com/berthd/berth/clients/internal/command"
	"github.com/berthd/berth/clients/internal/table"
)

// traceFilter is the flags of verbs that list decisions.
type traceFilter struct {
	command.Namespaces
	request inspectv1.ListTracesRequest
}

func (f *traceFilter) flags(cmd *cobra.Command) {
	f.Namespaces.Flags(cmd.Flags(), "only pods of this namespace")
	cmd.Flags().StringVar(&f.request.Name, "name", "", "only pods of this name")
	cmd.Flags().StringVar(&f.request.PodUid, "uid", "", "only the pod with this uid")
	cmd.Flags().StringVar(&f.request.Reason, "reason", "", "only decisions with this reason, such as TopologyAffinityError")
}

// traces lists the decisions that match.
func traces(ctx context.Context, s *command.Session, verb string, f *traceFilter) (*inspectv1.ListTracesResponse, error) {
	if err := f.Check(verb); err != nil {
		return nil, err
	}
	f.request.Namespace = f.Namespace
	return s.AllTraces(ctx, &f.request)
}

// decided returns when a decision was made.
func decided(t *typesv1.Trace) string {
	if t.GetDecideTime() == nil {
		return ""
	}
	return t.GetDecideTime().AsTime().Format(time.RFC3339)
}

func getTraces(c *command.Ctl) *cobra.Command {
	var f traceFilter
	cmd := c.Lister(command.About{
		Use:   "traces",
		Short: "Decisions that berthd remembers, the newest first",
		Long: `List the admissions and resizes that berthd remembers, of rejected pods too, the newest first. 'berthctl explain' with
the admission shows one of them.`,
		Example: `  berthctl get traces --refused
  berthctl get traces -n shop --reason TopologyAffinityError`,
	}, false, func(ctx context.Context, s *command.Session, _ []string) (*command.Listing, error) {
		all, err := traces(ctx, s, "get traces", &f)
		if err != nil {
			return nil, err
		}
		t := table.New("POD", "ADMITTED", "REASON", "DRY-RUN", "REVISION", "ADMISSION").Wide(s.Wide(), "TIME", "UID",
			"MESSAGE").Key("ADMISSION")
		for _, tr := range all.GetTraces() {
			t.Row(tr.GetNamespace()+"/"+tr.GetName(), command.YesNo(tr.GetAdmitted()), tr.GetReason(), command.YesNo(tr.GetDryRun()),
				fmt.Sprint(tr.GetRevision()), tr.GetAdmissionId(), decided(tr), tr.GetPodUid(), command.OneLine(tr.GetMessage()))
		}
		return &command.Listing{Answer: all, Tables: []command.Section{{Table: t}}, None: "no such decision is remembered"}, nil
	})
	f.flags(cmd)
	cmd.Flags().BoolVar(&f.request.Refused, "refused", false, "only pods that were rejected or deferred")
	return cmd
}

func getRejections(c *command.Ctl) *cobra.Command {
	var f traceFilter
	f.request.Refused = true
	cmd := c.Lister(command.About{
		Use:   "rejections",
		Short: "Pods that were rejected or deferred: when, why, and what was missing",
		Long: `List the rejected and deferred pods that berthd remembers, the newest first. MISSING has what 'berthctl
explain' has of it: the shortages of each NUMA node with their holders, or without any the reason. 'berthctl explain' with the
pod or the admission shows all.`,
		Example: `  berthctl get rejections
  berthctl get rejections -n shop -o wide`,
	}, false, func(ctx context.Context, s *command.Session, _ []string) (*command.Listing, error) {
		all, err := traces(ctx, s, "get rejections", &f)
		if err != nil {
			return nil, err
		}
		t := table.New("TIME", "POD", "REASON", "MISSING").Wide(s.Wide(), "DRY-RUN", "ADMISSION", "UID", "MESSAGE").Key("ADMISSION")
		for i, tr := range all.GetTraces() {
			if s.ForPrograms() {
				// A list has no steps. A trace that was dropped since the list was made has none.
				whole, err := s.Inspect().GetTrace(ctx,
					&inspectv1.GetTraceRequest{Subject: &inspectv1.GetTraceRequest_AdmissionId{AdmissionId: tr.GetAdmissionId()}})
				switch {
				case err == nil:
					all.Traces[i] = whole.GetTrace()
				case !berth.IsNotFound(err):
					return nil, err
				}
			}
			reason := cmp.Or(tr.GetReason(), "deferred")
			missing := cmp.Or(strings.Join(tr.GetMissing(), "; "), tr.GetMessage())
			t.Row(decided(tr), tr.GetNamespace()+"/"+tr.GetName(), reason, command.OneLine(missing), command.YesNo(tr.GetDryRun()),
				tr.GetAdmissionId(),
				tr.GetPodUid(), command.OneLine(tr.GetMessage()))
		}
		return &command.Listing{Answer: all, Tables: []command.Section{{Table: t}}, None: "no rejection is remembered"}, nil
	})
	f.flags(cmd)
	return cmd
}

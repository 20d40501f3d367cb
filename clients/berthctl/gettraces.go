package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	inspectv1 "github.com/berthd/berth/api/berth/inspect/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/clients/berth"
	"github.com/berthd/berth/clients/berthctl/table"
)

// traceFilter is the flags of verbs that list decisions.
type traceFilter struct {
	namespaces
	request inspectv1.ListTracesRequest
}

func (f *traceFilter) flags(cmd *cobra.Command) {
	f.namespaces.flags(cmd.Flags(), "only pods of this namespace")
	cmd.Flags().StringVar(&f.request.Name, "name", "", "only pods of this name")
	cmd.Flags().StringVar(&f.request.PodUid, "uid", "", "only the pod with this uid")
	cmd.Flags().StringVar(&f.request.Reason, "reason", "", "only decisions with this reason, such as TopologyAffinityError")
}

// traces lists the decisions that match.
func (s *session) traces(ctx context.Context, verb string, f *traceFilter) (*inspectv1.ListTracesResponse, error) {
	if err := f.check(verb); err != nil {
		return nil, err
	}
	f.request.Namespace = f.namespace
	return s.allTraces(ctx, &f.request)
}

func (s *session) allTraces(ctx context.Context, req *inspectv1.ListTracesRequest) (*inspectv1.ListTracesResponse, error) {
	all := &inspectv1.ListTracesResponse{}
	for {
		page, err := s.Inspect().ListTraces(ctx, req)
		if err != nil {
			return nil, err
		}
		page.Traces = append(all.GetTraces(), page.GetTraces()...)
		if all, req.PageToken = page, page.GetNextPageToken(); req.GetPageToken() == "" {
			return all, nil
		}
	}
}

// decided spells when a decision was made.
func decided(t *typesv1.Trace) string {
	if t.GetDecideTime() == nil {
		return ""
	}
	return t.GetDecideTime().AsTime().Format(time.RFC3339)
}

func (c *ctl) getTraces() *cobra.Command {
	var f traceFilter
	cmd := c.lister(about{
		use:   "traces",
		short: "Decisions that berthd remembers, the newest first",
		long: `List the admissions and resizes that berthd remembers, of rejected pods too, the newest first. 'berthctl explain' with
the admission shows one of them.`,
		example: `  berthctl get traces --refused
  berthctl get traces -n shop --reason TopologyAffinityError`,
	}, false, func(ctx context.Context, s *session, _ []string) (*listing, error) {
		all, err := s.traces(ctx, "get traces", &f)
		if err != nil {
			return nil, err
		}
		t := table.New("POD", "ADMITTED", "REASON", "DRY-RUN", "REVISION", "ADMISSION").Wide(s.wide(), "TIME", "UID", "MESSAGE").Key("ADMISSION")
		for _, tr := range all.GetTraces() {
			t.Row(tr.GetNamespace()+"/"+tr.GetName(), yesNo(tr.GetAdmitted()), tr.GetReason(), yesNo(tr.GetDryRun()),
				fmt.Sprint(tr.GetRevision()), tr.GetAdmissionId(), decided(tr), tr.GetPodUid(), oneLine(tr.GetMessage()))
		}
		return &listing{answer: all, tables: []section{{table: t}}, none: "no such decision is remembered"}, nil
	})
	f.flags(cmd)
	cmd.Flags().BoolVar(&f.request.Refused, "refused", false, "only pods that were rejected or deferred")
	return cmd
}

func (c *ctl) getRejections() *cobra.Command {
	var f traceFilter
	f.request.Refused = true
	cmd := c.lister(about{
		use:   "rejections",
		short: "Pods that were rejected or deferred: when, why, and what was missing",
		long: `List the rejected and deferred pods that berthd remembers, the newest first. MISSING has each resource of which there
was not enough, with the amounts that were needed and free. 'berthctl explain' with the pod or the admission shows all.`,
		example: `  berthctl get rejections
  berthctl get rejections -n shop -o wide`,
	}, false, func(ctx context.Context, s *session, _ []string) (*listing, error) {
		all, err := s.traces(ctx, "get rejections", &f)
		if err != nil {
			return nil, err
		}
		t := table.New("TIME", "POD", "REASON", "MISSING").Wide(s.wide(), "DRY-RUN", "ADMISSION", "UID", "MESSAGE").Key("ADMISSION")
		for i, tr := range all.GetTraces() {
			// A list has no steps. A trace that was dropped since the list was made has none.
			whole, err := s.Inspect().GetTrace(ctx, &inspectv1.GetTraceRequest{Subject: &inspectv1.GetTraceRequest_AdmissionId{AdmissionId: tr.GetAdmissionId()}})
			switch {
			case err == nil:
				all.Traces[i] = whole.GetTrace()
			case !berth.IsNotFound(err):
				return nil, err
			}
			tr = all.GetTraces()[i]
			reason := tr.GetReason()
			if reason == "" {
				reason = "deferred"
			}
			t.Row(decided(tr), tr.GetNamespace()+"/"+tr.GetName(), reason, missingText(tr), yesNo(tr.GetDryRun()), tr.GetAdmissionId(),
				tr.GetPodUid(), oneLine(tr.GetMessage()))
		}
		return &listing{answer: all, tables: []section{{table: t}}, none: "no rejection is remembered"}, nil
	})
	f.flags(cmd)
	return cmd
}

// missingText describes the missing resources for a cell: each once, with its largest shortage.
func missingText(t *typesv1.Trace) string {
	var order []string
	least := map[string]*typesv1.Shortage{}
	for _, s := range shortages(t) {
		have, seen := least[s.GetResource()]
		if !seen {
			order = append(order, s.GetResource())
		}
		if !seen || s.GetFree() < have.GetFree() {
			least[s.GetResource()] = s
		}
	}
	var out []string
	for _, name := range order {
		s := least[name]
		amount := func(n uint64) string { return amountOf(name, n) }
		out = append(out, fmt.Sprintf("%s: %s needed, %s free", name, amount(s.GetNeed()), amount(s.GetFree())))
	}
	return strings.Join(out, "; ")
}

package get

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/protobuf/types/known/timestamppb"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	inspectv1 "github.com/berthd/berth/api/berth/inspect/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/api/sentences"
	"github.com/berthd/berth/clients/internal/command"
	"github.com/berthd/berth/clients/internal/table"
)

const historyLong = `List the calls that changed something on this machine, and those that were refused, the newest first: who called, about
which pod, and what berthd decided. Dry runs and calls that only read are not recorded. Of the refusals of one user at
most 10 are recorded in a second; the others are counted.

A time is an age such as 10m, or a time such as 2026-11-20T03:00:00Z. CALLER is the name of the process and its user.`

const historyExample = `  berthctl history
  berthctl history default/web --since 24h
  berthctl history --verdict rejected --since 2026-11-20T02:50:00Z --until 2026-11-20T03:10:00Z
  berthctl history -o json | jq '.items[] | select(.call == "Admit") | .request | fromjson'`

// historyFilter is the flags that select entries of the history.
type historyFilter struct {
	command.Namespaces
	verdict, caller, call, reason string
	since, until                  string
	limit                         int
}

func (f *historyFilter) declare(cmd *cobra.Command) {
	fs := cmd.Flags()
	f.Namespaces.Flags(fs, "only pods of this namespace")
	fs.StringVar(&f.verdict, "verdict", "", "only calls with this verdict: "+strings.Join(verdictNames(), ", "))
	command.Choices(cmd, "verdict", verdictNames()...)
	fs.StringVar(&f.caller, "caller", "", "only calls of this user, by number, or of processes with this name")
	fs.StringVar(&f.call, "call", "", "only these calls, such as Admit, RemovePod or Start")
	fs.StringVar(&f.reason, "reason", "", "only refusals with this reason, such as TopologyAffinityError")
	f.times(fs)
	fs.IntVar(&f.limit, "limit", 100, "how many entries to list at most; 0 is no limit")
}

func (f *historyFilter) times(fs *pflag.FlagSet) {
	fs.StringVar(&f.since, "since", "", "only entries since then: an age such as 10m, or a time such as 2026-11-20T03:00:00Z")
	fs.StringVar(&f.until, "until", "", "only entries before then: an age or a time")
}

func verdictNames() []string { return convert.Choices[admissionv1.Verdict]() }

// request returns the request for a page; the pod is still missing.
func (f *historyFilter) request(c *command.Ctl) (*inspectv1.ListHistoryRequest, error) {
	if err := f.Check("history"); err != nil {
		return nil, err
	}
	req := &inspectv1.ListHistoryRequest{Namespace: f.Namespace, Call: f.call, Reason: f.reason, PageSize: 1000}
	if f.verdict != "" {
		if req.Verdict = convert.EnumOf[admissionv1.Verdict](f.verdict); req.GetVerdict() == 0 {
			return nil, command.Usagef("history", "--verdict %s: expected one of %s", f.verdict, strings.Join(verdictNames(), ", "))
		}
	}
	if uid, err := strconv.ParseUint(f.caller, 10, 32); err == nil {
		id := uint32(uid)
		req.CallerUid = &id
	} else {
		req.CallerName = f.caller
	}
	for _, t := range []struct {
		flag, text string
		to         **timestamppb.Timestamp
	}{{"since", f.since, &req.FromTime}, {"until", f.until, &req.UntilTime}} {
		at, err := c.TimeOf("--"+t.flag, t.text)
		if err != nil {
			return nil, command.Usagef("history", "%v", err)
		}
		if !at.IsZero() {
			*t.to = timestamppb.New(at)
		}
	}
	if f.limit < 0 {
		return nil, command.Usagef("history", "--limit %d: expected 0, which is no limit, or more", f.limit)
	}
	return req, nil
}

func History(c *command.Ctl) *cobra.Command {
	var f historyFilter
	cmd := c.Lister(command.About{
		Use:   "history [POD]",
		Short: "Calls that changed something or were refused, the newest first",
		Long:  historyLong, Example: historyExample,
		Args: []string{"[POD]"},
	}, false, func(ctx context.Context, s *command.Session, args []string) (*command.Listing, error) {
		req, err := f.request(s.Ctl)
		if err != nil {
			return nil, err
		}
		all, err := historyOf(ctx, s, req, args, f.limit)
		if err != nil {
			return nil, err
		}
		if n := all.GetOmitted(); n > 0 {
			fmt.Fprintf(s.Err, "since berthd started, %s had no place in the history: a caller had more than 10 in a second, or too many waited for the next change\n", table.Count(int(n), "refusal"))
		}
		if all.GetNextPageToken() != "" {
			fmt.Fprintf(s.Err, "older entries are left out: --limit 0 lists all\n")
		}
		t := table.New("TIME", "CALL", "POD", "VERDICT", "REASON", "CALLER").
			Wide(s.Wide(), "REVISION", "TOOK", "CONTAINER", "ADMISSION", "UID", "MESSAGE").Key("TIME")
		for _, e := range all.GetEntries() {
			pod := e.GetNamespace() + "/" + e.GetName()
			if e.GetName() == "" {
				pod = e.GetPodUid()
			}
			call, caller := e.GetCall(), sentences.Caller(e.GetCaller())
			if e.GetDamage() != "" {
				pod, call, caller = "", "(damaged)", ""
			}
			t.Row(entryTime(e), call, pod, convert.Word(e.GetVerdict()), e.GetReason(), caller,
				fmt.Sprint(e.GetRevision()), tookText(e), e.GetContainerName(), e.GetAdmissionId(), e.GetPodUid(),
				command.OneLine(cmp.Or(e.GetDamage(), e.GetMessage())))
		}
		return &command.Listing{Answer: all, Tables: []command.Section{{Table: t}}, None: "no such call is recorded"}, nil
	})
	f.declare(cmd)
	return cmd
}

// historyOf lists the entries about a pod, by its name or else its uid; without one all.
func historyOf(ctx context.Context, s *command.Session, req *inspectv1.ListHistoryRequest, args []string,
	limit int) (*inspectv1.ListHistoryResponse, error) {
	if len(args) == 0 {
		return historyPages(ctx, s, req, limit)
	}
	namespace, name, whole := strings.Cut(args[0], "/")
	if whole {
		req.Namespace, req.Name = namespace, name
		return historyPages(ctx, s, req, limit)
	}
	req.Name = args[0]
	all, err := historyPages(ctx, s, req, limit)
	if err != nil || len(all.GetEntries()) > 0 {
		return all, err
	}
	req.Name, req.PodUid, req.PageToken = "", args[0], ""
	return historyPages(ctx, s, req, limit)
}

// historyPages reads pages up to a number of entries.
func historyPages(ctx context.Context, s *command.Session, req *inspectv1.ListHistoryRequest, limit int) (*inspectv1.ListHistoryResponse,
	error) {
	all := &inspectv1.ListHistoryResponse{}
	for {
		if limit > 0 {
			req.PageSize = uint32(min(1000, limit-len(all.GetEntries())))
		}
		page, err := s.Inspect().ListHistory(ctx, req)
		if err != nil {
			return nil, err
		}
		page.Entries = append(all.GetEntries(), page.GetEntries()...)
		all, req.PageToken = page, page.GetNextPageToken()
		if req.GetPageToken() == "" || limit > 0 && len(all.GetEntries()) >= limit {
			return all, nil
		}
	}
}

// entryTime returns when something was decided, so that it can be given to --at.
func entryTime(e *inspectv1.HistoryEntry) string {
	if e.GetTime() == nil {
		return fmt.Sprintf("entry %d", e.GetNumber())
	}
	return e.GetTime().AsTime().Format(command.TimeMillis)
}

func tookText(e *inspectv1.HistoryEntry) string {
	if e.GetDuration() == nil {
		return ""
	}
	return e.GetDuration().AsDuration().Round(time.Microsecond).String()
}

package get

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	inspectv1 "github.com/berthd/berth/api/berth/inspect/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/clients/berth"
	"github.com/berthd/berth/clients/berthctl/drawing"
	"github.com/berthd/berth/clients/internal/command"
)

const explainLong = `Explain the last decision about a pod: the answer of each resource manager, the result of the topology policy, the
missing resources and their holders. Decisions about rejected pods are stored, too.

The pod is named by uid, by namespace/name, by the id of the admission, or by its name alone if no other pod has that name.
-o wide prints every step.

claim CLAIM explains the last decision about a claim on dynamic resources, by uid, by namespace/name or by its name alone.`

const explainExample = `  berthctl explain default/web
  berthctl explain 2f1c8a52-0000-4000-8000-000000000001 -o wide
  berthctl explain claim default/train`

func Explain(c *command.Ctl) *cobra.Command {
	var drawn drawing.Flags
	var in command.Namespaces
	cmd := c.Verb(command.About{
		Use:   "explain {POD... | claim CLAIM...}",
		Short: "Explain why pods were admitted or rejected",
		Long:  explainLong, Example: explainExample, Args: []string{"POD..."},
	}, func(ctx context.Context, s *command.Session, args []string) error {
		picture, err := drawn.Options(s.Ctl)
		if err != nil {
			return command.Usagef("explain", "%v", err)
		}
		if err := in.Check("explain"); err != nil {
			return err
		}
		kind := trace
		if len(args) > 1 && args[0] == command.KindOf("claims") {
			kind, args = traceOfClaim, args[1:]
		} else if len(args) > 1 && command.IsPod(args[0]) {
			args = args[1:]
		}
		answers := make([]*inspectv1.GetTraceResponse, len(args))
		for i, what := range args {
			find := kind
			if name := command.WithoutKind(what, "claims"); name != what {
				find, what = traceOfClaim, name
			}
			if answers[i], err = find(ctx, s, in.Pod(what)); err != nil {
				return err
			}
		}
		for i, answer := range answers {
			s.Part(i)
			err = s.Show(answer, func(w io.Writer) {
				explainHead(w, answer.GetTrace())
				ExplainAll(s.Ctl, w, answer.GetTrace())
			})
			if err == nil && drawn.Draw && !s.ForPrograms() {
				err = drawing.ShowExplained(ctx, s, answer.GetTrace(), picture)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	in.Flags(cmd.Flags(), command.InNamespace)
	cmd.ValidArgsFunction = c.Complete([]string{"DECISION..."})
	drawn.Declare(cmd, "draw the NUMA nodes on which something was missing, as they are now")
	return cmd
}

// trace finds a pod's explanation by uid, admission id or name.
func trace(ctx context.Context, s *command.Session, what string) (*inspectv1.GetTraceResponse, error) {
	what = command.WithoutKind(command.WithoutPod(what), "rejections", "traces")
	requests := []*inspectv1.GetTraceRequest{{Subject: &inspectv1.GetTraceRequest_PodUid{PodUid: what}},
		{Subject: &inspectv1.GetTraceRequest_AdmissionId{AdmissionId: what}}}
	if strings.Contains(what, "/") {
		requests = []*inspectv1.GetTraceRequest{{Subject: &inspectv1.GetTraceRequest_PodName{PodName: what}}}
	}
	for _, req := range requests {
		answer, err := s.Inspect().GetTrace(ctx, req)
		if err == nil {
			return answer, nil
		}
		if !berth.IsNotFound(err) && !berth.IsInvalid(err) {
			return nil, err
		}
	}
	if !strings.Contains(what, "/") {
		return traceByName(ctx, s, what)
	}
	return nil, fmt.Errorf("no admission is remembered for %s", what)
}

// traceOfClaim finds the newest explanation of a claim on dynamic resources by uid or name.
func traceOfClaim(ctx context.Context, s *command.Session, what string) (*inspectv1.GetTraceResponse, error) {
	namespace, name, qualified := strings.Cut(what, "/")
	requests := []*inspectv1.ListTracesRequest{{Namespace: namespace, Name: name}}
	if !qualified {
		requests = []*inspectv1.ListTracesRequest{{PodUid: what}, {Name: what}}
	}
	for _, req := range requests {
		all, err := s.AllTraces(ctx, req)
		if err != nil {
			return nil, err
		}
		claims := slices.DeleteFunc(all.GetTraces(), func(t *typesv1.Trace) bool { return !t.GetResourceClaim() })
		for _, t := range claims {
			if other := t.GetNamespace(); other != claims[0].GetNamespace() {
				return nil, fmt.Errorf("several claims are called %s: name one of %[2]s/%[1]s, %[3]s/%[1]s", what,
					claims[0].GetNamespace(), other)
			}
		}
		if len(claims) > 0 { // the newest is the first
			return s.Inspect().GetTrace(ctx,
				&inspectv1.GetTraceRequest{Subject: &inspectv1.GetTraceRequest_AdmissionId{AdmissionId: claims[0].GetAdmissionId()}})
		}
	}
	return nil, fmt.Errorf("no decision about a claim %s is remembered", what)
}

// traceByName finds the newest explanation of the pod with a name, in any namespace.
func traceByName(ctx context.Context, s *command.Session, name string) (*inspectv1.GetTraceResponse, error) {
	all, err := s.AllTraces(ctx, &inspectv1.ListTracesRequest{Name: name})
	if err != nil {
		return nil, err
	}
	var found []string
	for _, t := range all.GetTraces() {
		if qualified := t.GetNamespace() + "/" + t.GetName(); t.GetName() == name && !slices.Contains(found, qualified) {
			found = append(found, qualified)
		}
	}
	switch len(found) {
	case 0:
		return nil, fmt.Errorf("no admission is remembered for %s", name)
	case 1:
		return s.Inspect().GetTrace(ctx, &inspectv1.GetTraceRequest{Subject: &inspectv1.GetTraceRequest_PodName{PodName: found[0]}})
	}
	slices.Sort(found)
	return nil, fmt.Errorf("%d pods are called %s: name one of %s", len(found), name, strings.Join(found, ", "))
}

// explainHead prints the decision.
func explainHead(w io.Writer, t *typesv1.Trace) {
	outcome := "deferred: " + command.OneLine(t.GetMessage())
	switch {
	case t.GetAdmitted():
		outcome = "admitted"
	case t.GetReason() != "":
		outcome = fmt.Sprintf("rejected: %s: %s", t.GetReason(), command.OneLine(t.GetMessage()))
	}
	kind := ""
	if t.GetResourceClaim() {
		kind = "claim "
	}
	fmt.Fprintf(w, "%s%s/%s %s\n", kind, t.GetNamespace(), t.GetName(), outcome)
	fmt.Fprintf(w, "uid %s, admission %s, decided on revision %d\n", t.GetPodUid(), t.GetAdmissionId(), t.GetRevision())
}

// ExplainAll prints the steps of a decision. For a pod that was not admitted it adds the missing
// resources and helpful changes.
func ExplainAll(c *command.Ctl, w io.Writer, t *typesv1.Trace) {
	explainSteps(c, w, t)
	command.ExplainMissing(w, t)
	ExplainHelp(w, t)
}

// explainSteps prints the steps of a decision in order, grouped by container.
func explainSteps(c *command.Ctl, w io.Writer, t *typesv1.Trace) {
	last, starred := "", false
	for _, step := range briefNotes(c, t.GetSteps()) {
		line := stepText(c, step, t)
		if line == "" {
			continue
		}
		if last == "" {
			fmt.Fprintln(w)
		}
		if owner := stepOwner(step); owner != last {
			fmt.Fprintln(w, owner)
			last = owner
		}
		fmt.Fprintf(w, "  %s\n", command.OneLine(line))
		starred = starred || step.GetKind() == typesv1.TraceStepKind_TRACE_STEP_KIND_ANSWERED && strings.Contains(line, star)
	}
	if starred {
		fmt.Fprintln(w, starNote)
	}
}

// shownNotes is how many consecutive notes a narrow explanation prints.
const shownNotes = 2

// briefNotes keeps only the first of consecutive notes. A pod from a file has one note for each
// container whose requests are taken from its limits.
func briefNotes(c *command.Ctl, steps []*typesv1.TraceStep) []*typesv1.TraceStep {
	if c.Wide() {
		return steps
	}
	var out []*typesv1.TraceStep
	for i := 0; i < len(steps); {
		n := 0
		for i+n < len(steps) && steps[i+n].GetKind() == typesv1.TraceStepKind_TRACE_STEP_KIND_NOTED &&
			stepOwner(steps[i+n]) == stepOwner(steps[i]) {
			n++
		}
		if n <= shownNotes+1 {
			out = append(out, steps[i:i+max(n, 1)]...)
			i += max(n, 1)
			continue
		}
		out = append(out, steps[i:i+shownNotes]...)
		out = append(out, &typesv1.TraceStep{
			Kind: typesv1.TraceStepKind_TRACE_STEP_KIND_NOTED, ContainerName: steps[i].GetContainerName(),
			Text: fmt.Sprintf("and %d more, which -o wide shows", n-shownNotes),
		})
		i += n
	}
	return out
}

// stepOwner names what a step is about.
func stepOwner(s *typesv1.TraceStep) string {
	if s.GetContainerName() == "" {
		return "pod"
	}
	return "container " + s.GetContainerName()
}

// star marks preferred placements.
const star = "*"

// starNote explains the mark.
const starNote = star + " preferred: no smaller set of nodes could do"

// stepText is a step in a line; empty if it is not printed.
func stepText(c *command.Ctl, s *typesv1.TraceStep, t *typesv1.Trace) string {
	switch s.GetKind() {
	case typesv1.TraceStepKind_TRACE_STEP_KIND_NOTED, typesv1.TraceStepKind_TRACE_STEP_KIND_REPLANNED:
		return "note: " + s.GetText()
	case typesv1.TraceStepKind_TRACE_STEP_KIND_ANSWERED:
		return stepAnswer(s)
	case typesv1.TraceStepKind_TRACE_STEP_KIND_MERGED:
		return "merge: " + s.GetText() + losers(c, s)
	case typesv1.TraceStepKind_TRACE_STEP_KIND_PLANNED:
		return s.GetProvider() + " gives " + command.ClaimText(s.GetClaim())
	case typesv1.TraceStepKind_TRACE_STEP_KIND_REFUSED:
		return refusedText(s, t)
	}
	if !c.Wide() {
		return ""
	}
	line := convert.Word(s.GetKind())
	if s.GetProvider() != "" {
		line += " by " + s.GetProvider()
	}
	if s.GetResource() != "" && s.GetResource() != s.GetProvider() {
		line += ", " + s.GetResource()
	}
	if s.GetText() != "" {
		line += ": " + s.GetText()
	}
	return line
}

// refusedText names the refusing provider. The provider's message is added only if the head does
// not have it.
func refusedText(s *typesv1.TraceStep, t *typesv1.Trace) string {
	if s.GetProvider() == "" {
		return ""
	}
	text := s.GetProvider() + " refuses"
	if s.GetResource() != "" && s.GetResource() != s.GetProvider() {
		text += " over " + s.GetResource()
	}
	if s.GetText() != t.GetMessage() {
		text += ": " + s.GetText()
	}
	return text
}

// stepAnswer describes a provider's answer.
func stepAnswer(s *typesv1.TraceStep) string {
	who := s.GetProvider() + " offers"
	if s.GetResource() != s.GetProvider() {
		who += " " + s.GetResource()
	}
	switch s.GetAnswer() {
	case typesv1.TopologyHintsKind_TOPOLOGY_HINTS_KIND_NO_PREFERENCE:
		return who + " on any node"
	case typesv1.TopologyHintsKind_TOPOLOGY_HINTS_KIND_IMPOSSIBLE:
		return strings.Replace(who, "offers", "cannot serve", 1) + ": " + s.GetText()
	case typesv1.TopologyHintsKind_TOPOLOGY_HINTS_KIND_CAPACITY_CONSTRAINT:
		if len(s.GetHints()) == 0 {
			return who + " on " + s.GetText()
		}
		return who + " on " + s.GetText() + ": " + offers(s.GetHints(), int(s.GetOmitted()))
	}
	return who + " on " + offers(s.GetHints(), int(s.GetOmitted()))
}

// offers returns a list of placements.
func offers(hints []*typesv1.TopologyHint, omitted int) string {
	var list []string
	for _, h := range hints {
		text := "{" + command.HintText(h) + "}"
		if h.GetPreferred() {
			text += star
		}
		list = append(list, text)
	}
	text := "nodes " + strings.Join(list, ", ")
	if omitted > 0 {
		text += fmt.Sprintf(" and %d more", omitted)
	}
	return text
}

// losers describes the rejected combinations of a merge, in the wide format.
func losers(c *command.Ctl, s *typesv1.TraceStep) string {
	if !c.Wide() || len(s.GetHints()) == 0 {
		return ""
	}
	return "; lost: " + offers(s.GetHints(), int(s.GetOmitted()))
}

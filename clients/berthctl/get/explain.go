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
	"github.com/berthd/berth/api/sentences"
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
	return nil, noDecision(ctx, s, what)
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
		return nil, noDecision(ctx, s, name)
	case 1:
		return s.Inspect().GetTrace(ctx, &inspectv1.GetTraceRequest{Subject: &inspectv1.GetTraceRequest_PodName{PodName: found[0]}})
	}
	slices.Sort(found)
	return nil, fmt.Errorf("%d pods are called %s: name one of %s", len(found), name, strings.Join(found, ", "))
}

// noDecision is the error about a pod of which nothing is remembered, with the similar names of those of which something is.
func noDecision(ctx context.Context, s *command.Session, pod string) error {
	unknown := &command.UnknownPodError{Pod: pod, Decision: true}
	if all, err := s.AllTraces(ctx, &inspectv1.ListTracesRequest{}); err == nil {
		var names []string
		for _, t := range all.GetTraces() {
			names = append(names, t.GetNamespace()+"/"+t.GetName())
		}
		unknown = unknown.Similar(names)
	}
	return unknown
}

// explainHead prints the decision.
func explainHead(w io.Writer, t *typesv1.Trace) {
	kind := ""
	if t.GetResourceClaim() {
		kind = "claim "
	}
	fmt.Fprintf(w, "%s%s/%s %s\n", kind, t.GetNamespace(), t.GetName(), command.OneLine(sentences.Outcome(t)))
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
	parts, starred := sentences.Steps(t, briefNotes(c, t.GetSteps()), c.Wide())
	if len(parts) > 0 {
		fmt.Fprintln(w)
	}
	for _, part := range parts {
		fmt.Fprintln(w, part.Owner)
		for _, line := range part.Steps {
			fmt.Fprintf(w, "  %s\n", command.OneLine(line))
		}
	}
	if starred {
		fmt.Fprintln(w, sentences.StarNote)
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
			steps[i+n].GetContainerName() == steps[i].GetContainerName() {
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

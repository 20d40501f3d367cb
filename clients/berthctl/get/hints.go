package get

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	topologyv1 "github.com/berthd/berth/api/berth/topology/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/sentences"
	"github.com/berthd/berth/clients/internal/command"
	"github.com/berthd/berth/clients/internal/output"
	"github.com/berthd/berth/managers/workload"
)

const hintsLong = `Show the topology hints of every resource manager for a pod, and the result of the topology policy. Nothing is changed.
The allocations of earlier containers of the same pod are not taken into account; 'admit --dry-run --explain' does that.

With scope "pod" the hints are for the whole pod, otherwise for each container. -o wide lists every hint.`

func Hints(c *command.Ctl) *cobra.Command {
	var m command.Manifest
	cmd := c.Verb(command.About{
		Use:   "hints -f FILE",
		Short: "Show where a pod could be placed",
		Long:  hintsLong,
		Example: `  berthctl hints -f pod.yaml
  berthctl hints -f pod.yaml -o json | jq '.rounds[].merged'`,
	}, func(ctx context.Context, s *command.Session, _ []string) error {
		if len(m.Files) == 0 {
			return command.Usagef("hints", "-f is missing")
		}
		m.GenerateUID = true
		pod, err := m.One(ctx, s.Ctl)
		if err != nil {
			return err
		}
		policy, err := s.Topology().GetPolicy(ctx, &topologyv1.GetPolicyRequest{})
		if err != nil {
			return err
		}
		rounds, err := hintsOf(ctx, s, pod, policy)
		if err != nil {
			return err
		}
		warnUnprovided(s.Ctl, pod, rounds)
		if s.ForPrograms() {
			return printRounds(s, policy, rounds)
		}
		return s.Say(func(w io.Writer) {
			fmt.Fprintf(w, "policy %s, scope %s%s\n", policy.GetPolicy(), policy.GetScope(), command.Options(policy.GetOptions()))
			for _, r := range rounds {
				r.write(w, s.Wide())
			}
			if slices.ContainsFunc(rounds, round.prefers) {
				fmt.Fprintf(w, "\n%s\n", sentences.StarNote)
			}
		})
	})
	m.ReadFlags(cmd.Flags())
	return cmd
}

// round is one question: the answers of all providers, and what the policy makes of them.
type round struct {
	// container is empty where the question is about the pod as a whole.
	container string
	answers   *topologyv1.MergeRequest
	merged    *topologyv1.MergeResponse
}

// hintsOf gets the hints for a pod, or for each of its containers, depending on the policy's scope.
func hintsOf(ctx context.Context, s *command.Session, pod *typesv1.Pod, policy *topologyv1.GetPolicyResponse) ([]round, error) {
	containers := []string{""}
	if policy.GetScope() != "pod" {
		containers = nil
		for _, list := range [][]*typesv1.Container{pod.GetSpec().GetInitContainers(), pod.GetSpec().GetContainers()} {
			for _, c := range list {
				containers = append(containers, c.GetName())
			}
		}
	}
	var rounds []round
	for _, name := range containers {
		hints, err := s.Topology().GetHints(ctx, &topologyv1.GetHintsRequest{Pod: pod, ContainerName: name})
		if err != nil {
			return nil, err
		}
		r := round{container: name, answers: &topologyv1.MergeRequest{Providers: hints.GetProviders()}}
		if r.merged, err = s.Topology().Merge(ctx, r.answers); err != nil {
			return nil, err
		}
		rounds = append(rounds, r)
	}
	return rounds, nil
}

// warnUnprovided warns of devices without an answer of any provider.
func warnUnprovided(c *command.Ctl, pod *typesv1.Pod, rounds []round) {
	for _, name := range Extended(pod) {
		answered := slices.ContainsFunc(rounds, func(r round) bool {
			return slices.ContainsFunc(r.answers.GetProviders(), func(p *topologyv1.ProviderHints) bool {
				return slices.ContainsFunc(p.GetTopologyHints(), func(a *typesv1.TopologyHints) bool { return a.GetResource() == name })
			})
		})
		if !answered {
			c.Warn("pod %s/%s requests %s, which has no provider here", pod.GetMetadata().GetNamespace(),
				pod.GetMetadata().GetName(), name)
		}
	}
}

// Extended lists the extended resources that a pod requests.
func Extended(pod *typesv1.Pod) []string {
	names := map[string]bool{}
	for _, list := range [][]*typesv1.Container{pod.GetSpec().GetInitContainers(), pod.GetSpec().GetContainers()} {
		for _, c := range list {
			for name := range c.GetResources().GetLimits() {
				if workload.Resource(name).IsExtended() {
					names[name] = true
				}
			}
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// write prints a round for people, with all placements or the first of each answer.
func (r round) write(w io.Writer, all bool) {
	fmt.Fprintf(w, "\n%s\n", sentences.Owner(r.container))
	for _, p := range r.answers.GetProviders() {
		if len(p.GetTopologyHints()) == 0 {
			fmt.Fprintf(w, "  %s is not concerned\n", p.GetProvider())
		}
		for _, a := range p.GetTopologyHints() {
			fmt.Fprintf(w, "  %s\n", answerText(p.GetProvider(), a, all))
		}
	}
	fmt.Fprintf(w, "  merge: %s\n", command.OneLine(r.merged.GetExplanation()))
}

// prefers reports whether any placement in a round is preferred.
func (r round) prefers() bool {
	return slices.ContainsFunc(r.answers.GetProviders(), func(p *topologyv1.ProviderHints) bool {
		return slices.ContainsFunc(p.GetTopologyHints(), func(a *typesv1.TopologyHints) bool {
			return slices.ContainsFunc(a.GetHints(), (*typesv1.TopologyHint).GetPreferred)
		})
	})
}

// shownHints is how many placements of an answer a narrow list has, as the explanation of an admission.
const shownHints = 8

// answerText describes a provider's answer.
func answerText(provider string, a *typesv1.TopologyHints, all bool) string {
	switch a.GetKind() {
	case typesv1.TopologyHintsKind_TOPOLOGY_HINTS_KIND_IMPOSSIBLE:
		return sentences.Answer(&typesv1.TraceStep{Provider: provider, Resource: a.GetResource(),
			Answer: typesv1.TopologyHintsKind_TOPOLOGY_HINTS_KIND_IMPOSSIBLE, Text: a.GetReason()})
	case typesv1.TopologyHintsKind_TOPOLOGY_HINTS_KIND_NO_PREFERENCE:
		return sentences.Answer(&typesv1.TraceStep{Provider: provider, Resource: a.GetResource(),
			Answer: typesv1.TopologyHintsKind_TOPOLOGY_HINTS_KIND_NO_PREFERENCE})
	}
	step := &typesv1.TraceStep{Provider: provider, Resource: a.GetResource(),
		Answer: typesv1.TopologyHintsKind_TOPOLOGY_HINTS_KIND_OPTIONS, Hints: a.GetHints()}
	if more := len(step.Hints) - shownHints; more > 0 && !all {
		step.Hints, step.Omitted = step.Hints[:shownHints], int32(more)
	}
	return sentences.Answer(step)
}

// printRounds prints for programs: messages under the names of the calls that they belong to.
func printRounds(s *command.Session, policy *topologyv1.GetPolicyResponse, rounds []round) error {
	type hintRound struct {
		Container string          `json:"container,omitempty"`
		Answers   json.RawMessage `json:"answers"`
		Merged    json.RawMessage `json:"merged"`
	}
	var out struct {
		Policy json.RawMessage `json:"policy"`
		Rounds []hintRound     `json:"rounds"`
	}
	var err error
	put := func(m proto.Message) json.RawMessage {
		raw, merr := output.JSON(m)
		if merr != nil {
			err = merr
		}
		return raw
	}
	out.Policy = put(policy)
	for _, r := range rounds {
		out.Rounds = append(out.Rounds, hintRound{r.container, put(r.answers), put(r.merged)})
	}
	if err != nil {
		return err
	}
	raw, err := json.Marshal(out)
	if err != nil {
		return fmt.Errorf("print the answer: %w", err)
	}
	return s.Print("HintRounds", raw)
}

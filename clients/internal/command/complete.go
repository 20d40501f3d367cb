package command

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	devicev1 "github.com/berthd/berth/api/berth/device/v1"
	inspectv1 "github.com/berthd/berth/api/berth/inspect/v1"
)

// completionTime limits the delay after the tab key.
const completionTime = 2 * time.Second

// Complete completes arguments by their names with what berthd has; files stay what a shell completes by itself.
func (c *Ctl) Complete(names []string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		what := argument(names, len(args))
		if what == "" {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		if what == "FILE" || what == "SOCKET" {
			return nil, cobra.ShellCompDirectiveDefault
		}
		c.Timeout = completionTime
		var out []cobra.Completion
		// An error during completion would only disturb the command line.
		_ = c.Connected(cmd.Context(), func(ctx context.Context, s *Session) (err error) {
			out, err = s.candidates(ctx, what, args)
			out = slices.DeleteFunc(out, func(word string) bool { return !isWord(word) })
			return err
		})
		return out, cobra.ShellCompDirectiveNoFileComp
	}
}

// isWord reports whether a shell and a terminal take a word for nothing else.
func isWord(word string) bool {
	return !strings.ContainsFunc(word, func(r rune) bool {
		return r > '~' || r <= ' ' || strings.ContainsRune("$`\"'\\;&|<>(){}[]*?!#~", r)
	})
}

// candidates lists what an argument may be, given those before it.
func (s *Session) candidates(ctx context.Context, what string, before []string) (out []cobra.Completion, err error) {
	switch what {
	case "DECISION":
		all, err := s.AllTraces(ctx, &inspectv1.ListTracesRequest{})
		if err != nil {
			return nil, err
		}
		for _, t := range all.GetTraces() {
			if name := t.GetNamespace() + "/" + t.GetName(); !slices.Contains(out, name) {
				out = append(out, name)
			}
		}
	case "POD", "NAMESPACE/NAME":
		list, err := s.Allocation().List(ctx, &allocationv1.ListRequest{})
		if err != nil {
			return nil, err
		}
		for _, p := range list.GetPods() {
			out = append(out, PodName(p))
		}
	case "CONTAINER":
		pod, err := s.Find(ctx, before[0])
		if err != nil {
			return nil, err
		}
		for _, a := range pod.GetContainers() {
			out = append(out, a.GetContainerName())
		}
	case "RESOURCE":
		list, err := s.Device().ListResources(ctx, &devicev1.ListResourcesRequest{})
		if err != nil {
			return nil, err
		}
		for _, r := range list.GetResources() {
			out = append(out, r.GetName())
		}
	}
	return out, nil
}

// Choices completes a flag with the few values that it may have.
func Choices(cmd *cobra.Command, flag string, values ...string) {
	_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
}

// ChoosePolicies completes the flags that name policies.
func ChoosePolicies(cmd *cobra.Command, topology, scope, planning, cpu string) {
	Choices(cmd, topology, "none", "best-effort", "restricted", "single-numa-node")
	Choices(cmd, scope, "container", "pod")
	Choices(cmd, planning, "container", "pod")
	Choices(cmd, cpu, "none", "static")
}

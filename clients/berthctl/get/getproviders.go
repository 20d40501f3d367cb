package get

import (
	"context"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	hintv1 "github.com/berthd/berth/api/berth/hint/v1"
	"github.com/berthd/berth/clients/internal/command"
	"github.com/berthd/berth/clients/internal/table"
)

func getProviders(c *command.Ctl) *cobra.Command {
	return c.Lister(command.About{
		Use:   "providers",
		Short: "Hint providers, in the order of their calls",
		Long: `List the hint providers in the order in which berthd calls them: the managers inside berthd, and external providers. A
failure of a required provider rejects the pod; a failure of an advisory provider does not. A suspended provider has
failed three times in a row and is not called for a while. LEASES are admissions that it has not confirmed yet. MESSAGE is
the reason of the state, or the last failure.`,
		Example: `  berthctl get providers
  berthctl get providers -o wide`,
	}, false, func(ctx context.Context, s *command.Session, _ []string) (*command.Listing, error) {
		list, err := s.HintBus().ListProviders(ctx, &hintv1.ListProvidersRequest{})
		if err != nil {
			return nil, err
		}
		t := table.New("ORDER", "NAME", "KIND", "MODE", "STATE", "LEASES", "RESOURCES", "MESSAGE").
			Wide(s.Wide(), "DEADLINE", "INDEX", "ENDPOINT", "ADMISSIONS").Key("NAME")
		for i, p := range list.GetProviders() {
			t.Row(append([]string{strconv.Itoa(i + 1), p.GetName()}, providerCells(s.Ctl, p)...)...)
		}
		return &command.Listing{Answer: list, Tables: []command.Section{{Table: t}}}, nil
	})
}

// providerCells returns all of a provider but its name. Much of it is nothing to a
// built-in one.
func providerCells(c *command.Ctl, p *hintv1.Provider) []string {
	if p.GetBuiltIn() {
		return []string{"built-in", command.Word(p.GetMode(), "MODE_")}
	}
	var admissions []string
	for _, l := range p.GetLeases() {
		left := l.GetExpireTime().AsTime().Sub(c.Now())
		admissions = append(admissions, l.GetAdmissionId()+" for "+table.Age(left))
	}
	deadline, index := "", ""
	if d := p.GetDeadline(); d != nil {
		deadline, index = d.AsDuration().Round(time.Millisecond).String(), strconv.Itoa(int(p.GetIndex()))
	}
	return []string{
		"external", command.Word(p.GetMode(), "MODE_"), command.Word(p.GetState(), "STATE_"), strconv.Itoa(len(p.GetLeases())),
		resourcesOf(p), p.GetMessage(), deadline, index, p.GetEndpoint(), command.Joined(admissions),
	}
}

// resourcesOf names the resources of an external provider, or any.
func resourcesOf(p *hintv1.Provider) string {
	if len(p.GetResources()) == 0 {
		return "any"
	}
	return command.Joined(p.GetResources())
}

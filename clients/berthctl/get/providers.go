package get

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	hintv1 "github.com/berthd/berth/api/berth/hint/v1"
	"github.com/berthd/berth/clients/internal/command"
)

const providersRemoveLong = `End the registration of a hint provider. berthd does not call it any more, and drops the reservations that it has not
confirmed. Pods keep what they hold. The provider may register again: to prevent that, take the role provider from its
user (access in berthd's configuration) and reload. That ends all registrations of the user, too.

Root and users with the role admin end any registration, other users those of their own.`

func Providers(c *command.Ctl) *cobra.Command {
	list := getProviders(c)
	list.AddCommand(providersRemove(c))
	return list
}

func providersRemove(c *command.Ctl) *cobra.Command {
	return c.Verb(command.About{
		Use:     "remove NAME",
		Short:   "End the registration of a hint provider",
		Long:    providersRemoveLong,
		Example: `  berthctl providers remove power`,
		Args:    []string{"NAME"},
	}, func(ctx context.Context, s *command.Session, args []string) error {
		answer, err := s.HintBus().Unregister(ctx, &hintv1.UnregisterRequest{Provider: args[0]})
		if err != nil {
			return err
		}
		return s.Show(answer, func(w io.Writer) { fmt.Fprintf(w, "provider %s is removed\n", args[0]) })
	})
}

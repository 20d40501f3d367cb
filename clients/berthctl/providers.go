package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	hintv1 "github.com/berthd/berth/api/berth/hint/v1"
)

const providersRemoveLong = `End the registration of a hint provider. berthd does not call it any more, and drops the reservations that it has not
confirmed. Pods keep what they hold. The provider may register again: to prevent that, take the role provider from its
user (access in berthd's configuration) and reload. That ends all registrations of the user, too.

Root and users with the role admin end any registration, other users those of their own.`

func (c *ctl) providers() *cobra.Command {
	list := c.getProviders()
	list.AddCommand(c.providersRemove())
	return list
}

func (c *ctl) providersRemove() *cobra.Command {
	return c.verb(about{
		use:     "remove NAME",
		short:   "End the registration of a hint provider",
		long:    providersRemoveLong,
		example: `  berthctl providers remove power`,
		args:    []string{"NAME"},
	}, func(ctx context.Context, s *session, args []string) error {
		answer, err := s.HintBus().Unregister(ctx, &hintv1.UnregisterRequest{Provider: args[0]})
		if err != nil {
			return err
		}
		return s.show(answer, func(w io.Writer) { fmt.Fprintf(w, "provider %s is removed\n", args[0]) })
	})
}

package command

import (
	"fmt"
	"strconv"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
)

// OfPast gives a verb the flag --at. It shows the state as it was then.
func (c *Ctl) OfPast(cmd *cobra.Command) *cobra.Command {
	var at string
	cmd.Flags().StringVar(&at, "at", "", "show a past state: an age such as 10m, a time such as 2026-11-20T03:00:00Z, or a revision")
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) (err error) {
		if at == "" {
			return nil
		}
		for _, other := range []string{"watch", "changes"} {
			if f := cmd.Flags().Lookup(other); f != nil && f.Changed {
				return fmt.Errorf("--%s contradicts --at, which shows a state of the past", other)
			}
		}
		c.Past, err = c.readMoment("--at", at)
		return err
	}
	return cmd
}

// readMoment reads an age, a time or a revision.
func (c *Ctl) readMoment(flag, text string) (*typesv1.Moment, error) {
	if revision, err := strconv.ParseUint(text, 10, 64); err == nil && revision > 0 {
		return &typesv1.Moment{Moment: &typesv1.Moment_Revision{Revision: revision}}, nil
	}
	at, err := c.TimeOf(flag, text)
	if err != nil {
		return nil, fmt.Errorf("%s %s: expected an age such as 10m, a time such as 2026-11-20T12:00:00Z, or a revision", flag, text)
	}
	return &typesv1.Moment{Moment: &typesv1.Moment_Time{Time: timestamppb.New(at)}}, nil
}

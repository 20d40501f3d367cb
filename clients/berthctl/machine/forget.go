package machine

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	devicev1 "github.com/berthd/berth/api/berth/device/v1"
	"github.com/berthd/berth/clients/internal/command"
)

const forgetLong = `Forget a device resource whose plugin is gone for good. Pods that request it are then rejected instead of deferred, and a
restart of berthd does not wait for its plugin. berthd forgets a resource by itself when its plugin has been gone for
the time in devices.forgetAfter.

A resource is not forgotten while its plugin is connected or while a container holds some of it.`

func Forget(c *command.Ctl) *cobra.Command {
	return c.Verb(command.About{
		Use:     "forget RESOURCE",
		Short:   "Forget a device resource whose plugin is gone for good",
		Long:    forgetLong,
		Example: `  berthctl forget example.com/gpu`,
		Args:    []string{"RESOURCE"},
	}, func(ctx context.Context, s *command.Session, args []string) error {
		answer, err := s.Device().ForgetResource(ctx, &devicev1.ForgetResourceRequest{Resource: command.WithoutKind(args[0], "resources")})
		if err != nil {
			return err
		}
		return s.Show(answer, func(w io.Writer) { fmt.Fprintf(w, "%s is forgotten\n", args[0]) })
	})
}

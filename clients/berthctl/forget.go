package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	devicev1 "github.com/berthd/berth/api/berth/device/v1"
)

const forgetLong = `Forget a device resource whose plugin is gone for good. Pods that request it are then rejected instead of deferred, and a
restart of berthd does not wait for its plugin. berthd forgets a resource by itself when its plugin has been gone for
the time in devices.forgetAfter.

A resource is not forgotten while its plugin is connected or while a container holds some of it.`

func (c *ctl) forget() *cobra.Command {
	return c.verb(about{
		use:     "forget RESOURCE",
		short:   "Forget a device resource whose plugin is gone for good",
		long:    forgetLong,
		example: `  berthctl forget example.com/gpu`,
		args:    []string{"RESOURCE"},
	}, func(ctx context.Context, s *session, args []string) error {
		answer, err := s.Device().ForgetResource(ctx, &devicev1.ForgetResourceRequest{Resource: withoutKind(args[0], "resources")})
		if err != nil {
			return err
		}
		return s.show(answer, func(w io.Writer) { fmt.Fprintf(w, "%s is forgotten\n", args[0]) })
	})
}

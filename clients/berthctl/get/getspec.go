package get

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	"github.com/berthd/berth/clients/internal/command"
	"github.com/berthd/berth/clients/internal/output"
)

func getSpec(c *command.Ctl) *cobra.Command {
	var in command.Namespaces
	cmd := c.Verb(command.About{
		Use:   "spec POD",
		Short: "A pod as it was admitted",
		Long: `Print an admitted pod as Kubernetes has it, with the fields that berth keeps: the requests and limits after the last
resize, defaults applied, and the QoS class. The output is YAML, or JSON with -o json, and can be admitted again.`,
		Example: `  berthctl get spec default/web
  berthctl get spec default/web | berthctl admit -f - --dry-run --explain`,
		Args: []string{"POD"},
	}, func(ctx context.Context, s *command.Session, args []string) error {
		if err := in.Check("get spec"); err != nil {
			return err
		}
		pod, err := s.Find(ctx, in.Pod(args[0]))
		if err != nil {
			return err
		}
		got, err := s.Allocation().Get(ctx, &allocationv1.GetRequest{Subject: &allocationv1.GetRequest_PodUid{PodUid: pod.GetUid()}})
		if err != nil {
			return err
		}
		raw, err := output.JSON(got.GetSpec())
		object := map[string]any{}
		if err == nil {
			err = json.Unmarshal(raw, &object)
		}
		object["apiVersion"], object["kind"] = "v1", "Pod"
		if err == nil {
			raw, err = json.Marshal(object)
		}
		if err != nil {
			return fmt.Errorf("print the pod: %w", err)
		}
		if !s.ForPrograms() {
			s.Format = command.FormatYAML
		}
		return s.PrintWhole(raw)
	})
	in.Flags(cmd.Flags(), command.InNamespace)
	return cmd
}

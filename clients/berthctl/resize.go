package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
)

const resizeLong = `Change the cpu and memory of admitted pods while they run. The rest of the pod must be as it was admitted.

berthd changes the pod's cgroup, and the cgroups of containers that it made itself. Containers of a container runtime
are changed by the runtime; 'berthctl allocate' prints the new values.`

func (c *ctl) resize() *cobra.Command {
	var (
		m      manifest
		dryRun bool
		owner  string
	)
	cmd := c.verb(about{
		use:     "resize -f FILE [--dry-run]",
		short:   "Change the cpu and memory of an admitted pod in place",
		long:    resizeLong,
		example: `  berthctl resize -f pod.yaml --dry-run`,
	}, func(ctx context.Context, s *session, _ []string) error {
		if m.file == "" {
			return usagef("resize", "-f is missing")
		}
		pods, err := m.load(s.ctl)
		if err != nil {
			return err
		}
		end := exitDone
		for _, pod := range pods {
			answer, err := s.Admission().Resize(ctx, &admissionv1.ResizeRequest{Pod: pod, DryRun: dryRun, Owner: owner})
			if err != nil {
				return err
			}
			if err := s.show(answer, func(w io.Writer) {
				meta := pod.GetMetadata()
				would := ""
				if dryRun {
					would = "would be "
				}
				fmt.Fprintf(w, "%s/%s %s%s\n", meta.GetNamespace(), meta.GetName(), would, resizeText(answer))
			}); err != nil {
				return err
			}
			end = worse(end, answer.GetVerdict())
		}
		if end != exitDone {
			return verdict(end)
		}
		return nil
	})
	m.flags(cmd.Flags())
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "decide, but change nothing")
	ownerFlag(cmd.Flags(), &owner, "whose pod it is")
	return cmd
}

// resizeText says what became of a resize in one line.
func resizeText(answer *admissionv1.ResizeResponse) string {
	if answer.GetVerdict() != admissionv1.Verdict_VERDICT_ADMITTED {
		return verdictText(&admissionv1.AdmitResponse{
			Verdict: answer.GetVerdict(), Reason: answer.GetReason(), Message: answer.GetMessage(), RetryAfter: answer.GetRetryAfter(),
		})
	}
	if restart := answer.GetRestartContainers(); len(restart) > 0 {
		return "resized; restart " + joined(restart) + " for it to take effect"
	}
	return "resized"
}

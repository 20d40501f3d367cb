package pods

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	"github.com/berthd/berth/api/input"
	"github.com/berthd/berth/api/sentences"
	"github.com/berthd/berth/clients/internal/command"
)

const removeLong = `Remove pods. Their processes are killed, their cgroups are removed, and everything that they held becomes free.

Every name is looked up before anything is removed. An unknown uid is no error, so that a removal can be repeated. The pod
of an agent that has an owner's name, such as berthlet, needs --owner with that name, or --all-owners.`

func Remove(c *command.Ctl) *cobra.Command {
	var (
		owner  string
		anyone bool
	)
	cmd := c.Verb(command.About{
		Use:   "remove POD... [--owner NAME | --all-owners]",
		Short: "Remove pods and release what they hold",
		Long:  removeLong,
		Example: `  berthctl remove default/web
  berthctl remove 2f1c8a52-0000-4000-8000-000000000001`,
		Args: []string{"POD..."},
	}, func(ctx context.Context, s *command.Session, args []string) error {
		if len(args) > 1 && command.IsPod(args[0]) {
			args = args[1:] // as in kubectl delete pod NAME
		}
		type named struct{ uid, name string }
		pods := make([]named, len(args))
		for i, arg := range args {
			pods[i] = named{arg, arg}
			pod, err := s.Find(ctx, arg)
			switch {
			case err == nil:
				pods[i] = named{pod.GetUid(), command.PodName(pod)}
			case !errors.As(err, new(*command.UnknownPodError)) || strings.Contains(arg, "/"):
				return err
			}
		}
		for _, pod := range pods {
			answer, err := s.Admission().RemovePod(ctx, &admissionv1.RemovePodRequest{PodUid: pod.uid, Owner: owner, AllOwners: anyone})
			if err != nil {
				return fmt.Errorf("pod %s: %w", pod.name, err)
			}
			if err := s.Show(answer, func(w io.Writer) { removed(w, pod.name, answer) }); err != nil {
				return err
			}
		}
		return nil
	})
	cmd.Aliases = []string{"delete"}
	command.OwnerFlag(cmd.Flags(), &owner, "whose pods they are")
	cmd.Flags().BoolVar(&anyone, "all-owners", false, "remove the pods of any owner")
	return cmd
}

// removed prints what became free.
func removed(w io.Writer, name string, answer *admissionv1.RemovePodResponse) {
	if !answer.GetRemoved() {
		fmt.Fprintf(w, "%s was not known: nothing to remove\n", name)
		return
	}
	fmt.Fprintf(w, "%s is removed\n", name)
	for _, text := range sentences.Claims(answer.GetReleased()) {
		fmt.Fprintf(w, "  free: %s\n", text)
	}
}

const syncLong = `Send the list of an owner's living pods. berthd removes all other pods of this owner, and kills their processes.

A pod is named by its uid; an admitted pod also by NAMESPACE/NAME, or by a NAME that only one pod has. A file has one pod
on each line; empty lines and lines that start with # are ignored. An empty list needs --none. Pods
that were admitted after the revision in --known-revision are not removed. The default is the revision at the moment
when berthctl starts.`

func Sync(c *command.Ctl) *cobra.Command {
	var (
		active []string
		file   string
		none   bool
		req    = &admissionv1.SyncPodsRequest{}
	)
	cmd := c.Verb(command.About{
		Use:   "sync (--active POD,... | -f FILE | --none) [--owner NAME | --all-owners] [--dry-run]",
		Short: "Remove every pod that is not in a list of living pods",
		Long:  syncLong,
		Example: `  berthctl sync --active 2f1c8a52-0000-4000-8000-000000000001
  kubectl get pods -A -o jsonpath='{range .items[*]}{.metadata.uid}{"\n"}{end}' | berthctl sync --owner kubernetes -f -`,
	}, func(ctx context.Context, s *command.Session, _ []string) error {
		if req.KnownRevision == 0 {
			now, err := s.Allocation().GetRevision(ctx, &allocationv1.GetRevisionRequest{})
			if err != nil {
				return err
			}
			req.KnownRevision = now.GetRevision()
		}
		if file != "" {
			listed, err := uids(ctx, s.Ctl, file)
			if err != nil {
				return err
			}
			active = append(active, listed...)
		}
		if len(active) == 0 && !none {
			return command.Usagef("sync", "no living pod is named: use --none if every pod has ended")
		}
		if len(active) > 0 && none {
			return command.Usagef("sync", "--none contradicts the living pods that are named")
		}
		list, err := s.List(ctx, &allocationv1.ListRequest{})
		if err != nil {
			return err
		}
		known := command.NamesOf(list.GetPods())
		if active, err = command.UidsOf(list.GetPods(), active); err != nil {
			return err
		}
		req.ActivePodUids, req.AllowEmpty = active, none
		answer, err := s.Admission().SyncPods(ctx, req)
		if err != nil {
			return err
		}
		return s.Show(answer, func(w io.Writer) {
			if len(answer.GetRemovedPodUids()) == 0 {
				fmt.Fprintln(w, "nothing to remove")
			}
			for _, uid := range answer.GetRemovedPodUids() {
				if req.GetDryRun() {
					fmt.Fprintf(w, "%s would be removed\n", known.Pod(uid))
					continue
				}
				fmt.Fprintf(w, "%s is removed\n", known.Pod(uid))
			}
		})
	})
	cmd.Flags().StringSliceVar(&active, "active", nil, "the living pods")
	cmd.Flags().StringVarP(&file, "filename", "f", "", "file with the living pods; - is standard input")
	cmd.Flags().BoolVar(&none, "none", false, "no pod is alive: remove all")
	cmd.Flags().BoolVar(&req.DryRun, "dry-run", false, "show what would be removed, and remove nothing")
	command.OwnerFlag(cmd.Flags(), &req.Owner, "whose pods are listed")
	cmd.Flags().BoolVar(&req.AllOwners, "all-owners", false, "the list is of the pods of all owners")
	cmd.Flags().Uint64Var(&req.KnownRevision, "known-revision", 0,
		"the revision at which the list was made (default: the revision when berthctl starts)")
	return cmd
}

// uids reads a list of uids from a file.
func uids(ctx context.Context, c *command.Ctl, file string) ([]string, error) {
	text, err := input.FileOrStream(ctx, file, c.In, input.Most)
	if err != nil {
		return nil, err
	}
	var out []string
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if line != "" && !strings.HasPrefix(line, "#") {
			out = append(out, line)
		}
	}
	return out, nil
}

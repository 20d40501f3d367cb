package get

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/api/podspec"
	"github.com/berthd/berth/api/sentences"
	"github.com/berthd/berth/clients/internal/command"
	"github.com/berthd/berth/clients/internal/table"
)

func Describe(c *command.Ctl) *cobra.Command {
	cmd := command.Group(command.About{
		Use:   "describe",
		Short: "Show all about a pod, a container, a cgroup or the node",
		Example: `  berthctl describe pod default/web
  berthctl describe container default/web app
  berthctl describe cgroup /kubepods/burstable
  berthctl describe node`,
	}, describePod(c), describeContainer(c), describeCgroup(c), describeNode(c))
	command.ShortNames(cmd)
	return cmd
}

func describePod(c *command.Ctl) *cobra.Command {
	var in command.Namespaces
	cmd := c.Verb(command.About{
		Use:     "pod POD...",
		Short:   "Show all about pods",
		Example: `  berthctl describe pod default/web`,
		Args:    []string{"POD..."},
	}, func(ctx context.Context, s *command.Session, args []string) error {
		if err := in.Check("describe pod"); err != nil {
			return err
		}
		all := make([]*allocationv1.GetResponse, len(args))
		for i, name := range args {
			pod, err := s.Find(ctx, in.Pod(name))
			if err != nil {
				return err
			}
			if all[i], err = s.Whole(ctx, pod); err != nil {
				return err
			}
		}
		for i, got := range all {
			s.Part(i)
			if err := s.Show(got.GetPod(), func(w io.Writer) { describeAll(s.Ctl, w, got) }); err != nil {
				return err
			}
		}
		return nil
	})
	in.Flags(cmd.Flags(), command.InNamespace)
	return cmd
}

// describeAll prints all data of a pod.
func describeAll(c *command.Ctl, w io.Writer, got *allocationv1.GetResponse) {
	pod := got.GetPod()
	f := table.NewFields("")
	kind := "Pod"
	if command.IsClaim(pod) {
		kind = "Claim"
	}
	f.Add(kind, command.PodName(pod))
	f.Add("UID", pod.GetUid())
	f.Add("Pods", claimPods(pod)...)
	f.Add("QoS", string(podspec.QoSClass(pod.GetQosClass())))
	f.Add("Cgroup", pod.GetCgroupParent())
	f.Add("Admitted", admitted(c, pod))
	f.Add("Admission", pod.GetAdmissionId())
	f.Add("State", movingText(pod))
	f.Add("Annotations", command.Pairs(got.GetSpec().GetMetadata().GetAnnotations())...)
	f.Add("Holds", sentences.Claims(pod.GetClaims())...)
	fmt.Fprint(w, f)
	for _, a := range pod.GetContainers() {
		f := table.NewFields("  ")
		addContainer(c, f, a)
		fmt.Fprintf(w, "\nContainer %s:\n%v", a.GetContainerName(), f)
	}
}

// admitted returns when a pod was admitted.
func admitted(c *command.Ctl, p *typesv1.PodAllocation) string {
	if p.GetAdmitTime() == nil {
		return ""
	}
	return fmt.Sprintf("%s (%s ago)", p.GetAdmitTime().AsTime().Format(time.RFC3339), age(c, p))
}

// addContainer adds what a container got.
func addContainer(c *command.Ctl, f *table.Fields, a *typesv1.ContainerAllocation) {
	f.Add("Role", convert.Word(a.GetRole()))
	f.Add("Requests", command.AmountTexts(a.GetResources().GetRequests(), " ")...)
	f.Add("Limits", command.AmountTexts(a.GetResources().GetLimits(), " ")...)
	f.Add("CPUs", command.CPUsText(c.CPUs(a), a.GetExclusiveCpus()))
	f.Add("NUMA", affinity(a.GetAffinity()))
	f.Add("Holds", sentences.Claims(a.GetClaims())...)
	f.Add("Health", c.HealthTexts(a.GetClaims())...)
	f.Add("External devices", externalTexts(a.GetExternalDevices())...)
	f.Add("Runtime ids", a.GetContainerIds()...)
}

// externalTexts returns devices that another program has allocated.
func externalTexts(list []*typesv1.ExternalDevice) (out []string) {
	for _, d := range list {
		text := d.GetResource() + " " + d.GetId()
		if nodes := convert.Nodes(d.GetNumaNodes()); !nodes.IsEmpty() {
			text += " on NUMA node " + nodes.String()
		}
		if claim := d.GetClaim().GetName(); claim != "" {
			text += " by claim " + claim
		}
		out = append(out, text)
	}
	return out
}

// affinity returns a decided placement and whether it is as good as it could be.
func affinity(h *typesv1.TopologyHint) string {
	switch {
	case h == nil:
		return ""
	case h.GetNumaNodes() == nil:
		return "any node"
	case h.GetPreferred():
		return sentences.NodeNoun(sentences.Nodes(h.GetNumaNodes()))
	}
	return sentences.NodeNoun(sentences.Nodes(h.GetNumaNodes())) + " (fewer could do on an idle machine)"
}

func describeContainer(c *command.Ctl) *cobra.Command {
	var in command.Namespaces
	cmd := c.Verb(command.About{
		Use:     "container POD CONTAINER",
		Short:   "Show all about a container",
		Example: `  berthctl describe container default/web app`,
		Args:    []string{"POD", "CONTAINER"},
	}, func(ctx context.Context, s *command.Session, args []string) error {
		if err := in.Check("describe container"); err != nil {
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
		pod, s.Shared = got.GetPod(), got.GetSharedCpus()
		for _, a := range pod.GetContainers() {
			if a.GetContainerName() != args[1] {
				continue
			}
			return s.Show(a, func(w io.Writer) {
				f := table.NewFields("")
				f.Add("Container", command.PodName(pod)+"/"+a.GetContainerName())
				f.Add("Pod UID", pod.GetUid())
				addContainer(s.Ctl, f, a)
				for _, p := range got.GetPlacements() {
					if p.GetContainerName() == a.GetContainerName() {
						addPlacement(ctx, s, f, p)
					}
				}
				fmt.Fprint(w, f)
			})
		}
		return fmt.Errorf("pod %s has no container %s: it has %s", command.PodName(pod), args[1], command.ContainerNames(pod))
	})
	in.Flags(cmd.Flags(), command.InNamespace)
	return cmd
}

// addPlacement adds the CPUs that a container may use, and the containers that delay its start.
func addPlacement(ctx context.Context, s *command.Session, f *table.Fields, p *allocationv1.ContainerPlacement) {
	possible := p.GetPossibleCpus().GetList()
	if p.GetAnywhere() {
		possible = "all"
	}
	f.Add("Phase", fmt.Sprintf("%s (%s)", convert.Word(p.GetPhase()), p.GetId()))
	f.Add("Assigned CPUs", p.GetAssignedCpus().GetList())
	f.Add("Possible CPUs", possible)
	if len(p.GetBlockedBy()) > 0 {
		f.Add("Blocked by", s.Names(ctx).Owners(p.GetBlockedBy()))
		f.Add("Blocked since", p.GetBlockTime().AsTime().Format(time.RFC3339))
	}
}

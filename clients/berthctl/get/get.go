package get

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	nodev1 "github.com/berthd/berth/api/berth/node/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/api/podspec"
	"github.com/berthd/berth/api/sentences"
	"github.com/berthd/berth/clients/internal/command"
	"github.com/berthd/berth/clients/internal/table"
)

func Get(c *command.Ctl) *cobra.Command {
	cmd := command.Group(command.About{
		Use:   "get",
		Short: "List pods, CPUs, memory, devices and other objects",
		Example: `  berthctl get pods
  berthctl get cpus -o wide
  berthctl get devices example.com/gpu
  berthctl get pods --at 2026-11-20T03:00:00Z`,
	}, c.OfPast(getPods(c)), c.OfPast(getClaims(c)), getSpec(c), getRejections(c), getTraces(c), c.OfPast(getContainers(c)),
		c.OfPast(getCPUs(c)), c.OfPast(getMemory(c)), c.OfPast(getNUMA(c)), c.OfPast(getDevices(c)), getResources(c), getProviders(c),
		getNode(c), getCgroups(c))
	command.ShortNames(cmd)
	return cmd
}

// filter is the flags of verbs that list pods.
type filter struct {
	command.Namespaces
	resource, owner, labels string
	claims                  bool // in place of pods
}

func (f *filter) flags(cmd *cobra.Command) {
	what := f.what() + "s"
	f.Namespaces.Flags(cmd.Flags(), "only "+what+" of this namespace")
	cmd.Flags().StringVar(&f.resource, "resource", "", "only "+what+" that hold this resource")
	cmd.Flags().StringVar(&f.owner, "owner", "", "only "+what+" of this agent, such as berthlet or kubernetes")
	if !f.claims { // which have no labels
		cmd.Flags().StringVarP(&f.labels, "selector", "l", "", "only pods with these labels, such as app=web,tier!=test")
	}
}

// what is the word for what is listed.
func (f *filter) what() string {
	if f.claims {
		return "claim"
	}
	return "pod"
}

func (f *filter) request() *allocationv1.ListRequest {
	return &allocationv1.ListRequest{Namespace: f.Namespace, Resource: f.resource, Owner: f.owner, LabelSelector: f.labels}
}

// none is the message that no pod matches.
func (f *filter) none() string {
	pod, what := "no "+f.what(), "is admitted"
	if f.claims {
		what = "is prepared"
	}
	if f.labels != "" {
		pod += " with the labels " + f.labels
	}
	if f.Namespace != "" {
		pod += " in namespace " + f.Namespace
	}
	if f.owner != "" {
		pod += " of " + f.owner
	}
	if f.resource != "" {
		what = "holds " + f.resource
	}
	return pod + " " + what
}

func getPods(c *command.Ctl) *cobra.Command {
	var f filter
	cmd := c.Lister(command.About{
		Use:   "pods [POD]",
		Short: "Admitted pods",
		Long:  "List all admitted pods, or one of them. CPUS has the exclusive CPUs of the pod.",
		Example: `  berthctl get pods
  berthctl get pods default/web -o json
  berthctl get pods -l app=web --sort-by AGE
  berthctl get pods -o custom-columns=POD:.name,CPUS:.containers[*].cpus
  berthctl get pods -n shop --resource example.com/gpu -o wide`,
		Args: []string{"[POD]"},
	}, true, func(ctx context.Context, s *command.Session, args []string) (*command.Listing, error) {
		list, err := pods(ctx, s, "get pods", args, &f)
		if err != nil {
			return nil, err
		}
		t := table.New("NAMESPACE", "NAME", "QOS", "CONTAINERS", "CPUS", "DEVICES", "AGE").
			Wide(s.Wide(), "MEMORY", "UID", "CGROUP", "ADMISSION", "OWNER").Key("NAMESPACE", "NAME")
		list.Pods = slices.DeleteFunc(list.GetPods(), command.IsClaim)
		list.UnadmittedPods = slices.DeleteFunc(list.GetUnadmittedPods(), command.IsClaim)
		warnOfUnadmitted(s, "pod", list.GetUnadmittedPods())
		for _, p := range list.GetPods() {
			claims := command.AllClaims(p)
			t.Row(p.GetNamespace(), p.GetName(), string(podspec.QoSClass(p.GetQosClass())), strconv.Itoa(len(p.GetContainers())),
				command.OrShared(command.OwnCPUs(p)), command.DeviceCounts(claims), age(s.Ctl, p),
				command.Memory(claims), p.GetUid(), p.GetCgroupParent(), p.GetAdmissionId(), p.GetOwner())
		}
		return &command.Listing{Answer: list, Tables: []command.Section{{Table: t}}, None: f.none()}, nil
	})
	f.flags(cmd)
	return cmd
}

// warnOfUnadmitted names the pods or claims in use that are not in the ledger.
func warnOfUnadmitted(s *command.Session, what string, pods []*typesv1.PodAllocation) {
	if len(pods) == 0 || s.Lines || s.ForPrograms() {
		return
	}
	var names []string
	for _, p := range pods[:min(len(pods), 10)] {
		names = append(names, cmp.Or(strings.Trim(p.GetNamespace()+"/"+p.GetName(), "/"), p.GetUid()))
	}
	if left := len(pods) - len(names); left > 0 {
		names = append(names, fmt.Sprintf("%d more", left))
	}
	s.Warn("not in the ledger: %s (%s). No other pod gets what they hold, until their agent admits or ends them",
		table.Count(len(pods), what), strings.Join(names, ", "))
}

// claimPods returns the names of the pods that a claim is reserved for.
func claimPods(claim *typesv1.PodAllocation) (names []string) {
	for _, p := range claim.GetResourceClaimPods() {
		names = append(names, p.GetName())
	}
	return names
}

// warnOfScheduler says what the scheduler counts that pods cannot have: it may be what claims can have.
func warnOfScheduler(ctx context.Context, s *command.Session) error {
	if s.Past != nil || s.Lines || s.ForPrograms() {
		return nil
	}
	status, err := s.Node().GetStatus(ctx, &nodev1.GetStatusRequest{})
	for _, text := range status.GetSchedulerExcess() {
		s.Warn("%s", text)
	}
	return err
}

func getClaims(c *command.Ctl) *cobra.Command {
	f := filter{claims: true}
	cmd := c.Lister(command.About{
		Use:   "claims [CLAIM]",
		Short: "Claims on dynamic resources",
		Long: `List the claims on dynamic resources (DRA) that hold CPUs and memory here, or one of them. PODS has the pods
that a claim was reserved for when it was prepared. USED-BY has the containers that use it, as berth-nri has reported with their pods. Of
more than three, the number of the others is shown; -o json and 'describe' have all pods.`,
		Example: `  berthctl get claims
  berthctl get claims default/train -o json`,
		Args: []string{"[CLAIM]"},
	}, true, func(ctx context.Context, s *command.Session, args []string) (*command.Listing, error) {
		list, err := pods(ctx, s, "get claims", args, &f)
		if err != nil {
			return nil, err
		}
		isPod := func(p *typesv1.PodAllocation) bool { return !command.IsClaim(p) }
		list.Pods, list.UnadmittedPods = slices.DeleteFunc(list.GetPods(), isPod), slices.DeleteFunc(list.GetUnadmittedPods(), isPod)
		warnOfUnadmitted(s, "claim", list.GetUnadmittedPods())
		if err := warnOfScheduler(ctx, s); err != nil {
			return nil, err
		}
		var users map[string][]string
		if len(list.GetPods()) > 0 { // the pods that use a claim have another owner, and may hold nothing themselves
			all, err := s.List(ctx, &allocationv1.ListRequest{At: s.Past})
			if err != nil {
				return nil, err
			}
			users = command.UsersOf(all.GetPods())
		}
		t := table.New("NAMESPACE", "NAME", "NUMA", "CPUS", "MEMORY", "PODS", "USED-BY", "AGE").Wide(s.Wide(), "UID", "ADMISSION",
			"OWNER").Key("NAMESPACE", "NAME")
		for _, p := range list.GetPods() {
			t.Row(p.GetNamespace(), p.GetName(), convert.Nodes(p.GetResourceClaimNodes()).String(), command.OwnCPUs(p).String(),
				command.Memory(command.AllClaims(p)),
				command.Some(claimPods(p)), command.Some(users[p.GetUid()]), age(s.Ctl, p), p.GetUid(), p.GetAdmissionId(), p.GetOwner())
		}
		return &command.Listing{Answer: list, Tables: []command.Section{{Table: t}}, None: f.none()}, nil
	})
	f.flags(cmd)
	return cmd
}

// age returns how long ago a pod was admitted, as of the time that is shown.
func age(c *command.Ctl, p *typesv1.PodAllocation) string {
	if p.GetAdmitTime() == nil {
		return ""
	}
	now := c.Now()
	if t := c.Past.GetTime(); t != nil {
		now = t.AsTime()
	}
	return table.Age(now.Sub(p.GetAdmitTime().AsTime()))
}

func getContainers(c *command.Ctl) *cobra.Command {
	var f filter
	cmd := c.Lister(command.About{
		Use:   "containers [POD]",
		Short: "Containers of admitted pods",
		Long: `List the containers of all admitted pods, or of one, in the order of admission. OWN says whether the CPUs are the
container's own.`,
		Example: `  berthctl get containers
  berthctl get containers default/web -o wide`,
		Args: []string{"[POD]"},
	}, true, func(ctx context.Context, s *command.Session, args []string) (*command.Listing, error) {
		list, err := pods(ctx, s, "get containers", args, &f)
		if err != nil {
			return nil, err
		}
		t := table.New("POD", "CONTAINER", "ROLE", "CPUS", "OWN", "NUMA", "DEVICES").Wide(s.Wide(), "MEMORY", "IDS",
			"UID").Key("POD", "CONTAINER")
		for _, p := range list.GetPods() {
			for _, a := range p.GetContainers() {
				t.Row(command.PodName(p), a.GetContainerName(), convert.Word(a.GetRole()), s.CPUs(a), command.YesNo(a.GetExclusiveCpus()),
					sentences.Hint(a.GetAffinity()), command.DeviceCounts(a.GetClaims()), command.Memory(a.GetClaims()),
					command.Joined(a.GetContainerIds()), p.GetUid())
			}
		}
		return &command.Listing{Answer: list, Tables: []command.Section{{Table: t}}, None: f.none()}, nil
	})
	f.flags(cmd)
	return cmd
}

// pods lists pods that match, or the one that is named.
func pods(ctx context.Context, s *command.Session, verb string, args []string, f *filter) (*allocationv1.ListResponse, error) {
	if err := f.Check(verb); err != nil {
		return nil, err
	}
	if len(args) == 0 {
		request := f.request()
		request.At = s.Past
		list, err := s.List(ctx, request)
		s.Shared = list.GetSharedCpus()
		return list, err
	}
	if f.owner != "" || f.resource != "" || f.labels != "" {
		return nil, command.Usagef(verb, "%s names one %s, so there is nothing to filter", strings.ToUpper(f.what()), f.what())
	}
	find := s.Find
	if f.claims {
		find = s.FindClaim
	}
	pod, err := find(ctx, f.Pod(args[0]))
	if err != nil {
		return nil, err
	}
	return &allocationv1.ListResponse{Pods: []*typesv1.PodAllocation{pod}, SharedCpus: s.Shared}, nil
}

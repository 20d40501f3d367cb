package pods

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/podspec"
	"github.com/berthd/berth/clients/berth"
	"github.com/berthd/berth/clients/internal/command"
)

const resizeLong = `Change the cpu and memory of admitted pods while they run. --cpu and --memory change a container, its request and its
limit where it has both. --set names single amounts of one pod; all others stay. A file gives the cpu and memory of the
containers of its pods; the rest of the file is not compared. Amounts that a file leaves out stay, too, because a resize
removes none, as in Kubernetes; the output lists them. A pod without uid in a file is the admitted pod of that name.

The output has each amount that changes, before and after, or "nothing changed".

berthd changes the pod's cgroup, and the cgroups of containers that it made itself. Containers of a container runtime
are changed by the runtime; 'berthctl allocate' prints the new values.

--if-revision takes the revision of 'berthctl get pods' or of an earlier resize: if the pod has changed since, the
resize fails, and changes nothing.`

const resizeExample = `  berthctl resize default/web app --cpu 2 --memory 1Gi
  berthctl resize default/web --set app:requests.cpu=500m --set app:limits.memory=1Gi
  berthctl resize default/web --set limits.cpu=4 --max-disruption none --dry-run
  berthctl resize -f pod.yaml`

// resizing is the flags of a resize.
type resizing struct {
	command.Manifest
	cpu, memory string
	sets        []string
	disruption  string
	// common has the flags that apply to every pod.
	common admissionv1.ResizeRequest
}

func Resize(c *command.Ctl) *cobra.Command {
	r := &resizing{}
	cmd := c.Verb(command.About{
		Use:   "resize (POD CONTAINER [--cpu AMOUNT] [--memory AMOUNT] | POD --set [CONTAINER:]LIST.RESOURCE=AMOUNT… | -f FILE) [--dry-run]",
		Short: "Change the cpu and memory of an admitted pod in place",
		Long:  resizeLong, Example: resizeExample,
		Args: []string{"[POD]", "[CONTAINER]"},
	}, func(ctx context.Context, s *command.Session, args []string) error {
		requests, titles, err := r.requests(ctx, s, args)
		if err != nil {
			return err
		}
		end := command.ExitDone
		for i, req := range requests {
			result, err := r.carryOut(ctx, s, req)
			if err != nil {
				return err
			}
			answer := result.answer
			if err := s.Show(answer, func(w io.Writer) {
				result.show(w, titles[i])
				if answer.GetPlan() != nil {
					fmt.Fprint(w, "\nthe pod has its old and its new CPUs and memory until the move is complete; 'berthctl plan resize' shows the steps\n")
				}
				if d := answer.GetDisruption(); d == admissionv1.Disruption_DISRUPTION_MOVE_CPUS ||
					d == admissionv1.Disruption_DISRUPTION_MOVE_MEMORY {
					fmt.Fprintf(w, "\n%v", allocations(s.Ctl, answer.GetAllocations()))
				}
			}); err != nil {
				return err
			}
			end = worse(end, answer.GetVerdict())
		}
		if end != command.ExitDone {
			return command.Verdict(end)
		}
		return nil
	})
	r.flags(cmd)
	cmd.Flags().StringVar(&r.common.AdmissionId, "admission-id", "", "name of this attempt; it can be repeated safely with the same name")
	cmd.Flags().BoolVar(&r.common.DryRun, "dry-run", false, "decide, but change nothing")
	return cmd
}

// resized is a resize that was carried out, or tried.
type resized struct {
	answer  *admissionv1.ResizeResponse
	dryRun  bool
	changes []change
	kept    []string // what the file leaves out
}

// carryOut makes a resize, and compares it with what the pod had before.
func (r *resizing) carryOut(ctx context.Context, s *command.Session, req *admissionv1.ResizeRequest) (*resized, error) {
	var before []size
	var err error
	if !s.ForPrograms() {
		if before, err = sizesOf(ctx, s, req.GetPodUid()); err != nil {
			return nil, err
		}
	}
	out := &resized{dryRun: req.GetDryRun()}
	if out.answer, err = s.Resize(ctx, req); err != nil || out.answer.GetVerdict() != admissionv1.Verdict_VERDICT_ADMITTED {
		return out, err
	}
	if out.changes, out.kept = changesOf(before, req); len(r.Files) == 0 {
		out.kept = nil // the command line names what is to change
	}
	return out, nil
}

// idle reports whether the pod had the amounts before.
func (r *resized) idle() bool { return r.answer.GetReplayed() && len(r.changes) == 0 }

// show prints the result, what changes, and what the file leaves out.
func (r *resized) show(w io.Writer, pod string) {
	switch {
	case r.idle() && r.dryRun:
		fmt.Fprintf(w, "%s: nothing would change\n", pod)
	case r.idle():
		fmt.Fprintf(w, "%s: nothing changed\n", pod)
	case r.dryRun:
		fmt.Fprintf(w, "%s would be %s\n", pod, resizeText(r.answer))
	default:
		fmt.Fprintf(w, "%s %s\n", pod, resizeText(r.answer))
	}
	showChanges(w, r.changes, r.kept)
}

// flags adds the flags of what is to be resized.
func (r *resizing) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	r.ReadFlags(f)
	f.StringVar(&r.cpu, "cpu", "", "the new cpu of the container, as 2 or 500m")
	f.StringVar(&r.memory, "memory", "", "the new memory of the container, as 1Gi")
	f.StringArrayVar(&r.sets, "set", nil,
		"an amount of a container, or without CONTAINER of the pod as a whole, as `[CONTAINER:]LIST.RESOURCE=AMOUNT` (app:limits.cpu=2); may be repeated")
	f.StringVar(&r.disruption, "max-disruption", "",
		"how much containers may be disturbed: "+strings.Join(disruptions(), ", ")+" (default as much as needed)")
	f.Uint64Var(&r.common.IfRevision, "if-revision", 0, "fail if the pod has changed since this revision; 0 is no condition")
	command.OwnerFlag(f, &r.common.Owner, "whose pod it is")
}

// requests reads what is to be resized, and how messages name the pods.
func (r *resizing) requests(ctx context.Context, s *command.Session, args []string) (requests []*admissionv1.ResizeRequest,
	titles []string, err error) {
	max, err := disruptionNamed(r.disruption)
	if err != nil {
		return nil, nil, err
	}
	switch {
	case len(args) == 0 && len(r.Files) == 0:
		return nil, nil, command.Usagef("resize", "expected a pod, or -f")
	case len(r.Files) > 0 && (len(args) > 0 || len(r.sets) > 0 || r.cpu != "" || r.memory != ""):
		return nil, nil, command.Usagef("resize",
			"-f cannot be combined with POD, --set, --cpu or --memory: the file has the pods and their amounts")
	case len(r.sets) > 0 && (len(args) == 2 || r.cpu != "" || r.memory != ""):
		return nil, nil, command.Usagef("resize",
			"--set cannot be combined with CONTAINER, --cpu or --memory: it names the container itself")
	case len(args) > 0 && len(r.sets) == 0 && r.cpu == "" && r.memory == "":
		return nil, nil, command.Usagef("resize", "expected --cpu, --memory or --set")
	case len(args) > 0:
		req, err := sets(r.sets)
		if err != nil {
			return nil, nil, err
		}
		pod, err := s.Find(ctx, args[0])
		if err != nil {
			return nil, nil, err
		}
		if len(r.sets) == 0 {
			if err := r.amounts(req, pod, args[1:]); err != nil {
				return nil, nil, err
			}
		}
		req.PodUid = pod.GetUid()
		requests, titles = append(requests, req), append(titles, command.PodName(pod))
	default:
		r.GenerateUID = true
		pods, err := r.Load(ctx, s.Ctl)
		if err != nil {
			return nil, nil, err
		}
		if r.common.GetAdmissionId() != "" && len(pods) > 1 {
			return nil, nil, command.Usagef("resize", "--admission-id names one attempt, and %s has %d pods", r.Title(), len(pods))
		}
		for _, pod := range pods {
			meta := pod.GetMetadata()
			if podspec.GeneratedUID(pod) {
				have, err := s.Find(ctx, meta.GetNamespace()+"/"+meta.GetName())
				if err != nil {
					return nil, nil, err
				}
				meta.Uid = have.GetUid()
			}
			requests, titles = append(requests, berth.ResizeTo(pod)), append(titles, meta.GetNamespace()+"/"+meta.GetName())
		}
	}
	for _, req := range requests {
		req.DryRun, req.Owner, req.AdmissionId = r.common.GetDryRun(), r.common.GetOwner(), r.common.GetAdmissionId()
		req.IfRevision, req.MaxDisruption = r.common.GetIfRevision(), max
	}
	return requests, titles, nil
}

// amounts adds --cpu and --memory for the container that is named, or the only one.
func (r *resizing) amounts(req *admissionv1.ResizeRequest, pod *typesv1.PodAllocation, name []string) error {
	at := 0
	switch {
	case len(name) > 0:
		at = slices.IndexFunc(pod.GetContainers(), func(a *typesv1.ContainerAllocation) bool { return a.GetContainerName() == name[0] })
		if at < 0 {
			return fmt.Errorf("pod %s has no container %s: it has %s", command.PodName(pod), name[0], command.ContainerNames(pod))
		}
	case len(pod.GetContainers()) != 1:
		return command.Usagef("resize", "CONTAINER is missing: pod %s has %s", command.PodName(pod), command.ContainerNames(pod))
	}
	container := pod.GetContainers()[at]
	to := changedResources(req, container.GetContainerName())
	for _, change := range []struct{ resource, amount string }{{"cpu", r.cpu}, {"memory", r.memory}} {
		if change.amount == "" {
			continue
		}
		request, requested := container.GetResources().GetRequests()[change.resource]
		limit, limited := container.GetResources().GetLimits()[change.resource]
		switch {
		case requested && limited && request != limit:
			return fmt.Errorf("container %[1]s requests %[2]s %[3]s and is limited to %[4]s: name one of them, as --set %[1]s:requests.%[2]s=%[5]s",
				container.GetContainerName(), change.resource, request, limit, change.amount)
		case !requested && !limited:
			return fmt.Errorf("container %[1]s has no %[2]s to change: name what it is to get, as --set %[1]s:limits.%[2]s=%[3]s",
				container.GetContainerName(), change.resource, change.amount)
		}
		if requested {
			to.Requests[change.resource] = change.amount
		}
		if limited {
			to.Limits[change.resource] = change.amount
		}
	}
	return nil
}

// sets reads the values of --set.
func sets(values []string) (*admissionv1.ResizeRequest, error) {
	req := &admissionv1.ResizeRequest{}
	for _, v := range values {
		what, amount, ok := strings.Cut(v, "=")
		container, path, named := strings.Cut(what, ":")
		if !named {
			container, path = "", what
		}
		list, name, dotted := strings.Cut(path, ".")
		if !ok || !dotted || name == "" || amount == "" || named && container == "" || list != "requests" && list != "limits" {
			return nil, command.Usagef("resize", "--set %q: expected [CONTAINER:]requests.RESOURCE=AMOUNT, or limits", v)
		}
		to := changedResources(req, container)
		amounts := to.Requests
		if list == "limits" {
			amounts = to.Limits
		}
		if _, twice := amounts[name]; twice {
			return nil, command.Usagef("resize", "--set %q: it is given twice", v)
		}
		amounts[name] = amount
	}
	return req, nil
}

// changedResources returns a request's changes of a container, or with an empty name of the pod as a whole.
func changedResources(req *admissionv1.ResizeRequest, container string) *typesv1.ResourceRequirements {
	empty := &typesv1.ResourceRequirements{Requests: map[string]string{}, Limits: map[string]string{}}
	if container == "" {
		if req.Resources == nil {
			req.Resources = empty
		}
		return req.GetResources()
	}
	for _, c := range req.GetContainers() {
		if c.GetContainerName() == container {
			return c.GetResources()
		}
	}
	req.Containers = append(req.Containers, &admissionv1.ContainerResources{ContainerName: container, Resources: empty})
	return empty
}

// disruptionName is the name of a disruption in flags and texts, such as "move-cpus".
func disruptionName(d admissionv1.Disruption) string {
	return command.Word(d, "DISRUPTION_")
}

// disruptions lists the names, the least first.
func disruptions() (out []string) {
	for d := admissionv1.Disruption_DISRUPTION_NONE; d <= admissionv1.Disruption_DISRUPTION_RESTART; d++ {
		out = append(out, disruptionName(d))
	}
	return out
}

func disruptionNamed(name string) (admissionv1.Disruption, error) {
	if name == "" {
		return admissionv1.Disruption_DISRUPTION_UNSPECIFIED, nil
	}
	if i := slices.Index(disruptions(), name); i >= 0 {
		return admissionv1.Disruption_DISRUPTION_NONE + admissionv1.Disruption(i), nil
	}
	return 0, command.Usagef("resize", "--max-disruption: %q: expected one of %s", name, strings.Join(disruptions(), ", "))
}

// resizeText returns the result of a resize in one line.
func resizeText(answer *admissionv1.ResizeResponse) string {
	if answer.GetVerdict() != admissionv1.Verdict_VERDICT_ADMITTED {
		return VerdictText(&admissionv1.AdmitResponse{
			Verdict: answer.GetVerdict(), Reason: answer.GetReason(), Message: answer.GetMessage(), RetryAfter: answer.GetRetryAfter(),
		})
	}
	if restart := answer.GetRestartContainers(); len(restart) > 0 {
		return "resized; restart " + command.Joined(restart) + " for it to take effect"
	}
	if p := answer.GetPlan(); p != nil {
		return fmt.Sprintf("resized by a move in %d steps; disruption %s", len(p.GetSteps()), disruptionName(answer.GetDisruption()))
	}
	if d := answer.GetDisruption(); d > admissionv1.Disruption_DISRUPTION_NONE {
		return "resized; disruption " + disruptionName(d)
	}
	return "resized"
}

package pods

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/api/podspec"
	"github.com/berthd/berth/api/sentences"
	"github.com/berthd/berth/clients/berthctl/drawing"
	"github.com/berthd/berth/clients/berthctl/get"
	"github.com/berthd/berth/clients/internal/command"
	"github.com/berthd/berth/clients/internal/table"
)

const admitLong = `Request CPUs, memory, devices and a cgroup for every pod in the files. A pod gets all that it requests, or nothing.
A dry run needs no uid.

A pod that is admitted again gets the same answer. The exit code is 3 if a pod was rejected, and 4 if one was deferred
and none was rejected.

--holds names the CPUs, memory and devices of a running pod that is not in the ledger, for example after the ledger was
lost. Take the values from the container runtime. berthd records them if no other pod holds them, and makes no new
allocation. NAME=VALUE is cpus=2-5,8 (exclusive CPUs), memory=0-1:4Gi or hugepages-1Gi=0:2Gi (NUMA nodes and amount),
or example.com/gpu=ID,ID (devices). Without --holds berthd uses the pod's claim record, or the kernel's values, which do
not include devices.`

const admitExample = `  # Would it fit? If not, why?
  berthctl admit -f pod.yaml --dry-run --explain

  # A pod without a uid, as before it is sent to an API server.
  berthctl admit -f pod.yaml --generate-uid

  # Every pod of a directory and of those within it; a misspelt field is an error.
  berthctl admit -R -f pods/ --strict

  # A pod of the cluster.
  kubectl get pod web -o json | berthctl admit -f -

  # A running pod that berthd has lost: what its containers app and sidecar hold.
  berthctl admit -f pod.yaml --holds app:cpus=2-5 --holds app:memory=0:4Gi --holds sidecar:example.com/gpu=g0,g3`

func Admit(c *command.Ctl) *cobra.Command {
	var (
		m      command.Manifest
		dryRun bool
		id     string
		owner  string
		held   []string
		drawn  drawing.Flags
	)
	cmd := c.Verb(command.About{
		Use:   "admit -f FILE [--dry-run] [--explain]",
		Short: "Request CPUs, memory, devices and a cgroup for a pod",
		Long:  admitLong, Example: admitExample,
	}, func(ctx context.Context, s *command.Session, _ []string) error {
		if len(m.Files) == 0 {
			return command.Usagef("admit", "-f is missing")
		}
		if drawn.Draw && !dryRun {
			return command.Usagef("admit", "--map is for --dry-run; 'berthctl map --pod' shows an admitted pod")
		}
		picture, err := drawn.Options(s.Ctl)
		if err != nil {
			return command.Usagef("admit", "%v", err)
		}
		m.GenerateUID = m.GenerateUID || dryRun
		pods, err := m.Load(ctx, s.Ctl)
		if err != nil {
			return err
		}
		if id != "" && len(pods) > 1 {
			return command.Usagef("admit", "--admission-id names one attempt, and %s has %d pods", m.Title(), len(pods))
		}
		running, err := holds(held)
		if err != nil {
			return err
		}
		if len(running) > 0 && len(pods) > 1 {
			return command.Usagef("admit", "--holds is about one pod, and %s has %d", m.Title(), len(pods))
		}
		end := command.ExitDone
		for i, pod := range pods {
			s.Part(i)
			req := &admissionv1.AdmitRequest{Subject: &admissionv1.AdmitRequest_Pod{Pod: pod}, DryRun: dryRun, AdmissionId: id,
				Owner: owner, RunningAllocations: running}
			if m.Explain || drawn.Draw {
				req.TraceLevel = admissionv1.TraceLevel_TRACE_LEVEL_FULL
			}
			answer, err := s.Admit(ctx, req)
			if err != nil {
				return err
			}
			if err := showVerdict(ctx, s, req, answer, m.Explain); err != nil {
				return err
			}
			if drawn.Draw && !s.ForPrograms() {
				if err := drawing.ShowPlanned(ctx, s, pod, answer, picture); err != nil {
					return err
				}
			}
			end = worse(end, answer.GetVerdict())
		}
		if end != command.ExitDone {
			return command.Verdict(end)
		}
		return nil
	})
	m.Flags(cmd.Flags())
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "decide and explain, but change nothing")
	cmd.Flags().BoolVar(&m.Explain, "explain", false, "print how the decision was made, and which fields of the pod are not sent")
	drawn.Declare(cmd, "with --dry-run: draw the machine with the pod on it")
	cmd.Flags().StringVar(&id, "admission-id", "", "name of this attempt; it can be repeated safely with the same name")
	command.OwnerFlag(cmd.Flags(), &owner, "whose pod it becomes")
	cmd.Flags().StringArrayVar(&held, "holds", nil, "the allocation of a running container, as `CONTAINER:NAME=VALUE`; may be repeated")
	return cmd
}

// worse gives the exit code after one more verdict: rejected before deferred before done.
func worse(end int, v admissionv1.Verdict) int {
	switch {
	case v == admissionv1.Verdict_VERDICT_REJECTED:
		return command.ExitRejected
	case v == admissionv1.Verdict_VERDICT_DEFERRED && end == command.ExitDone:
		return command.ExitDeferred
	}
	return end
}

// showVerdict prints what became of a pod.
func showVerdict(ctx context.Context, s *command.Session, req *admissionv1.AdmitRequest, answer *admissionv1.AdmitResponse,
	explain bool) error {
	meta := req.GetPod().GetMetadata()
	for _, n := range answer.GetNotes() {
		s.Warn("pod %s/%s: %s", meta.GetNamespace(), meta.GetName(), n)
	}
	hint := ""
	err := s.Show(answer, func(w io.Writer) {
		would := ""
		if req.GetDryRun() {
			would = "would be "
		}
		fmt.Fprintf(w, "%s/%s ", meta.GetNamespace(), meta.GetName())
		command.Paint(w, command.VerdictColor(answer.GetVerdict()), would+VerdictText(answer))
		fmt.Fprintln(w)
		if len(answer.GetAllocations()) > 0 {
			s.Shared = answer.GetSharedCpus()
			fmt.Fprintf(w, "\n%v", allocations(s.Ctl, answer.GetAllocations()))
		}
		if explain {
			get.ExplainAll(s.Ctl, w, answer.GetTrace())
			return
		}
		if answer.GetVerdict() != admissionv1.Verdict_VERDICT_ADMITTED {
			command.ExplainMissing(w, answer.GetTrace())
			get.ExplainHelp(w, answer.GetTrace())
		}
		switch {
		case answer.GetVerdict() != admissionv1.Verdict_VERDICT_REJECTED:
		case req.GetDryRun():
			hint = "hint: --explain shows why\n"
		default:
			hint = fmt.Sprintf("hint: 'berthctl explain %s' shows why\n", meta.GetUid())
		}
	})
	fmt.Fprint(s.Err, hint)
	return err
}

// VerdictText describes the verdict in one line.
func VerdictText(answer *admissionv1.AdmitResponse) string {
	switch answer.GetVerdict() {
	case admissionv1.Verdict_VERDICT_ADMITTED:
		text := "admitted: " + string(podspec.QoSClass(answer.GetQosClass()))
		if answer.GetCgroupParent() != "" {
			text += ", cgroup " + answer.GetCgroupParent()
		}
		return text
	case admissionv1.Verdict_VERDICT_REJECTED:
		return fmt.Sprintf("rejected: %s: %s", answer.GetReason(), command.OneLine(answer.GetMessage()))
	case admissionv1.Verdict_VERDICT_DEFERRED:
		text := "deferred: "
		if reason := answer.GetCondition().GetReason(); reason != "" {
			text += reason + ": "
		}
		text += command.OneLine(answer.GetMessage())
		if wait := answer.GetRetryAfter().AsDuration(); wait > 0 {
			text += fmt.Sprintf("; retry in %v", wait.Round(time.Millisecond))
		}
		return text
	}
	return "left without a verdict: " + command.OneLine(answer.GetMessage())
}

// allocations is the table of what containers got.
func allocations(c *command.Ctl, list []*typesv1.ContainerAllocation) *table.Table {
	t := table.New("CONTAINER", "ROLE", "CPUS", "OWN", "NUMA", "DEVICES").Wide(c.Wide(), "MEMORY", "IDS")
	for _, a := range list {
		t.Row(a.GetContainerName(), convert.Word(a.GetRole()), c.CPUs(a), command.YesNo(a.GetExclusiveCpus()),
			sentences.Hint(a.GetAffinity()),
			command.DeviceCounts(a.GetClaims()), command.Memory(a.GetClaims()), command.Joined(a.GetContainerIds()))
	}
	return t
}

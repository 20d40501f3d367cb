package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/clients/berthctl/table"
	"github.com/berthd/berth/clients/podspec"
)

// ownerFlag declares the flag for the owner of pods.
func ownerFlag(f *pflag.FlagSet, owner *string, what string) {
	f.StringVar(owner, "owner", "", what+": the name of an agent, such as berthlet or kubernetes (default \"default\")")
}

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

func (c *ctl) admit() *cobra.Command {
	var (
		m      manifest
		dryRun bool
		id     string
		owner  string
		held   []string
		drawn  mapFlags
	)
	cmd := c.verb(about{
		use:   "admit -f FILE [--dry-run] [--explain]",
		short: "Request CPUs, memory, devices and a cgroup for a pod",
		long:  admitLong, example: admitExample,
	}, func(ctx context.Context, s *session, _ []string) error {
		if len(m.files) == 0 {
			return usagef("admit", "-f is missing")
		}
		if drawn.draw && !dryRun {
			return usagef("admit", "--map is for --dry-run; 'berthctl map --pod' shows an admitted pod")
		}
		picture, err := drawn.options(s.ctl)
		if err != nil {
			return usagef("admit", "%v", err)
		}
		m.generateUID = m.generateUID || dryRun
		pods, err := m.load(ctx, s.ctl)
		if err != nil {
			return err
		}
		if id != "" && len(pods) > 1 {
			return usagef("admit", "--admission-id names one attempt, and %s has %d pods", m.title(), len(pods))
		}
		running, err := holds(held)
		if err != nil {
			return err
		}
		if len(running) > 0 && len(pods) > 1 {
			return usagef("admit", "--holds is about one pod, and %s has %d", m.title(), len(pods))
		}
		end := exitDone
		for i, pod := range pods {
			if i > 0 && !s.forPrograms() {
				fmt.Fprintln(s.out)
			}
			req := &admissionv1.AdmitRequest{Subject: &admissionv1.AdmitRequest_Pod{Pod: pod}, DryRun: dryRun, AdmissionId: id, Owner: owner, RunningAllocations: running}
			if m.explain || drawn.draw {
				req.TraceLevel = admissionv1.TraceLevel_TRACE_LEVEL_FULL
			}
			answer, err := s.Admit(ctx, req)
			if err != nil {
				return err
			}
			if err := s.showVerdict(ctx, req, answer, m.explain); err != nil {
				return err
			}
			if drawn.draw && !s.forPrograms() {
				if err := s.showPlanned(ctx, pod, answer, picture); err != nil {
					return err
				}
			}
			end = worse(end, answer.GetVerdict())
		}
		if end != exitDone {
			return verdict(end)
		}
		return nil
	})
	m.flags(cmd.Flags())
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "decide and explain, but change nothing")
	cmd.Flags().BoolVar(&m.explain, "explain", false, "print how the decision was made, and which fields of the pod are not sent")
	drawn.declare(cmd, "with --dry-run: draw the machine with the pod on it")
	cmd.Flags().StringVar(&id, "admission-id", "", "name of this attempt; it can be repeated safely with the same name")
	ownerFlag(cmd.Flags(), &owner, "whose pod it becomes")
	cmd.Flags().StringArrayVar(&held, "holds", nil, "the allocation of a running container, as `CONTAINER:NAME=VALUE`; may be repeated")
	return cmd
}

// worse gives the exit code after one more verdict: rejected before deferred before done.
func worse(end int, v admissionv1.Verdict) int {
	switch {
	case v == admissionv1.Verdict_VERDICT_REJECTED:
		return exitRejected
	case v == admissionv1.Verdict_VERDICT_DEFERRED && end == exitDone:
		return exitDeferred
	}
	return end
}

// showVerdict prints what became of a pod.
func (s *session) showVerdict(ctx context.Context, req *admissionv1.AdmitRequest, answer *admissionv1.AdmitResponse, explain bool) error {
	meta := req.GetPod().GetMetadata()
	for _, n := range answer.GetNotes() {
		fmt.Fprintf(s.err, "warning: pod %s/%s: %s\n", meta.GetNamespace(), meta.GetName(), oneLine(n))
	}
	hint := ""
	err := s.show(answer, func(w io.Writer) {
		would := ""
		if req.GetDryRun() {
			would = "would be "
		}
		fmt.Fprintf(w, "%s/%s ", meta.GetNamespace(), meta.GetName())
		paint(w, verdictColor(answer.GetVerdict()), would+verdictText(answer))
		fmt.Fprintln(w)
		if len(answer.GetAllocations()) > 0 {
			s.shared = answer.GetSharedCpus()
			fmt.Fprintf(w, "\n%v", s.allocations(answer.GetAllocations()))
		}
		if explain {
			s.explainAll(w, answer.GetTrace(), s.names(ctx))
			return
		}
		if answer.GetVerdict() != admissionv1.Verdict_VERDICT_ADMITTED {
			explainMissing(w, answer.GetTrace(), s.names(ctx))
			explainHelp(w, answer.GetTrace())
		}
		switch {
		case answer.GetVerdict() != admissionv1.Verdict_VERDICT_REJECTED:
		case req.GetDryRun():
			hint = "hint: --explain shows why\n"
		default:
			hint = fmt.Sprintf("hint: 'berthctl explain %s' shows why\n", meta.GetUid())
		}
	})
	fmt.Fprint(s.err, hint)
	return err
}

// verdictText describes the verdict in one line.
func verdictText(answer *admissionv1.AdmitResponse) string {
	switch answer.GetVerdict() {
	case admissionv1.Verdict_VERDICT_ADMITTED:
		text := "admitted: " + string(podspec.QoSClass(answer.GetQosClass()))
		if answer.GetCgroupParent() != "" {
			text += ", cgroup " + answer.GetCgroupParent()
		}
		return text
	case admissionv1.Verdict_VERDICT_REJECTED:
		return fmt.Sprintf("rejected: %s: %s", answer.GetReason(), oneLine(answer.GetMessage()))
	case admissionv1.Verdict_VERDICT_DEFERRED:
		text := "deferred: "
		if reason := answer.GetCondition().GetReason(); reason != "" {
			text += reason + ": "
		}
		text += oneLine(answer.GetMessage())
		if wait := answer.GetRetryAfter().AsDuration(); wait > 0 {
			text += fmt.Sprintf("; retry in %v", wait.Round(time.Millisecond))
		}
		return text
	}
	return "left without a verdict: " + oneLine(answer.GetMessage())
}

// allocations is the table of what containers got.
func (c *ctl) allocations(list []*typesv1.ContainerAllocation) *table.Table {
	t := table.New("CONTAINER", "ROLE", "CPUS", "OWN", "NUMA", "DEVICES").Wide(c.wide(), "MEMORY", "IDS")
	for _, a := range list {
		t.Row(a.GetContainerName(), convert.Word(a.GetRole()), c.cpus(a), yesNo(a.GetExclusiveCpus()), hintText(a.GetAffinity()),
			deviceCounts(a.GetClaims()), memory(a.GetClaims()), joined(a.GetContainerIds()))
	}
	return t
}

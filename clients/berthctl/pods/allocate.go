package pods

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/sentences"
	"github.com/berthd/berth/clients/internal/command"
	"github.com/berthd/berth/clients/internal/table"
)

const allocateLong = `Show everything that a runtime needs to start a container of an admitted pod. With -f the pod is admitted first; then
only the container is named.

A repeated call changes nothing. The exit code is 3 if the pod was rejected, 4 if it was deferred.`

const allocateExample = `  berthctl allocate default/web app
  berthctl allocate -f pod.yaml app -o json`

func Allocate(c *command.Ctl) *cobra.Command {
	var m command.Manifest
	cmd := c.Verb(command.About{
		Use:   "allocate (POD | -f FILE) CONTAINER",
		Short: "Show what a runtime needs to start a container",
		Long:  allocateLong, Example: allocateExample, Args: []string{"CONTAINER", "[POD]"},
	}, func(ctx context.Context, s *command.Session, args []string) error {
		container := args[len(args)-1]
		var uid string
		switch {
		case len(m.Files) > 0 && len(args) == 2:
			return command.Usagef("allocate", "the pod is named twice, as %s and by -f", args[0])
		case len(m.Files) > 0:
			var err error
			if uid, err = admitOne(ctx, s, &m); err != nil {
				return err
			}
		case len(args) == 1:
			return command.Usagef("allocate", "expected CONTAINER, or -f")
		default:
			pod, err := s.Find(ctx, args[0])
			if err != nil {
				return err
			}
			uid = pod.GetUid()
		}
		answer, err := s.Allocate(ctx, uid, container)
		if err != nil {
			return err
		}
		return s.Show(answer, func(w io.Writer) { showStart(s.Ctl, w, answer) })
	})
	m.Flags(cmd.Flags())
	cmd.ValidArgsFunction = c.Complete([]string{"POD", "CONTAINER"})
	return cmd
}

// admitOne admits the pod of a file and returns its uid. The verdict of a pod that was not admitted is printed, and is
// the verb's end.
func admitOne(ctx context.Context, s *command.Session, m *command.Manifest) (string, error) {
	pod, err := m.One(ctx, s.Ctl)
	if err != nil {
		return "", err
	}
	req := &admissionv1.AdmitRequest{Subject: &admissionv1.AdmitRequest_Pod{Pod: pod}}
	answer, err := s.Admit(ctx, req)
	if err != nil {
		return "", err
	}
	if answer.GetVerdict() != admissionv1.Verdict_VERDICT_ADMITTED {
		if err := showVerdict(ctx, s, req, answer, false); err != nil {
			return "", err
		}
		return "", command.Verdict(worse(command.ExitDone, answer.GetVerdict()))
	}
	return pod.GetMetadata().GetUid(), nil
}

// showStart prints for people what a runtime needs.
func showStart(c *command.Ctl, w io.Writer, a *allocationv1.AllocateResponse) {
	f := table.NewFields("")
	r := a.GetResources()
	f.Add("CPUs", command.CPUsText(r.GetCpusetCpus().GetList(), a.GetAllocation().GetExclusiveCpus()))
	f.Add("Memory nodes", sentences.Nodes(r.GetCpusetMems()))
	f.Add("CPU shares", positive(int64(r.GetCpuShares())))
	f.Add("CPU quota", quota(r))
	f.Add("Memory limit", limit(r.GetMemoryLimitBytes()))
	f.Add("Memory and swap", limit(r.GetMemorySwapLimitBytes()))
	for _, h := range r.GetHugepageLimits() {
		f.Add("Huge pages "+table.Bytes(h.GetPageSizeBytes()), command.LimitText(h.LimitBytes, command.BytesText))
	}
	f.Add("OOM score", fmt.Sprint(r.GetOomScoreAdj()))
	f.Add("Unified", command.Pairs(r.GetUnified())...)
	f.Add("Cgroup parent", a.GetCgroupParent())
	f.Add("Cgroup", a.GetCgroupPath())
	for _, d := range a.GetEdits().GetDevices() {
		f.Add("Device", moved(d.GetHostPath(), d.GetContainerPath())+" ("+d.GetPermissions()+")")
	}
	for _, m := range a.GetEdits().GetMounts() {
		mode := "rw"
		if m.GetReadOnly() {
			mode = "ro"
		}
		f.Add("Mount", moved(m.GetHostPath(), m.GetContainerPath())+" ("+mode+")")
	}
	f.Add("Environment", command.Pairs(a.GetEdits().GetEnvs())...)
	f.Add("Annotations", command.Pairs(a.GetEdits().GetAnnotations())...)
	for _, d := range a.GetEdits().GetCdiDevices() {
		f.Add("CDI device", d.GetName())
	}
	if c.Wide() {
		f.Add("Holds", sentences.Claims(a.GetAllocation().GetClaims())...)
	}
	f.Add("Notes", a.GetNotes()...)
	fmt.Fprint(w, f)
}

// positive returns a value that is not set where it is zero.
func positive(n int64) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprint(n)
}

func quota(r *typesv1.LinuxResources) string {
	switch q := r.GetCpuQuotaMicroseconds(); {
	case q == 0:
		return ""
	case q < 0:
		return "unlimited"
	default:
		return fmt.Sprintf("%dµs in %dµs", q, r.GetCpuPeriodMicroseconds())
	}
}

func limit(bytes int64) string {
	switch {
	case bytes == 0:
		return ""
	case bytes < 0:
		return "unlimited"
	}
	return table.Bytes(uint64(bytes))
}

// moved returns a path of the host and, where it differs, of the container.
func moved(host, container string) string {
	if host == container || container == "" {
		return host
	}
	return host + " as " + container
}

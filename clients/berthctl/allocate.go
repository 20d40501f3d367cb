package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/spf13/cobra"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/clients/berthctl/table"
)

const allocateLong = `Show everything that a runtime needs to start a container of an admitted pod. With -f the pod is admitted first; then
only the container is named.

A repeated call changes nothing. The exit code is 3 if the pod was rejected, 4 if it was deferred.`

const allocateExample = `  berthctl allocate default/web app
  berthctl allocate -f pod.yaml app -o json`

func (c *ctl) allocate() *cobra.Command {
	var m manifest
	cmd := c.verb(about{
		use:   "allocate (POD | -f FILE) CONTAINER",
		short: "Show what a runtime needs to start a container",
		long:  allocateLong, example: allocateExample, args: []string{"CONTAINER", "[POD]"},
	}, func(ctx context.Context, s *session, args []string) error {
		container := args[len(args)-1]
		var uid string
		switch {
		case len(m.files) > 0 && len(args) == 2:
			return usagef("allocate", "the pod is named twice, as %s and by -f", args[0])
		case len(m.files) > 0:
			var err error
			if uid, err = s.admitOne(ctx, &m); err != nil {
				return err
			}
		case len(args) == 1:
			return usagef("allocate", "expected CONTAINER, or -f")
		default:
			pod, err := s.find(ctx, args[0])
			if err != nil {
				return err
			}
			uid = pod.GetUid()
		}
		answer, err := s.Allocation().Allocate(ctx, &allocationv1.AllocateRequest{Subject: &allocationv1.AllocateRequest_PodUid{PodUid: uid}, ContainerName: container})
		if err != nil {
			return err
		}
		return s.show(answer, func(w io.Writer) { s.showStart(w, answer) })
	})
	m.flags(cmd.Flags())
	cmd.ValidArgsFunction = c.complete([]string{"POD", "CONTAINER"})
	return cmd
}

// admitOne admits the pod of a file and returns its uid. The verdict of a pod that was not admitted is printed, and is
// the verb's end.
func (s *session) admitOne(ctx context.Context, m *manifest) (string, error) {
	pod, err := m.one(ctx, s.ctl)
	if err != nil {
		return "", err
	}
	req := &admissionv1.AdmitRequest{Subject: &admissionv1.AdmitRequest_Pod{Pod: pod}}
	answer, err := s.Admit(ctx, req)
	if err != nil {
		return "", err
	}
	if answer.GetVerdict() != admissionv1.Verdict_VERDICT_ADMITTED {
		if err := s.showVerdict(ctx, req, answer, false); err != nil {
			return "", err
		}
		return "", verdict(worse(exitDone, answer.GetVerdict()))
	}
	return pod.GetMetadata().GetUid(), nil
}

// showStart prints for people what a runtime needs.
func (c *ctl) showStart(w io.Writer, a *allocationv1.AllocateResponse) {
	f := table.NewFields("")
	r := a.GetResources()
	f.Add("CPUs", cpusText(r.GetCpusetCpus().GetList(), a.GetAllocation().GetExclusiveCpus()))
	f.Add("Memory nodes", nodes(r.GetCpusetMems()))
	f.Add("CPU shares", positive(int64(r.GetCpuShares())))
	f.Add("CPU quota", quota(r))
	f.Add("Memory limit", limit(r.GetMemoryLimitBytes()))
	f.Add("Memory and swap", limit(r.GetMemorySwapLimitBytes()))
	for _, h := range r.GetHugepageLimits() {
		f.Add("Huge pages "+table.Bytes(h.GetPageSizeBytes()), limitText(h.LimitBytes, bytesText))
	}
	f.Add("OOM score", fmt.Sprint(r.GetOomScoreAdj()))
	f.Add("Unified", pairs(r.GetUnified())...)
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
	f.Add("Environment", pairs(a.GetEdits().GetEnvs())...)
	f.Add("Annotations", pairs(a.GetEdits().GetAnnotations())...)
	for _, d := range a.GetEdits().GetCdiDevices() {
		f.Add("CDI device", d.GetName())
	}
	if c.wide() {
		f.Add("Holds", claimTexts(a.GetAllocation().GetClaims())...)
	}
	f.Add("Notes", a.GetNotes()...)
	fmt.Fprint(w, f)
}

// cpusText prints CPUs, and whether they are exclusive.
func cpusText(cpus string, exclusive bool) string {
	switch {
	case cpus == "":
		return ""
	case exclusive:
		return cpus + " (its own)"
	}
	return cpus + " (shared)"
}

// positive spells a value that is not set where it is zero.
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

// moved spells a path of the host and, where it differs, of the container.
func moved(host, container string) string {
	if host == container || container == "" {
		return host
	}
	return host + " as " + container
}

func pairs(m map[string]string) []string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		out = append(out, k+"="+m[k])
	}
	return out
}

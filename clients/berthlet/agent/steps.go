package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	errorsv1 "github.com/berthd/berth/api/berth/errors/v1"
	"github.com/berthd/berth/api/podspec"
	"github.com/berthd/berth/clients/berth"
	"github.com/berthd/berth/clients/berthlet/lifecycle"
	"github.com/berthd/berth/clients/berthlet/volume"
	"github.com/berthd/berth/managers/errdefs"
)

// do executes a step and reports whether planning again makes sense immediately. It does not
// after a signal, whose effect takes a moment.
func (w *worker) do(ctx context.Context, step lifecycle.Step) (again bool) {
	w.log.Debug("taking a step", "do", step.Do.String(), "container", step.Container, "attempt", step.Attempt)
	switch step.Do {
	case lifecycle.Admit:
		w.retryLater(w.admit(ctx), "admit the pod")
		return true
	case lifecycle.Release:
		w.retryLater(w.release(ctx), "release the pod")
		return true
	case lifecycle.Create:
		w.trouble(step, w.create(ctx, step))
		return true
	case lifecycle.Start:
		w.trouble(step, w.start(ctx, step))
		return true
	case lifecycle.Terminate:
		return w.signal(ctx, step, syscall.SIGTERM)
	default:
		return w.signal(ctx, step, syscall.SIGKILL)
	}
}

// retryLater notes that a step of the pod failed and is to be tried again.
func (w *worker) retryLater(err error, what string) {
	if err == nil {
		w.wait = lifecycle.Trouble{}
		return
	}
	w.wait = lifecycle.Trouble{At: w.Now(), Delay: w.Retry.After(w.wait.Delay)}
	var later *deferral
	if errors.As(err, &later) {
		w.log.Info("the pod is deferred", "reason", w.rec.Reason, "message", w.rec.Message)
		if later.after > 0 {
			w.wait.Delay = later.after
		}
		return
	}
	w.log.Warn(what, "error", err)
	if w.rec.Verdict == lifecycle.Undecided {
		w.rec.Message = err.Error()
	}
}

// trouble keeps a failed step of a container for later.
func (w *worker) trouble(step lifecycle.Step, err error) {
	p := w.rec.past(step.Container)
	if err == nil {
		p.Seen.Trouble, p.Trouble = lifecycle.Trouble{}, ""
		return
	}
	w.log.Warn(step.Do.String()+" container", "container", step.Container, "attempt", step.Attempt, "error", err)
	p.Seen.Trouble = lifecycle.Trouble{At: w.Now(), Delay: w.Retry.After(p.Seen.Trouble.Delay)}
	p.Trouble = err.Error()
}

// reject makes the pod one that does not run.
func (w *worker) reject(reason, message string) {
	w.log.Info("the pod is rejected", "reason", reason, "message", message)
	w.rec.Verdict, w.rec.Reason, w.rec.Message = lifecycle.Rejected, reason, message
}

// unsupported is the reason of pods that an agent without an API server cannot run.
const unsupported = "Unsupported"

// admit admits the pod at berthd.
func (w *worker) admit(ctx context.Context) error {
	if problems := slices.Concat(w.manifest.Problems, unenforced(w.manifest, w.Features)); len(problems) > 0 {
		w.reject(unsupported, strings.Join(problems, "; "))
		return nil
	}
	known, bound, err := w.Node.Knows(ctx, w.uid)
	if err != nil {
		return err
	}
	answer, err := w.Node.Admit(ctx, w.manifest.Pod)
	switch {
	case berth.IsInvalid(err):
		w.reject("Invalid", err.Error())
		return nil
	case known && berth.HasReason(err, errorsv1.ErrorReason_POD_SPEC_DIFFERS) && !(w.rec.Accepted.IsZero() && w.neverRan()):
		return w.keepResized(ctx, bound)
	case berth.IsPrecondition(err) && w.neverRan():
		// berthd has another pod of this uid, from before this agent's records, or has lost a resized one.
		if _, removeErr := w.Node.Remove(ctx, w.uid); removeErr != nil {
			return removeErr
		}
		return err
	case berth.IsStateUncertain(err):
		w.requestSync()
		return err
	case err != nil:
		return err
	}
	return w.heedVerdict(ctx, answer, bound)
}

// keepResized continues with a pod that berthd has with other amounts than its manifest: somebody has resized it.
func (w *worker) keepResized(ctx context.Context, bound []string) error {
	if err := w.bindAgain(ctx, bound); err != nil {
		return err
	}
	if w.rec.Accepted.IsZero() { // the record was lost
		w.rec.Accepted = w.Now()
	}
	w.log.Info("the pod was resized, and keeps its amounts")
	w.rec.Verdict, w.rec.Reason, w.rec.Message = lifecycle.Admitted, "", ""
	return nil
}

// neverRan reports whether no container of the pod was ever made.
func (w *worker) neverRan() bool {
	for _, p := range w.rec.Containers {
		if p.ID != "" {
			return false
		}
	}
	return true
}

func (w *worker) heedVerdict(ctx context.Context, answer *admissionv1.AdmitResponse, bound []string) error {
	status := podspec.Status(answer)
	switch answer.GetVerdict() {
	case admissionv1.Verdict_VERDICT_REJECTED:
		w.reject(status.Reason, status.Message)
		return nil
	case admissionv1.Verdict_VERDICT_DEFERRED:
		w.rec.Reason, w.rec.Message = status.Reason, status.Message
		if answer.GetCondition().GetReason() == berth.StateUncertain {
			w.requestSync()
		}
		return &deferral{answer.GetRetryAfter().AsDuration()}
	}
	if err := w.bindAgain(ctx, bound); err != nil {
		return err
	}
	if w.rec.Accepted.IsZero() {
		w.rec.Accepted = w.Now()
	}
	w.log.Info("the pod is admitted", "qos", status.QOSClass)
	for _, n := range answer.GetNotes() {
		w.log.Warn("the pod was admitted without something that it requests", "note", n)
	}
	w.rec.Verdict, w.rec.Reason, w.rec.Message, w.rec.QoS = lifecycle.Admitted, "", "", string(status.QOSClass)
	return nil
}

// deferral is berthd's "not now, but after".
type deferral struct{ after time.Duration }

func (d *deferral) Error() string { return "deferred for " + d.after.String() }

// bindAgain reports the running containers that berthd does not have to berthd. It has lost them, or they were not reported since it lost
// them.
func (w *worker) bindAgain(ctx context.Context, bound []string) error {
	for name, p := range w.rec.Containers {
		if p.Seen.Phase == lifecycle.Running && !slices.Contains(bound, p.ID) {
			if err := w.Node.PreStart(ctx, w.uid, name, p.ID, p.PID); err != nil {
				return fmt.Errorf("bind container %s again: %w", name, err)
			}
		}
	}
	return nil
}

// create makes an attempt of a container, in place of the one before.
func (w *worker) create(ctx context.Context, step lifecycle.Step) error {
	before := w.rec.past(step.Container)
	if err := w.discard(ctx, before); err != nil {
		return err
	}
	if err := w.Volumes.Release(volume.Holder{PodUID: w.uid, Container: step.Container}); err != nil {
		return err
	}
	before.Unpinned = true // the next pins are those of this attempt
	allocated, err := w.Node.Allocate(ctx, w.uid, step.Container)
	if err != nil {
		return w.admitIfLost(err)
	}
	reserved, err := w.Node.ReservedCPUs(ctx)
	if err != nil {
		return err
	}
	shared := w.place.shared(w.manifest, allocated.GetCgroupParent())
	shared.SandboxCPUs = reserved
	if err := w.Runtime.Open(ctx, shared); err != nil {
		return err
	}
	for _, v := range w.manifest.Volumes {
		if v.HostPath == "" {
			if err := volume.MakeEmpty(w.place.volume(w.uid, v.Name), w.manifest.Shared.VolumeGroup); err != nil {
				return err
			}
		}
	}
	for _, l := range w.manifest.Launches {
		if l.Name == step.Container {
			spec := w.place.describe(w.manifest, l, allocated, step)
			spec.StartCPUs = startCPUs(reserved, spec.Resources.CPUs)
			secure(&spec, w.manifest.Shared, l.Security, w.SeccompDir)
			if spec.Mounts, err = w.mounts(l, allocated.GetEdits().GetMounts()); err != nil {
				return err
			}
			return w.Runtime.Create(ctx, spec)
		}
	}
	return errdefs.Internalf("the pod has no container %q", step.Container)
}

// startCPUs lists where a container's process may be before its start. Reserved CPUs come
// first: no pod holds them exclusively. A pod with CPUs of its own has none of them, and
// the container then waits on its own.
func startCPUs(reserved, own string) (choices []string) {
	for _, cpus := range []string{reserved, own} {
		if cpus != "" {
			choices = append(choices, cpus)
		}
	}
	return choices
}

// discard removes a container that has exited from berthd and from the runtime.
func (w *worker) discard(ctx context.Context, p *past) error {
	if p.ID == "" {
		return nil
	}
	if err := w.Runtime.Remove(ctx, p.ID); err != nil {
		return err
	}
	if p.Unbound {
		return nil
	}
	return w.unbind(ctx, p)
}

// unbind reports to berthd that a container has exited.
func (w *worker) unbind(ctx context.Context, p *past) error {
	if err := w.Node.PostStop(ctx, p.ID); err != nil {
		return err
	}
	p.Unbound = true
	return nil
}

// admitIfLost makes a pod that berthd has lost be admitted again. It returns the error, so that
// the step is repeated after that.
func (w *worker) admitIfLost(err error) error {
	if berth.NeedsAdmission(err) {
		w.rec.Verdict = lifecycle.Undecided
	}
	return err
}

// start binds a container in berthd, which moves its process into its cgroup, and starts it.
func (w *worker) start(ctx context.Context, step lifecycle.Step) error {
	p := w.rec.past(step.Container)
	if err := w.Node.PreStart(ctx, w.uid, step.Container, p.ID, p.PID); err != nil {
		return w.admitIfLost(err)
	}
	return w.Runtime.Start(ctx, p.ID)
}

// signal sends a signal to a container: SIGTERM to terminate, or SIGKILL.
func (w *worker) signal(ctx context.Context, step lifecycle.Step, s syscall.Signal) bool {
	p := w.rec.past(step.Container)
	w.log.Info("signaling a container", "container", step.Container, "signal", s.String())
	if s == syscall.SIGTERM && p.Seen.Asked.IsZero() {
		p.Seen.Asked = w.Now()
	}
	if err := w.Runtime.Signal(ctx, p.ID, s); err != nil {
		w.log.Warn("signal a container failed", "container", step.Container, "error", err)
		return false
	}
	if s == syscall.SIGTERM {
		p.Seen.Told = w.Now()
	}
	return s == syscall.SIGTERM
}

// release releases everything that the pod has. Its allocation is released first, right after the
// end of its last process, because other pods may wait for it. Slow steps follow.
func (w *worker) release(ctx context.Context) error {
	statuses, err := w.Runtime.List(ctx, w.uid)
	if err != nil {
		return err
	}
	for _, s := range statuses {
		if err := w.Runtime.Remove(ctx, s.ID); err != nil {
			return err
		}
	}
	if err := w.giveBack(ctx); err != nil {
		return err
	}
	if err := w.Runtime.Close(ctx, w.uid); err != nil {
		return err
	}
	if err := w.Volumes.ReleasePod(w.uid); err != nil {
		return err
	}
	if err := os.RemoveAll(w.place.pod(w.uid) + "/volumes"); err != nil {
		return err
	}
	w.rec.Released = true
	return nil
}

// giveBack removes the pod from berthd, and unbinds containers whose exit was not reported. It
// does so once, however often the release is repeated.
func (w *worker) giveBack(ctx context.Context) error {
	if w.over() {
		return nil
	}
	known, err := w.Node.Remove(ctx, w.uid)
	if err != nil {
		return err
	}
	w.mu.Lock()
	w.released = true
	w.mu.Unlock()
	for _, p := range w.rec.Containers {
		p.Unbound = true
	}
	if !known && w.rec.Verdict != lifecycle.Rejected {
		// berthd may have lost the pod but keep its cgroup, because the last list of living pods
		// contained the pod.
		w.requestSync()
	}
	return nil
}

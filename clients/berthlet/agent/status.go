package agent

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/berthd/berth/clients/berthlet/lifecycle"
	"github.com/berthd/berth/clients/berthlet/manifest"
)

// Status reports the pods of an agent. Its fields are named as in the
// status of a Kubernetes pod.
type Status struct {
	// Time is when it was written.
	Time time.Time   `json:"time"`
	Pods []PodStatus `json:"pods"`
	// Unreadable are the files of manifests that could not be read.
	Unreadable []manifest.Problem `json:"unreadableManifests,omitempty"`
}

// PodStatus is a pod as it is.
type PodStatus struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid"`
	Phase     string `json:"phase"`
	// Reason and Message are why the pod is not admitted.
	Reason   string `json:"reason,omitempty"`
	Message  string `json:"message,omitempty"`
	QOSClass string `json:"qosClass,omitempty"`
	// StartTime is when the pod was admitted, DeletionTimestamp since when it is to
	// go.
	StartTime         *time.Time `json:"startTime,omitempty"`
	DeletionTimestamp *time.Time `json:"deletionTimestamp,omitempty"`
	// Notes list settings of the manifest without effect.
	Notes                 []string          `json:"notes,omitempty"`
	InitContainerStatuses []ContainerStatus `json:"initContainerStatuses,omitempty"`
	ContainerStatuses     []ContainerStatus `json:"containerStatuses,omitempty"`
}

// ContainerStatus is a container as it is.
type ContainerStatus struct {
	Name         string          `json:"name"`
	Image        string          `json:"image"`
	ContainerID  string          `json:"containerID,omitempty"`
	RestartCount int             `json:"restartCount"`
	State        ContainerState  `json:"state"`
	LastState    *ContainerState `json:"lastState,omitempty"`
	LogPath      string          `json:"logPath,omitempty"`
}

// ContainerState has one of its fields.
type ContainerState struct {
	Waiting    *Waiting    `json:"waiting,omitempty"`
	Running    *Running    `json:"running,omitempty"`
	Terminated *Terminated `json:"terminated,omitempty"`
}

// Waiting tells why a container does not run.
type Waiting struct {
	Reason  string `json:"reason"`
	Message string `json:"message,omitempty"`
}

// Running is a container that runs.
type Running struct {
	StartedAt time.Time `json:"startedAt"`
	// PID is the first process as the machine counts.
	PID int `json:"pid"`
}

// Terminated is a container that has ended.
type Terminated struct {
	ExitCode   int       `json:"exitCode"`
	Reason     string    `json:"reason"`
	StartedAt  time.Time `json:"startedAt"`
	FinishedAt time.Time `json:"finishedAt"`
}

// createError is why a container waits that could not be made, as the kubelet
// writes it.
const createError = "CreateContainerError"

// Restarts counts the restarts of all containers of a pod.
func (p PodStatus) Restarts() int {
	n := 0
	for _, c := range slices.Concat(p.InitContainerStatuses, p.ContainerStatuses) {
		n += c.RestartCount
	}
	return n
}

// Ready counts the running containers, and all containers that should run.
func (p PodStatus) Ready() (ready, all int) {
	for _, c := range p.ContainerStatuses {
		all++
		if c.State.Running != nil {
			ready++
		}
	}
	return ready, all
}

// status puts the pod's status together.
func (w *worker) status() PodStatus {
	meta := w.manifest.Pod.GetMetadata()
	out := PodStatus{
		Namespace: meta.GetNamespace(), Name: meta.GetName(), UID: w.uid, Phase: string(w.phase),
		Reason: w.rec.Reason, Message: w.rec.Message, QOSClass: w.rec.QoS,
		StartTime: stamp(w.rec.Accepted), DeletionTimestamp: stamp(w.rec.Deleted), Notes: w.manifest.Notes,
	}
	for _, l := range w.manifest.Launches {
		c := w.containerStatus(l.Name)
		c.Image = l.Image
		if l.Init {
			out.InitContainerStatuses = append(out.InitContainerStatuses, c)
		} else {
			out.ContainerStatuses = append(out.ContainerStatuses, c)
		}
	}
	return out
}

func stamp(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

func (w *worker) containerStatus(name string) ContainerStatus {
	p := w.rec.Containers[name]
	if p == nil {
		p = &past{}
	}
	out := ContainerStatus{Name: name, ContainerID: p.ID, RestartCount: p.Seen.Attempt}
	if p.ID != "" {
		out.LogPath = w.place.log(w.manifest, name, p.Seen.Attempt)
	}
	if p.Last != nil {
		out.LastState = &ContainerState{Terminated: p.Last.terminated()}
	}
	end := ending{ID: p.ID, Reason: p.Reason, ExitCode: p.Seen.ExitCode, Started: p.Seen.Started, Finished: p.Seen.Finished}
	switch {
	case p.Seen.Phase == lifecycle.Running:
		out.State.Running = &Running{StartedAt: p.Seen.Started, PID: p.PID}
	case p.Trouble != "":
		out.State.Waiting = &Waiting{Reason: createError, Message: p.Trouble}
	case p.Seen.Phase == lifecycle.Exited && w.waiting[name] == "":
		out.State.Terminated = end.terminated()
	default:
		out.State.Waiting = &Waiting{Reason: cmp.Or(w.waiting[name], lifecycle.WaitsForCreation)}
		if p.Seen.Phase == lifecycle.Exited {
			out.LastState = &ContainerState{Terminated: end.terminated()}
		}
	}
	return out
}

func (e *ending) terminated() *Terminated {
	reason := e.Reason
	switch {
	case reason != "":
	case e.ExitCode == 0:
		reason = "Completed"
	default:
		reason = "Error"
	}
	return &Terminated{ExitCode: e.ExitCode, Reason: reason, StartedAt: e.Started, FinishedAt: e.Finished}
}

// publish keeps a pod's status for others.
func (a *Agent) publish(s PodStatus) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.status[s.UID] = s
	a.reportPublished()
}

// Unreadable keeps which files of manifests could not be read, for the status.
func (a *Agent) Unreadable(problems []manifest.Problem) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !slices.Equal(a.unreadable, problems) {
		a.unreadable = problems
		a.reportPublished()
	}
}

func (a *Agent) reportPublished() {
	select {
	case a.published <- struct{}{}:
	default:
	}
}

// Status returns all pods, by namespace, name and uid.
func (a *Agent) Status() Status {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := Status{Time: a.Now(), Pods: []PodStatus{}, Unreadable: a.unreadable}
	for _, s := range a.status {
		out.Pods = append(out.Pods, s)
	}
	slices.SortFunc(out.Pods, func(x, y PodStatus) int {
		return cmp.Or(cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Name, y.Name), cmp.Compare(x.UID, y.UID))
	})
	return out
}

// writeStatus writes the status file until the context ends.
func (a *Agent) writeStatus(ctx context.Context) {
	a.reportPublished() // the file of an earlier run is old
	for {
		select {
		case <-a.published:
		case <-ctx.Done():
			return
		}
		text, err := json.MarshalIndent(a.Status(), "", "  ")
		if err == nil {
			err = replaceFile(a.StatusFile, append(text, '\n'), 0o600)
		}
		if err != nil {
			a.Log.Error("write the status failed", "error", err)
		}
	}
}

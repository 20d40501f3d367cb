package lifecycle

import "time"

// Role tells what a container is for.
type Role int

const (
	// App is a container that the pod is there for.
	App Role = iota
	// Init is a container that has to succeed before the next one starts.
	Init
	// Sidecar is an init container that keeps running.
	Sidecar
)

// Restart is the policy for starting a container again after its end.
type Restart int

const (
	// Always starts it again after every end.
	Always Restart = iota
	// OnFailure starts it again if its exit code was not 0.
	OnFailure
	// Never leaves it ended.
	Never
)

// again reports whether an end with a code is followed by another attempt.
func (r Restart) again(code int) bool { return r == Always || r == OnFailure && code != 0 }

// Container is a container of a pod.
type Container struct {
	Name    string
	Role    Role
	Restart Restart
}

// Pod is a wanted pod.
type Pod struct {
	// Containers holds init containers and sidecars in their order, then the app
	// containers.
	Containers []Container
	// Grace is the time between SIGTERM and SIGKILL.
	Grace time.Duration
}

// Phase tells how far a container is.
type Phase int

const (
	// Absent containers are not there: never made, or removed.
	Absent Phase = iota
	// Created containers stand before their first instruction.
	Created
	// Running containers run.
	Running
	// Exited containers have ended.
	Exited
)

// alive reports whether a process of the container may be there.
func (p Phase) alive() bool { return p == Created || p == Running }

// Trouble is a step that failed. The zero value means that there is none.
type Trouble struct {
	// At is when it failed.
	At time.Time
	// Delay is how long to wait from then on.
	Delay time.Duration
}

// due is when the step may be tried again.
func (t Trouble) due() time.Time { return t.At.Add(t.Delay) }

// Seen is the state of a container's newest attempt.
type Seen struct {
	Phase   Phase
	Attempt int
	// ExitCode and Finished count once Phase is Exited; Started is zero for an
	// attempt that never ran.
	ExitCode          int
	Started, Finished time.Time
	// Pause is the delay before the next attempt.
	Pause time.Duration
	// Asked is when the runtime was first called to send it SIGTERM, and Told when the runtime had done so; zero before. If only Told is
	// zero, the container may have got the signal or not.
	Asked, Told time.Time
	// Trouble is about creating or starting it.
	Trouble Trouble
}

// Verdict is berthd's decision on the pod.
type Verdict int

const (
	// Undecided pods have not been admitted yet.
	Undecided Verdict = iota
	// Admitted pods have their place.
	Admitted
	// Rejected pods do not get one.
	Rejected
)

// State is the observed state of a pod.
type State struct {
	Verdict Verdict
	// Wait is why the pod was not admitted or released at the last try.
	Wait Trouble
	// Deleted is the time since when the pod is not wanted; zero while it is wanted.
	Deleted time.Time
	// Released is true once the pod's allocation and its containers were released.
	Released bool
	// Containers by name; a missing one is Absent.
	Containers map[string]Seen
}

// Verb names what a step does.
type Verb int

const (
	// Admit admits the pod at berthd.
	Admit Verb = iota
	// Create makes an attempt of a container, in place of the one before.
	Create
	// Start lets a created container run.
	Start
	// Terminate sends SIGTERM to a container.
	Terminate
	// Kill ends a container.
	Kill
	// Release gives the pod's place and containers back.
	Release
)

// String names the verb for logs.
func (v Verb) String() string {
	return [...]string{"admit", "create", "start", "terminate", "kill", "release"}[v]
}

// Step is one thing to do.
type Step struct {
	Do        Verb
	Container string // empty for Admit and Release
	// Attempt is the attempt to create, and Pause what follows it.
	Attempt int
	Pause   time.Duration
}

// PodPhase is the phase of a pod in the sense of Kubernetes.
type PodPhase string

// The phases.
const (
	Pending   PodPhase = "Pending"
	Active    PodPhase = "Running"
	Succeeded PodPhase = "Succeeded"
	Failed    PodPhase = "Failed"
)

// Why a container waits, with the kubelet's word.
const (
	WaitsForInit     = "PodInitializing"
	WaitsForCreation = "ContainerCreating"
	WaitsForPause    = "CrashLoopBackOff"
)

// Plan lists what to do now.
type Plan struct {
	// Steps belong to different containers; their order does not matter.
	Steps []Step
	// Wake is when to plan again if nothing changes before; zero for never.
	Wake time.Time
	// Phase of the pod.
	Phase PodPhase
	// Waiting has the reasons of containers that are neither running nor over.
	Waiting map[string]string
}

// wakeAt moves the plan's time forward.
func (p *Plan) wakeAt(t time.Time) {
	if p.Wake.IsZero() || t.Before(p.Wake) {
		p.Wake = t
	}
}

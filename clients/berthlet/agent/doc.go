// Package agent runs pods: it takes the manifests that are wanted, asks berthd for
// each pod's place, has a runtime make the containers, and does what package
// lifecycle says is next.
//
// Words:
//
//   - node: berthd, as the agent needs it.
//   - record: what the agent knows of a pod and must not forget: the manifest, the
//     verdict, since when it is to go, and how each container was seen last. A
//     file for each pod.
//   - worker: the one goroutine that deals with a pod.
//   - pass: look at the containers, plan, do the steps, write the record.
//
// The order of calls to berthd for a container: Allocate, then the runtime creates
// it, PreStartContainer with its process, the runtime starts it; when it has
// exited PostStopContainer. For a pod: Admit first, Remove last.
//
// Invariants: a record is written before a step that follows from it is done, so
// that an agent that is killed goes on where it was; a pod that berthd has
// forgotten is admitted again, and what runs of it is bound again, before anything
// else is done for it; berthd is told by Sync which pods live whenever it was away.
//
// A record that cannot be read now (no descriptors, a disk error) is read again later. A record that is damaged is set
// aside in the folder "damaged". In both cases the pod is among the living, its containers go on, and it ends only when
// the manifests say that it is not wanted; one that is wanted goes on from what the runtime tells.
package agent

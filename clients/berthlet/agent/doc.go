// Package agent runs pods: it reads the wanted manifests, admits each pod at berthd,
// creates the containers with a runtime, and executes the steps that package lifecycle
// plans.
//
// Words:
//
//   - node: the part of berthd's API that the agent uses.
//   - record: the stored state of a pod: the manifest, the verdict, when the pod was requested
//     to end, and the last state of each container. There is one file for each pod.
//   - worker: the one goroutine that deals with a pod.
//   - pass: look at the containers, plan, do the steps, write the record.
//
// The order of calls to berthd for a container: Allocate, then the runtime creates
// it, PreStartContainer with its process, the runtime starts it; when it has
// exited PostStopContainer. For a pod: Admit first, Remove last.
//
// Invariants: a record is written before the steps that follow from it, so a killed agent
// continues where it was; a pod that berthd has lost is admitted again, and its running
// containers that berthd does not have are bound again, before any other step; after every loss of the connection to
// berthd, Sync lists the running pods.
//
// The answer to a call changes the record, not the call. After a lost answer the effect may be there or not, so the call is
// repeated, and what follows from the effect follows from what the runtime and berthd list: a container that runs has started, and
// its pins are removed; an id that berthd does not have is not bound; an open pod without a record is closed. Only the grace of a
// SIGTERM begins with the call, because a runtime that does not answer must not keep a pod alive.
//
// A record that is temporarily unreadable (no descriptors, a disk error) is read again
// later. A damaged record is moved to the directory "damaged". In both cases the pod counts
// as running and its containers continue. It ends only if the manifests do not contain it;
// otherwise it continues with the runtime's data.
package agent

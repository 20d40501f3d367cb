package main

import (
	"cmp"
	"fmt"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/ledger"
)

// stepByStep decides the steps from a given one on, each on the recorded state before it. A
// correctly recorded step must have the recorded result and state. After any other step an
// admitted pod holds its requests, and a rejected one nothing. It returns the number of steps
// that were compared with the recording.
func (in podAdmitIn) stepByStep(env *Env, want podAdmitWant, defects []podDefect, from int) (exact int, err error) {
	b, err := in.bench(env)
	if err != nil {
		return 0, err
	}
	here := podDevices{} // devices of the pods that are here
	for i, step := range in.Steps {
		uid, w := in.Pods[step.Pod].UID, want.Steps[i]
		if i >= max(from, 1) {
			before := want.Steps[i-1]
			before.CPU = in.mended(before.CPU, uid)
			g, err := in.alone(b, step, before, here)
			if err != nil {
				return exact, fmt.Errorf("step %d by itself: %w", i, err)
			}
			diff := g.Left + g.Wrong
			if defects[i].entry == "" {
				exact++
				if w.CPU = in.mended(w.CPU, uid); step.Op == "remove" {
					w.CPU, g.CPU = w.CPU.disjoint(), g.CPU.disjoint()
				}
				diff = cmp.Or(diff, g.differs(w))
			}
			if diff != "" {
				return exact, fmt.Errorf("step %d by itself: %s: %s", i, diff, render(g))
			}
		}
		if delete(here, uid); step.Op == "admit" && w.Result.Admit {
			here[uid] = w.Devices
		}
	}
	return exact, nil
}

// alone decides a step on a recorded state.
func (in podAdmitIn) alone(b *podBench, step podStep, before podStepWant, here podDevices) (podStepGot, error) {
	pod := in.Pods[step.Pod].Pod
	records := seed{}
	for _, recorded := range in.Pods {
		if _, there := here[recorded.UID]; !there {
			continue
		}
		records[recorded.UID] = &ledger.Pod{Pod: *recorded.Pod}
	}
	b.cpus.seed(records, before.CPU, pod.UID)
	before.Memory.seed(records, pod, "")
	if counted := records[usage]; counted != nil { // its containers do not run on shared CPUs
		for _, node := range counted.Pod.Containers {
			records.hold(usage, node.Name, cpuClaim(cpuset.Set{}, ledger.CPUExclusive))
		}
	}
	deviceState{PodDevices: here}.seed(records, b.known)
	b.Trial = b.on(records.on(b.cpus.base))
	g, err := in.step(b, step, &before.Memory)
	if err != nil {
		return g, err
	}
	b.read(&g, pod.UID)
	var claims []ledger.Claim
	if record, ok := b.View().Pod(pod.UID); ok {
		for _, c := range record.Claims {
			if c.CPUs != nil {
				claims = append(claims, c)
			}
		}
	} else {
		before.CPU = before.CPU.clone()
		delete(before.CPU.Assignments, pod.UID)
		delete(before.CPU.PodAssignments, pod.UID)
	}
	g.CPU = before.CPU.with(b.View(), claims)
	return g, nil
}

// mended is cpuSetup.mended for the reservation at hand.
func (in podAdmitIn) mended(state cpuState, uid string) cpuState {
	return cpuSetup{Options: in.CPUOptions, Reserved: in.ReservedCPUs}.mended(state, uid)
}

// disjoint is the state without the CPUs in the shared pool that pods hold.
func (s cpuState) disjoint() cpuState {
	for uid := range s.Assignments {
		s.Default = s.Default.Minus(s.held(uid))
	}
	return s
}

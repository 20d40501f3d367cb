// Package reconcile keeps the cgroup tree equal to the ledger.
//
// Words:
//
//   - pass: read the tree, compare it with the values computed from a view, write the
//     differences.
//   - following: write only the values that differ between two views.
//   - leaving: a pod whose cgroup is being removed while the ledger still has the pod. A pass
//     must not create the cgroup again.
//   - drift: a value that a pass had written, and that another program changed.
//   - finding: a difference from the ledger that no pass can repair. Examples: a cgroup above
//     pods is frozen; a memory limit waits until less is used.
//   - unbound: the cgroup of a container that berth created, without a binding. Its start was
//     interrupted, or is in progress.
//   - ending: a cgroup that is being removed. The removal freezes it and kills its processes;
//     a pass neither reports nor undoes that. A pass still takes exclusive CPUs of other
//     containers from it.
//   - orphan: the cgroup of a pod that is not in the ledger.
//   - runtime container: a bound container that a runtime has created, in a cgroup of the
//     runtime.
//   - opening: a pod of a runtime without a container. Its cgroup has only the shared CPUs and
//     its own, because its sandbox may start at any moment.
//   - unlisted: a runtime container that the last two lists lack. If it has processes, it
//     cannot be moved.
//   - key: names a container in the tracker (managers/placement): by its runtime id if a
//     runtime has created it, otherwise by its cgroup.
//   - turn: the work done while mu is held. Turns never overlap.
//
// One loop reads the kernel and the runtime's list, applies them to the tracker, writes the
// ledger's values, applies the writes to the tracker, and reports. The tracker decides
// which phase a container is in, where it may run, and which containers block a start.
//
// After an event of one container, or the commit of one pod, only the containers concerned
// are read from the runtime and the kernel. A pass reads all.
//
// Each part of the Loop is a type with its own state. It calls those above it in this list only, except that starts makes passes:
//
//	turns, calls   the lock, and calls to the runtime, which end with a turn or continue in the background
//	tracker        phases and CPUs of all that runs
//	kernel         what cgroups have, and what that means
//	driftLog       the values that were written
//	endings        the cgroups that are being removed
//	writer         writes to the kernel and to the runtime, and what may have come of them
//	sandboxes      cgroups of pods without a container (openings), and those on the shared CPUs without a binding (sharers)
//	hotplug        CPUs and NUMA nodes that go and come
//	lister         the ledger, lists of the runtime and what was read, noted in the tracker; containers without a binding (unbounds)
//	wanted         the wanted values, and the pods that are leaving or not committed
//	resizes        other amounts for pods
//	starts         cgroups of containers whose own CPUs all others have left
//	Loop           passes, following, pods, and reports
//	Sweeper        removal of orphans
//
// Loop.mu guards the state of all but the endings and the Sweeper, which have locks of their own.
//
// Passes and following are one path (makeEqual) for different subjects. Its effects have this order:
//
//	effect                             why not later                                  why not earlier
//	remove cgroups of ended containers nothing is wanted for them, so no plan has them their end is in the view
//	end openings (pass)                containers that run already need all CPUs      -
//	list the runtime                   a list says whose cgroups are read             starts in progress are chosen first: they are listed
//	                                                                                  once more before they have taken too long
//	read the kernel                    what may be written depends on who runs where  a list may end containers, whose pods open again
//	look for openings and sandboxes    they have wanted values                        they are found in what was read
//	compute the wanted values          -                                              all subjects are known
//	note what was seen                 own CPUs are granted only if others have left  the view's CPUs are in the tracker
//	leave out what must wait           a limit below the use would kill or fail       the use was read
//	report findings and drift (pass)   the next write hides the drift                 -
//	send CPUs of what does not run yet it may start meanwhile, and read old ones      -
//	write, from the outside in what grows, from the inside out what shrinks
//	send what was held                 -                                              others may have left by the writes
//	move processes back (v1)           -                                              their cgroups have CPUs again
//	set tiers above their use          -                                              the kernel has refused the limit
//	store what was written             the next operation compares with it            failed writes are not stored
//	write claim records                -                                              the cgroups exist
//
// A resize (Resize) and a new pod (EnsurePod) are not subjects of that path, because they are answered: a value that is refused
// undoes the operation. They choose the wanted values themselves, and share the rest: what is left out, compared, and written.
//
// Loops over cgroups and containers leave out what is busy, unknown, or failed. None of that counts as done:
//
//	loop            leaves out                                 so                                       test
//	writer.apply    a write that fails, and all below a        the pass fails; the next one writes them TestOneRefusalStopsNoOther,
//	                cgroup that was not created                                                         TestNothingBelowWhatCouldNotBeMade
//	granted         own CPUs that others may still run on      they are sent when the others have left  TestNobodyRunsOnCPUsOfOthers
//	moveAway        a blocking container that stays            the start is blocked                     TestFailedWritesAreNotInForce
//	syncRuntime     containers that the runtime does not list  they block starts, and stay              TestLostContainers
//	containersOf    containers of a list that failed           they are listed again                    TestPartialListsAreRepeated
//	endOpening      a sandbox that cannot be moved             it blocks starts with exclusive CPUs     TestSandboxThatCannotBeMoved
//	gather          a cgroup that cannot be read               its processes are scattered; it fails    TestV1EmptiedSetIsFilledUnseen
//	confine         values of a cgroup that is being removed   its CPUs are written nevertheless        TestPassClearsCPUsBesideARemoval
//	withoutLeaving  pods whose removal is in progress          written again if the removal fails       TestPassBesideAnEnd
//	hold            memory limits below the use                a finding; each pass tries again         TestPassHoldsALimitBelowUse
//	WriteDue        records above its bound, or that failed    they stay due                            TestRecordsInTurns
//	RemoveUnknown   a cgroup that cannot be read or removed    an error: the pod stays unknown          TestUnknownPodThatStays
//	Sweeper.Look    an orphan with a worker, or in its pause   it stays an orphan                       TestOneWorkerForAnOrphan
//
// Invariants:
//
//   - All values come from the ledger and the configuration, so a pass may be repeated at any
//     time, also after a crash.
//   - A container with exclusive CPUs starts only when no other container may run on them. A
//     container without exclusive CPUs starts at once.
//   - Exclusive CPUs on which another container may still run are not written to any
//     container.
//   - A value that the kernel refuses for one pod does not affect the values of others.
//   - A turn waits at most turnWait for calls to the runtime, and for a list only once in an
//     outage. A longer call continues in the background and delays only operations that need
//     its answer.
//   - Waiting for a turn ends with the caller's context.
//   - At most one worker removes an orphan.
//   - No data is kept about removed pods and their containers, except starts without a
//     binding until they have taken too long.
package reconcile

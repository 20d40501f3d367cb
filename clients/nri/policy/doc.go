// Package policy makes berthd the placement policy of a container runtime with NRI, the Node
// Resource Interface of containerd and CRI-O. Requests of the runtime arrive as events. Berthd's
// decisions return as adjustments of the container being created and as updates of running
// containers.
//
// Policy receives the events and follows berthd. Each of its jobs is a type with its own state, in a file of its own. A job calls those
// above it in this list only:
//
//	agenda       what the next pass of Follow has to do, and when it comes
//	gate         whether anything is placed, and what starts without an allocation
//	node         the sandboxes and the members that there are
//	kernel       where processes run; it moves those of sandboxes
//	tracks       the CPUs on which members may run: what was sent and is not disproved
//	awaitedPods  berthd's pods without a sandbox, which the kubelet may still start
//	quotas       the CPU quotas of pods' cgroups
//	finder       the specifications of pods
//	devices      the devices that the kubelet has given to pods
//	claims       the claims that members use
//	view         berthd's ledger, and what berthd has lost
//	ends         what ended members and pods had, and its release
//	sizes        resizes: what berthd counts, and what the runtime has
//	refusals     the last refusals, which are repeated while nothing has become free
//	admissions   the two forms in which a pod is admitted
//	placer       comparison with the ledger, and the place of each member
//	writer       updates at the runtime
//	reporter     reports of memory, and moves of it
//
// Words:
//
//   - sandbox: a pod as the runtime has it. The runtime creates it before the pod's
//     containers are known.
//   - member: a container of the runtime that this policy manages.
//   - whole, apart: the two ways to admit a pod. A pod whose specification is known is
//     admitted as a whole, before its sandbox starts. Any other pod is admitted container
//     by container, when each is created: NRI has no list of containers in the event of
//     a sandbox. Each such container is a pod of one container in berthd, with the uid
//     POD-UID.CONTAINER.
//     A pod keeps its form until it ends. After a new connection of the runtime, or of this policy, the form is read from
//     berthd's ledger before anything is admitted of the pod.
//   - unmanaged: a member without an allocation in berthd. It runs on the shared CPUs.
//   - unplaced: a member that the runtime had before this policy connected, and that was not compared
//     with the ledger yet. It keeps its CPUs.
//   - pending: a member without a process whose start was permitted, for as long as a start may take. The kubelet may give
//     a start up that the runtime completes, and may create another container of that name or end the pod meanwhile.
//   - life: what is known about a member's start and end (life.go). The table of its lives is tested cell by cell.
//   - denied: a member whose admission or size berthd has refused. It is compared again when resources
//     have become free.
//   - possible CPUs: every set that was sent to the runtime for a member and is not
//     disproved. Package placement stores them, and the member's phase. NRI events and
//     observations of processes are its input (tracks.go).
//   - answered, pushed: CPUs in a response to an event, or in an update that was
//     requested. The runtime applies a response before its next event, and before an
//     update that is requested later. It reports no failure of a response. A container
//     that is not stored yet is skipped, and a starting container has read its CPUs
//     already. Only the process shows whether the CPUs were applied.
//   - report: the memory nodes of a member's cgroup and where its memory is, as the kernel shows them. Berthd
//     needs reports for moves of memory.
//   - size: a member's requests of cpu and memory, which a resize changes.
//
// Pods that are admitted apart lack three things. They are not aligned as a whole (topology scope
// "pod"). They get no devices of plugins that are registered with berthd. Their init containers
// count like other containers. The allocation of an ended container is kept for its restart, until
// a new container of the pod is created. In this way an init container's CPUs are reused, and a
// crashed container returns to its CPUs.
//
// The requests of such containers are computed from the values that the kubelet gives the
// runtime. cpu.shares gives the CPU request exactly: the kubelet rounds down, so rounding up is
// the inverse. Quota and period give the CPU limit, and the cgroup parent gives the QoS class. A
// memory request below the limit cannot be computed. The limit is used instead.
//
// What is skipped is not done. These loops leave out what is busy, fails or is not known. The last column has the test.
//
//	loop           leaves out                          then                                  test
//	searchAgain    a pod whose source fails            its members wait; others come first   TestSpecificationsAreFoundBesideFailures
//	complete       a member that cannot be read now    it is unplaced; another pass is due   TestTemporaryFailureAtConnection
//	complete       members for which time is short     another pass is due                   TestReconcileGoesOn
//	complete       a size without an answer            another pass is due                   TestHalfDoneResizeIsUndone
//	settle         a resize without an answer          nobody else is admitted before        TestSettleBeforeOthers
//	tryDenied      a refused member, for a moment      another pass is due                   TestRefusedContainerCostsLittle
//	want           members that are unplaced or lost   their CPUs are not shared             TestForgottenContainerKeepsItsCPUs
//	adoptPod       an allocation that no member holds  it is kept for a restart              TestCrashedContainerKeepsItsCPUs
//	retain         a running member that a list lacks  it stays until its process has ended  TestEmptyList
//	dropReplaced   a member that may be starting       it stays until the start is overdue   TestStartThatWasGivenUp
//	leave          a pod with a process or a start     a later sweep releases it             TestStartOutlivesItsPod
//	release        an allocation whose removal fails   the list of living pods repeats it    TestRemovalIsRepeated
//	heard          a pod, if the kubelet is silent     it is kept for a time                 TestKeptPodIsReleased
//	over           a sandbox that may have ended       it lives until something shows it     TestPodWithoutProcessLives
//	landed         an update that is refused           its old CPUs stay possible            TestNotLeft
//	vacate         a process that cannot be read       no start on CPUs where it may be      TestBlind
//	reportMemory   a member that cannot be read now    a later report of it                  TestMemoryThatStaysMovesLater
//	moveSandboxes  a process that cannot be moved      the next pass tries again             TestUnmovedSandboxIsLoggedOnce
//	podQuotas      a quota that cannot be changed      the next pass tries again             TestPodQuotaFailureIsLoggedOnce
//	releases       a container not on all CPUs yet     Release fails, and names it           TestRelease
//
// The answer changes the state, not the question. Form, size and names of allocations change when berthd has answered. After a lost
// answer berthd may have the old state or the new one. The pod is compared with the ledger then, and until it is, nothing that depends on
// one of the two is done: the runtime keeps the old size, and no CPU of either state is given to another member. A size that the
// runtime was let carry out is counted until the runtime has confirmed it, or should have; then that from before is counted again.
//
// Invariants:
//
//   - While berthd is unavailable, no container starts. If so configured, one starts on
//     the last known shared CPUs. If berthd has never been ready on the node, every container starts. Before the first
//     answer of berthd these are an estimate from the processes of the node; without an estimate the runtime chooses the
//     CPUs.
//   - A container with exclusive CPUs does not start while they are possible CPUs of
//     another member. Members without a common CPU do not wait for each other.
//   - A pod's allocation is released after its last process has ended, and when no start in it is pending. A pod of the
//     ledger that has no sandbox when this policy connects, as after a boot, keeps its allocation if the kubelet is going to start it.
//   - While berthd does not have a prepared claim or a running member, as after the loss of its ledger, no other member gets
//     the CPUs of that claim, or those that the running member may have for itself.
//   - A running member loses exclusive CPUs only by a decision of berthd. After any other failure it stays
//     where it is, and is compared again.
//   - No member starts with memory nodes that a move of its pod has taken from it.
//   - No member is resized without berthd's consent, unless it is unmanaged.
//   - No lock is held over a call into the runtime, because the runtime holds a lock of
//     its own over its calls of this package.
package policy

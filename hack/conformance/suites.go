package main

// suites is the list of what can be run. A file of recordings that has no suite
// here is skipped, and said to be.
var suites = []Suite{
	cgroupConversions,
	cgroupPods,
	checkpoints,
	configuration,
	cpuAllocate,
	cpuHints,
	cpuSequences,
	deviceAllocate,
	deviceHints,
	memoryAllocate,
	memoryHints,
	memorySequences,
	podAdmit,
	topologyMerge,
}

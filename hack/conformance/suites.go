package main

// suites is the list of what can be run. The cases of a file that has no suite here
// fail.
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

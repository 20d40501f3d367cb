// Package cdi finds the NUMA nodes of devices by their CDI names. CDI, the Container Device
// Interface, is how drivers of dynamic resource allocation (DRA) name devices for the container
// runtime: a name such as example.com/gpu=gpu0 stands in a file of a CDI directory, with the device
// nodes that a container gets. The kubelet has the names of a pod's devices, but not their NUMA
// nodes. The kernel has the NUMA node of a device node in sysfs.
//
// It also reads the CPUs of prepared claims from the files that berth-dra writes. They are known there whichever programs have been
// restarted.
//
// Words:
//
//   - name: the qualified name of a CDI device, KIND=DEVICE.
//   - device node: a special file below /dev, by its path or its major and minor number.
//
// Invariants:
//
//   - Only files directly in a CDI directory are read, and only regular ones. A link must not lead
//     out of the directory. Other users must not be able to write to the directory.
//   - The number and the size of the files are bounded. A file with an error is reported and
//     ignored; it hides no other file.
//   - Of a device node only numbers are used to build a path.
package cdi

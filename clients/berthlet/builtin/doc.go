// Package builtin is the container runtime that berthlet has in itself: nothing
// else needs to be installed. It is made of libcontainer, the library inside runc.
//
// Words:
//
//   - keeper: a process of its own beside each container, its parent. It makes the
//     container, writes the output to the log, waits for the end and writes the
//     exit code down. So berthlet can die and come back without a container
//     noticing. It is the same program, called with the argument "keep".
//   - life: a named pipe that a keeper holds open for writing. Who reads from it
//     sees its end when the keeper is gone, however it went.
//   - sandbox: the namespaces that the containers of a pod share (network, IPC,
//     host name), held by bind mounts and by no process.
//   - bundle: what a container is made from, on disk, as its keeper reads it.
//
// The directory of the runtime:
//
//	containers/ID/bundle.json    what it is made from; without it there is no container
//	containers/ID/life           the pipe
//	containers/ID/start          another pipe: a byte in it lets the container run
//	containers/ID/created.json   written by the keeper once the process waits for its start
//	containers/ID/started.json   written by the keeper when it lets the container run
//	containers/ID/exit.json      written by the keeper, or by who finds that it is gone
//	containers/ID/keeper.log     what the keeper and libcontainer had to say
//	containers/ID/root, diff, work   the overlay: lower layers come from the image
//	run/ID                       libcontainer's own state
//	sandboxes/UID/pod.json       the pod
//	sandboxes/UID/net, ipc, uts  the bind mounts
//	layers                       unpacked layers of images
//
// Exec runs a program in a container beside its own. It works on the files of the
// directory alone, so no Runtime is needed.
//
// Invariants: a file that is there is whole (written beside and renamed); each is
// written by one side only. The container's cgroup is berthd's: its values are
// never touched here, except that the list of devices is set, which berthd leaves
// to runtimes. A container whose keeper is gone without a word is killed, since
// nobody would read its output or see its end, and reported as lost.
//
// libcontainer needs cgo to enter namespaces before Go has threads. Built without
// cgo, or not for Linux, New says that there is no such runtime.
package builtin

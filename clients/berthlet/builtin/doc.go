// Package builtin is berthlet's own container runtime; no other runtime needs to be installed. It
// uses libcontainer, the library of runc.
//
// Words:
//
//   - keeper: a separate process for each container, its parent. It creates the
//     container, writes the output to the log, waits for the end and stores the
//     exit code. Containers therefore continue while berthlet restarts. It is the
//     same program, called with the argument "keep".
//   - life: a named pipe that a keeper holds open for writing. A reader gets
//     end of file when the keeper has ended, for any reason.
//   - sandbox: the namespaces that the containers of a pod share (network, IPC,
//     host name), held by bind mounts and by no process.
//   - bundle: the stored input of a container's creation, which its keeper reads.
//
// The directory of the runtime:
//
//	containers/ID/bundle.json    the bundle; without it there is no container
//	containers/ID/life           the pipe
//	containers/ID/start          another pipe: a byte in it starts the container
//	containers/ID/created.json   written by the keeper once the process waits for its start
//	containers/ID/started.json   written by the keeper when it starts the container
//	containers/ID/exit.json      written by the keeper, or by the reader that finds the keeper ended
//	containers/ID/keeper.log     messages of the keeper and of libcontainer
//	containers/ID/root, diff, work   the overlay: lower layers come from the image
//	run/ID                       libcontainer's own state
//	sandboxes/UID/pod.json       the pod
//	sandboxes/UID/net, ipc, uts  the bind mounts
//	layers                       unpacked layers of images
//
// Exec runs another program in a container. It uses only the files of the directory, so no
// Runtime is needed.
//
// Invariants: every file is complete, because it is written under another name and renamed. Each
// file has one writer. The container's cgroup is berthd's. This package does not change its
// values, except for the list of devices, which berthd leaves to runtimes. If a keeper has ended
// without an exit file, its container is killed and reported as lost. Otherwise its output and
// its end would be missed.
//
// libcontainer needs cgo to enter namespaces before Go starts threads. Without cgo, or on other
// systems than Linux, New returns an error.
package builtin

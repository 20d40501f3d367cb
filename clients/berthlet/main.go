// Command berthlet runs the pods of a folder of Kubernetes manifests, without a
// kubelet, an API server or a container runtime: it asks berthd for each pod's
// place and makes the containers itself. It is also the example of an agent that
// calls berthd.
//
// Words:
//
//   - agent: what follows the pods (package agent); runtime: what makes containers
//     (packages container and builtin); keeper: a process beside each container,
//     which is this program too.
//   - state directory: everything that berthlet must find again after a restart.
//
// Containers outlive berthlet: when it ends or is killed they go on, and the next
// one takes them over. So under systemd its unit needs KillMode=process.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/berthd/berth/clients/berthlet/builtin"
)

func main() {
	if builtin.Child() {
		return
	}
	os.Exit(run())
}

// run runs berthlet on the process's own streams.
func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// Whoever read the log may end. Caught and not ignored: containers inherit what is ignored.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	return execute(ctx, os.Stdout, os.Stderr, os.Args[1:])
}

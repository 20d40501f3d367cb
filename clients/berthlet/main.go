// Command berthlet runs the pods of a directory of Kubernetes manifests, without a kubelet, an
// API server or a container runtime. It admits each pod at berthd and creates the containers
// itself. It is also the example of an agent that calls berthd.
//
// Words:
//
//   - agent: follows the pods (package agent); runtime: creates containers
//     (packages container and builtin); keeper: a process for each container,
//     which is this program too.
//   - state directory: everything that berthlet needs after a restart.
//
// Containers outlive berthlet. They continue when berthlet ends or is killed, and the next
// berthlet takes them over. A systemd unit of berthlet therefore needs KillMode=process.
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
	// The reader of the log may exit. SIGPIPE is caught and not ignored, because containers
	// inherit ignored signals.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	return execute(ctx, os.Stdout, os.Stderr, os.Args[1:])
}

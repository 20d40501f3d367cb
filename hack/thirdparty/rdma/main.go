// Command rdma is k8s-rdma-shared-dev-plugin as it is, but for one step of its
// start, which ends the program on a machine without RDMA: the question for the
// mode of the RDMA subsystem. Its servers then run without devices.
package main

import (
	"log"
	"os"
	"os/signal"
	"syscall"

	"github.com/Mellanox/k8s-rdma-shared-dev-plugin/pkg/resources"
)

func main() {
	if len(os.Args) != 2 {
		log.Fatalf("usage: %s CONFIG", os.Args[0])
	}
	manager := resources.NewResourceManager(os.Args[1], false)
	for _, step := range []func() error{
		manager.ReadConfig, manager.ValidateConfigs, manager.DiscoverHostDevices, manager.InitServers, manager.StartAllServers,
	} {
		if err := step(); err != nil {
			log.Fatal(err)
		}
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM)
	<-signals
	if err := manager.StopAllServers(); err != nil {
		log.Fatal(err)
	}
}

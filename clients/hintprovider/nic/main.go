// Command nic is a hint provider that hands out network cards: an example that
// is written like those inside berthd, and a process for tests.
//
//	nic --sysfs /sys --socket /run/berth-nic/nic.sock --resource example.com/nic
//
// The cards are the network interfaces that belong to a device; their NUMA nodes
// are in class/net/<interface>/device/numa_node of the sysfs tree, which is read
// for every question. A container that requests example.com/nic gets as many cards
// of its own and their names in the environment variable EXAMPLE_COM_NIC.
//
// Words:
//
//   - card: a network interface with a device behind it.
//   - usage: which cards are reserved for which admission and held by which pod.
//
// Each change of the usage is printed to the standard output as one line of
// JSON.
package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/berthd/berth/clients/hintprovider/hintserver"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "nic:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("nic", flag.ContinueOnError)
	sysfs := flags.String("sysfs", "/sys", "`directory` of the sysfs tree")
	resource := flags.String("resource", "example.com/nic", "`name` of the resource")
	name := flags.String("name", "nic", "`name` of the provider")
	socket := flags.String("socket", "nic.sock", "`path` of the socket to serve")
	endpoint := flags.String("berth", "", "`endpoint` of berthd; none registers nowhere, empty means BERTH_ENDPOINT or the default")
	required := flags.Bool("required", true, "whether a failure refuses the admission")
	deadline := flags.Duration("deadline", time.Second, "the longest that a call of an admission may take")
	if err := flags.Parse(args); err != nil {
		return err
	}
	p := newProvider(*name, *resource, os.DirFS(*sysfs), os.Stdout)
	options := hintserver.Options{
		Socket: *socket, Berth: *endpoint,
		Required: *required, Deadline: *deadline, Resources: []string{*resource},
		Log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	}
	if *endpoint == "none" {
		options.Berth, options.NoRegistration = "", true
	}
	return hintserver.Run(ctx, p, options)
}

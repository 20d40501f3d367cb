// Command plugin is a scriptable device plugin for tests of berthd and for demonstrations.
//
//	go run ./hack/plugin -plugin-directory DIR -resource example.com/gpu -devices 'gpu0@0,gpu1@1,nic2@0+1,x3'
//
// It registers with DIR/kubelet.sock, and again whenever the server restarts. With -watched it
// waits in DIR, a plugins_registry, until it is found. Every call is a line of JSON on the
// standard output. It reads commands from the standard input, one in each line:
//
//	healthy ID            the device becomes healthy
//	unhealthy ID          the device becomes unhealthy
//	devices LIST          other devices, written as in -devices; may be empty
//	on METHOD=MANNER      behave differently from now on, as in -on
//	stop                  end gracefully
//	die                   exit at once and leave the socket behind
//
// METHOD is options, listandwatch, preferred, allocate, prestart, info or notify. MANNER is well,
// hang, refuse, empty, garbage, die, shrink (at allocate: remove the devices from the list), "after"
// and a time, or at listandwatch: end, "end after" and a time (end the stream), reorder, flap, resend, renumber.
package main

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/berthd/berth/hack/testing/script"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "plugin:", err)
		os.Exit(1)
	}
}

func run() error {
	cfg := script.Config{Log: os.Stdout, Exit: func() { os.Exit(1) }}
	flag.StringVar(&cfg.Dir, "plugin-directory", "/var/lib/kubelet/device-plugins", "device plugin `directory`, with kubelet.sock")
	flag.StringVar(&cfg.Resource, "resource", "example.com/gpu", "resource `name`")
	flag.Func("also", "another resource `name` that is registered with the same socket; may be repeated", func(name string) error {
		cfg.Also = append(cfg.Also, name)
		return nil
	})
	flag.StringVar(&cfg.Endpoint, "endpoint", "", "`name` of the plugin's socket in the directory (default: made of the resource)")
	devices := flag.String("devices", "gpu0,gpu1", "`list` of devices: id, @ and NUMA nodes joined by +, ! if unhealthy")
	flag.BoolVar(&cfg.Preferred, "preferred", false, "announce GetPreferredAllocation; the plugin prefers the highest ids")
	flag.BoolVar(&cfg.Watched, "watched", false, "wait to be found in the directory, and do not register")
	flag.BoolVar(&cfg.PreStart, "prestart", false, "announce PreStartContainer")
	flag.BoolVar(&cfg.CDI, "cdi", false, "answer with CDI names too")
	flag.StringVar(&cfg.Env, "env", "", "`name` of the environment variable with the ids (default: made of the resource)")
	flag.StringVar((*string)(&cfg.Signal), "signal", string(script.BothSignals),
		"what tells of a restart of the server: own, kubelet, both, none; crash: it panics")
	var on []string
	flag.Func("on", "`METHOD=MANNER`: how to behave, as allocate=hang: options, listandwatch, preferred, allocate, prestart, info or notify;\n"+
		"well, hang, refuse, empty, garbage, die, shrink, end, reorder, flap, resend, renumber, or after or end after and a time; may be repeated", func(text string) error {
		on = append(on, text)
		return nil
	})
	flag.Parse()

	var err error
	if cfg.Devices, err = script.ParseDevices(*devices); err != nil {
		return err
	}
	// gRPC takes a path for a host's name unless it begins at the root.
	if cfg.Dir, err = filepath.Abs(cfg.Dir); err != nil {
		return err
	}
	p := script.New(cfg)
	for _, text := range on {
		if err := command(p, "on "+text); err != nil {
			return err
		}
	}
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer cancel()
	go func() {
		if obey(p, os.Stdin) {
			cancel()
		}
	}()
	return p.Run(ctx)
}

// obey carries out commands until there are no more; true if one was to stop.
func obey(p *script.Plugin, from io.Reader) bool {
	lines := bufio.NewScanner(from)
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		if line == "stop" {
			return true
		}
		if err := command(p, line); err != nil {
			fmt.Fprintln(os.Stderr, "plugin:", err)
		}
	}
	return false
}

func command(p *script.Plugin, line string) error {
	verb, rest, _ := strings.Cut(line, " ")
	switch verb {
	case "":
	case "healthy", "unhealthy":
		p.SetHealth(rest, verb == "healthy")
	case "devices":
		devices, err := script.ParseDevices(rest)
		if err != nil {
			return err
		}
		p.SetDevices(devices...)
	case "on":
		method, manner, err := script.ParseManner(rest)
		if err != nil {
			return err
		}
		p.Behave(method, manner)
	case "die":
		p.Die()
	default:
		return fmt.Errorf("%q is no command", verb)
	}
	return nil
}

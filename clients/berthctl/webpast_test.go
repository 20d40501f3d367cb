package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	"github.com/berthd/berth/hack/browser"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/machine/machinetest"
)

// TestPastOfAChangedMachine: a state of the past is drawn on the machine of its time, by the page and by map, although the machine has
// more NUMA nodes now.
func TestPastOfAChangedMachine(t *testing.T) {
	p := browser.Open(t, 1440, 1000)
	file := filepath.Join(t.TempDir(), "machine.json")
	become := func(shape string, options ...machinetest.Option) {
		m := machinetest.Build(shape, options...)
		text, err := m.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		write(t, file+".new", string(text))
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}
	become("1s2n4c1t,mem=4Gi")
	socket, client := daemonWith(t, file, "hotplug: {poll: 10ms, debounce: 1ms}\nreserved: {cpus: \"0\"}\n")
	admit(t, client, "web", "2")
	all, err := client.List(t.Context(), &allocationv1.ListRequest{})
	if err != nil {
		t.Fatal(err)
	}
	then := all.GetRevision()
	wait, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	changes, err := client.Allocation().Watch(wait, &allocationv1.WatchRequest{FromRevision: then})
	if err != nil {
		t.Fatal(err)
	}
	become("1s3n4c1t,mem=4Gi", machinetest.Offline("5"))
	for changed := false; !changed; {
		m, err := changes.Recv()
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range m.GetEvents() {
			changed = changed || e.GetMachine().GetOfflineCpus().GetList() == "5"
		}
	}
	admit(t, client, "late", "2")

	for _, at := range []string{"", fmt.Sprint(then)} {
		args := []string{"map", "--endpoint", socket}
		if at != "" {
			args = append(args, "--at", at)
		}
		_, out, problems := ctl(t, "", args...)
		if strings.Contains(out, "node 2") != (at == "") || strings.Contains(out, "default/late") != (at == "") ||
			!strings.Contains(out, "default/web") {
			t.Errorf("map --at %q: %s\n%s", at, problems, out)
		}
	}
	p.Load(serve(t, socket))
	p.Until(`document.querySelectorAll('.map .cell[data-cpu]').length === 12`)
	visit(p, fmt.Sprintf("#/history/%d", then), "history")
	p.Until(`document.querySelector('#past .map')`)
	var cells, offline int
	p.Eval(`document.querySelectorAll('#past .map .cell[data-cpu]').length`, &cells)
	p.Eval(`document.querySelectorAll('#past .map .cell.offline[data-cpu]').length`, &offline)
	if got := on(p, "#past .cell.pod"); cells != 8 || offline != 0 || got != cpuset.Of(1, 2) {
		t.Errorf("the map of the past has %d CPUs, %d offline, and a pod on %s", cells, offline, got)
	}
	noProblems(t, p)
}

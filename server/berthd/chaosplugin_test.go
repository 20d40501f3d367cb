package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/berthd/berth/hack/testing/script"
)

// fleet is a resource with the plugins that serve it, one after the other and
// sometimes two at once, and with the calls of all of them.
type fleet struct {
	n        *node
	resource string
	watched  bool
	// preferred and prestart are what its plugins announce.
	preferred, prestart bool
	signal              script.Signal

	live    *instance // the newest; nil while none runs
	started int
	// crooked: the live one does not answer or list as it should.
	crooked bool

	mu sync.Mutex
	// last is the last Allocate that named a device, whatever came of it.
	last map[string]script.Call // guarded by mu
	// warned counts the calls of PreStartContainer by their devices.
	warned map[string]int // guarded by mu
}

// instance is one plugin's process, as far as a goroutine can be one.
type instance struct {
	*script.Plugin
	end func() // in order, and waits
}

// Write takes a line of a plugin's log: this is the plugins' own record.
func (f *fleet) Write(line []byte) (int, error) {
	var c script.Call
	if err := json.Unmarshal(line, &c); err != nil {
		return 0, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	switch c.Method {
	case script.Allocate:
		for _, id := range c.IDs {
			f.last[id] = c
		}
	case script.PreStart:
		f.warned[idText(c.IDs)]++
	}
	return len(line), nil
}

// lastAsked returns the devices of the last Allocate that named one of them.
func (f *fleet) lastAsked(id string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return idText(f.last[id].IDs)
}

func (f *fleet) timesWarned(ids string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.warned[ids]
}

// idText names a set of devices.
func idText(ids []string) string { return strings.Join(slices.Sorted(slices.Values(ids)), " ") }

// universe is how many devices a fleet can have.
const universe = 16

// anyDevices makes up a list: some of the devices there can be, near to any nodes,
// most of them healthy. A wrong answer names devices twice, and nodes that nothing has.
func anyDevices(rnd *rand.Rand, wrong bool) []script.Device {
	var out []script.Device
	nodes := [][]int64{nil, {}, {0}, {1}, {0, 1}}
	for i := range universe {
		if rnd.IntN(4) == 0 {
			continue
		}
		d := script.Device{ID: "d" + strconv.Itoa(i), Unhealthy: rnd.IntN(6) == 0, Nodes: nodes[rnd.IntN(len(nodes))]}
		out = append(out, d)
		if wrong && rnd.IntN(2) == 0 {
			d.Unhealthy, d.Nodes = !d.Unhealthy, []int64{-1, 7, 1 << 40}
			out = append(out, d)
		}
	}
	rnd.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	return out
}

// start runs another plugin; the one before, if there is one, continues.
func (f *fleet) start(devices []script.Device) *instance {
	f.started++
	folder := "device-plugins"
	if f.watched {
		folder = "plugins_registry"
	}
	p := script.New(script.Config{
		Dir: filepath.Join(f.n.root, folder), Resource: f.resource, Devices: devices, Watched: f.watched,
		Endpoint: fmt.Sprintf("%s-%d.sock", filepath.Base(f.resource), f.started), Log: f,
		Preferred: f.preferred, PreStart: f.prestart, CDI: true, Signal: f.signal,
	})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = p.Run(ctx) }()
	f.live = &instance{p, func() { cancel(); <-ended }}
	f.crooked = false
	f.n.t.Cleanup(f.live.end)
	return f.live
}

// stop ends the live plugin, in order or as if it was killed.
func (f *fleet) stop(die bool) {
	if f.live == nil {
		return
	}
	if die {
		f.live.Die()
	}
	f.live.end()
	f.live, f.crooked = nil, false
}

// disturb has the live plugin misbehave from now on at a method that it is not
// needed at to be here.
func (f *fleet) disturb(rnd *rand.Rand) string {
	manners := map[script.Method][]script.Manner{
		script.Allocate: {
			script.Hang, script.Refuse, script.Empty, script.Garbage, script.Die, script.Shrink, script.Late(20 * time.Millisecond),
		},
		script.Preferred: {script.Refuse, script.Empty, script.Garbage, script.Die},
		script.PreStart:  {script.Refuse, script.Garbage, script.Die},
	}
	method := []script.Method{script.Allocate, script.Allocate, script.Preferred, script.PreStart}[rnd.IntN(4)]
	manner := manners[method][rnd.IntN(len(manners[method]))]
	if f.live == nil {
		return "nobody"
	}
	f.crooked = true
	f.live.Behave(method, manner)
	return fmt.Sprintf("%s %s", method, manner)
}

// breakList ends the list of the live plugin, which does not notice.
func (f *fleet) breakList(rnd *rand.Rand) string {
	manner := []script.Manner{script.End, script.Refuse, script.Garbage}[rnd.IntN(3)]
	if f.live == nil {
		return "nobody"
	}
	f.crooked = true
	f.live.Behave(script.ListAndWatch, manner)
	return string(manner)
}

// capacity is how many devices the live plugin lists.
func (f *fleet) capacity() int {
	ids := map[string]bool{}
	for _, d := range f.live.Present() {
		ids[d.ID] = true
	}
	return len(ids)
}

// healthy lists the ids that the live plugin reports as healthy: of several entries
// for a device the last one counts.
func (f *fleet) healthy() []string {
	last := map[string]bool{}
	for _, d := range f.live.Present() {
		last[d.ID] = !d.Unhealthy
	}
	var out []string
	for id, good := range last {
		if good {
			out = append(out, id)
		}
	}
	return out
}

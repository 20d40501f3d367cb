// Command nriruntime is a container runtime for tests of berth-nri: NRI's own adaptation of runtimes, with containerd's lock around all
// events, and processes that wait as containers. It is built with several versions of NRI (*.mod), and works like this:
//
//   - Workers make and remove pods as a kubelet does, at the same time: one of them pods with a CPU of their own, the others pods with
//     shared CPUs. A refused start is repeated with a new container.
//   - A container starts with the CPUs that the runtime had read before, so an update in between is lost, as with containerd.
//   - After each change the runtime checks that no process may run on the CPUs of a container that has CPUs of its own.
//   - At the end a container takes a CPU of those that run, gives it back, and takes it again, whatever the workers came to. If the plugin
//     is to request updates, the runtime waits for one in between.
//   - These pods stay, and the runtime prints its report, as JSON. It ends when its input ends.
//
// Arguments: the socket, the name and the version of the runtime, the rounds of each worker, and whether updates are requested.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	nri "github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
)

// workers make pods at the same time. patience limits a call of a plugin: machines of tests are slow.
const (
	workers  = 4
	patience = time.Minute
)

// report is what the runtime prints.
type report struct {
	Pods        int      // that ran
	Repeated    int      // starts
	Unsolicited int      // requests of updates
	Answered    int      // updates in answers
	Overlaps    []string // of processes with CPUs of others
	Left        []int    // processes that still run
}

func main() {
	if len(os.Args) == 1 {
		_, _ = io.Copy(io.Discard, os.Stdin) // a container
		return
	}
	rounds, err := strconv.Atoi(os.Args[4])
	requests, wrong := strconv.ParseBool(os.Args[5])
	if err = errors.Join(err, wrong); err == nil {
		err = run(os.Args[1], os.Args[2], os.Args[3], rounds, requests)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(socket, name, version string, rounds int, requests bool) error {
	nri.SetPluginRegistrationTimeout(patience)
	nri.SetPluginRequestTimeout(patience)
	r := newRuntime()
	none := filepath.Join(filepath.Dir(socket), "none") // it starts no plugins itself
	adaptation, err := nri.New(name, version, r.synchronize, r.update, nri.WithSocketPath(socket), nri.WithPluginPath(none),
		nri.WithPluginConfigPath(none))
	if err != nil {
		return err
	}
	r.nri = adaptation
	if err := adaptation.Start(); err != nil {
		return err
	}
	r.listen()
	<-r.synchronized
	var all sync.WaitGroup
	for worker := range workers {
		all.Go(func() { r.work(worker, rounds) })
	}
	all.Wait()
	for worker := 1; worker < workers; worker++ {
		r.start(worker, rounds)
	}
	r.stop(r.start(0, rounds))
	for requests && r.report().Unsolicited == 0 {
		time.Sleep(again)
	}
	r.start(0, rounds+1)
	if err := json.NewEncoder(os.Stdout).Encode(r.report()); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// work makes and removes pods.
func (r *runtime) work(worker, rounds int) {
	for round := range rounds {
		c := r.start(worker, round)
		r.stop(c)
	}
}

// synchronize tells a plugin what runs, and applies its answer.
func (r *runtime) synchronize(ctx context.Context, to nri.SyncCB) error {
	r.events.Lock()
	defer r.events.Unlock()
	updates, err := to(ctx, r.pods(), r.containers())
	if err == nil {
		r.apply(updates, &r.answered)
		if r.listens {
			r.once.Do(func() { close(r.synchronized) })
		}
	}
	return err
}

// listen waits for a plugin from now on. NRI's own start is another call of synchronize, without one.
func (r *runtime) listen() {
	r.events.Lock()
	defer r.events.Unlock()
	r.listens = true
}

// update is a plugin's request.
func (r *runtime) update(_ context.Context, updates []*nri.ContainerUpdate) ([]*nri.ContainerUpdate, error) {
	r.events.Lock()
	defer r.events.Unlock()
	r.mu.Lock()
	r.requested++
	r.mu.Unlock()
	r.apply(updates, nil)
	return nil, nil
}

// event is a call of the plugins.
func (r *runtime) event(call func(context.Context) error) error {
	defer r.nri.BlockPluginSync().Unblock()
	r.events.Lock()
	defer r.events.Unlock()
	return call(context.Background())
}

// podOf describes a pod of a worker: the first worker's are guaranteed ones.
func podOf(worker, round int) *api.PodSandbox {
	name, tier := fmt.Sprintf("pod-%d-%d", worker, round), "/kubepods/burstable/pod"
	if worker == 0 {
		tier = "/kubepods/pod"
	}
	return &api.PodSandbox{Id: name + "-sandbox", Name: name, Uid: name, Namespace: "default", Pid: uint32(os.Getpid()),
		Linux: &api.LinuxPodSandbox{CgroupParent: tier + name}}
}

// resourcesOf are those of a worker's containers: one CPU, or a part of one.
func resourcesOf(worker int) *api.LinuxResources {
	const shares, period, memory = 1024, 100_000, 16 << 20
	if worker == 0 {
		return &api.LinuxResources{
			Cpu:    &api.LinuxCPU{Shares: api.UInt64(uint64(shares)), Quota: api.Int64(int64(period)), Period: api.UInt64(uint64(period))},
			Memory: &api.LinuxMemory{Limit: api.Int64(int64(memory))},
		}
	}
	return &api.LinuxResources{Cpu: &api.LinuxCPU{Shares: api.UInt64(uint64(shares / 20))}}
}

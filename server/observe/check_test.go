package observe_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/berthd/berth/managers/ledger/kubelet"
	"github.com/berthd/berth/managers/workload"
	"github.com/berthd/berth/server/internal/kubeletnode/nodetest"
	"github.com/berthd/berth/server/observe"
)

// wrong are the findings on recorded nodes, by check and object. What the recordings say about them was compared by hand.
var wrong = map[string][]string{
	// The scenario's configuration k-nopods.json has enforceNodeAllocatable [none].
	"v2-cgroupfs-reserved-cgroups/full-enforce-none": {"pods-not-enforced enforceNodeAllocatable"},
	"v2-systemd-reserved-cgroups/full-enforce-none":  {"pods-not-enforced enforceNodeAllocatable"},
	// k-noqos.json has enforceNodeAllocatable [], which the kubelet leaves out of what it serves. A kubelet that reads this takes [pods].
	"v2-cgroupfs-reserved-cgroups/full-no-cgroups-per-qos": {"configuration enforceNodeAllocatable"},
	"v2-systemd-reserved-cgroups/full-no-cgroups-per-qos":  {"configuration enforceNodeAllocatable"},
	// results.json: p13-gtopo was removed, and is "still_there" in kubelet_internal_checkpoint.
	"v2-systemd-besteffort/full-A": {"devices-left-behind pod " + pod(13)},
	"v2-systemd-none/full-A":       {"devices-left-behind pod " + pod(13)},
	// p07-gside was removed while the kubelet was stopped; p09-gdev was rejected (TopologyAffinityError) after the last start.
	// The kubelet was started without state files while p03-g1 ran on node 0, and counts its memory on node 2 since.
	"v2-systemd-restart/full-after": {"memory-left-behind pod " + pod(7), "devices-left-behind pod " + pod(9),
		"other-memory-nodes pod default/p03-g1-numavm, container c"},
	// 8 s after the kubelet's start it has not set the CPUs of p17-bedev yet; CPU 7 was a removed pod's.
	"v2-systemd-restricted/full-C": {"other-cpus pod default/p17-bedev-numavm, container c"},
	// p29-gdevinit was rejected (UnexpectedAdmissionError) after the last start.
	"v2-systemd-single-podscope/full-C": {"memory-left-behind pod " + pod(29), "devices-left-behind pod " + pod(29)},
}

func pod(n int) string { return fmt.Sprintf("00000000-0000-4000-8000-%012d", n) }

// TestCheckRecordings: nothing else is wrong on recorded nodes.
func TestCheckRecordings(t *testing.T) {
	t.Parallel()
	seen, roots := 0, map[string]string{}
	for _, r := range nodetest.Recordings(t) {
		root, ok := roots[r.Shape]
		if !ok {
			root = r.Write(t)
			roots[r.Shape] = root
		}
		r.Rewrite(t, root)
		r.RewriteKernel(t, root)
		sameBoot(t, root)
		pods := podsOf(t, filepath.Join(root, nodetest.PodsFile))
		checked, err := observe.Check(t.Context(), observe.CheckOptions{Root: root, List: given(pods)})
		if err != nil {
			t.Errorf("%s: %v", r.Name, err)
			continue
		}
		for _, s := range checked.Skipped {
			perQOS := !strings.HasSuffix(r.Name, "no-cgroups-per-qos")
			if perQOS && slices.Contains(s.IDs, "cpus-open") && strings.Contains(s.Why, "cgroup") {
				t.Errorf("%s: the kernel's cgroups were not read: %s", r.Name, s.Why)
			}
		}
		if len(checked.Missing) > 0 {
			t.Errorf("%s: not read: %q", r.Name, checked.Missing)
		}
		var got []string
		for _, f := range checked.Findings {
			got = append(got, f.ID+" "+f.Object)
		}
		if seen++; !slices.Equal(got, wrong[r.Name]) {
			t.Errorf("%s: got %q, want %q: %+v", r.Name, got, wrong[r.Name], checked.Findings)
		}
	}
	t.Logf("%d nodes", seen)
}

// TestTwoReadings: what compares sources that change is wrong if two readings of a running node say so. A copy is read once.
func TestTwoReadings(t *testing.T) {
	t.Parallel()
	recordings := nodetest.Recordings(t)
	at := slices.IndexFunc(recordings, func(r nodetest.Recording) bool { return r.Name == "v2-systemd-restricted/full-A" })
	root := recordings[at].Write(t)
	sameBoot(t, root)
	uptime := 100
	for name, row := range map[string]struct {
		runs  bool
		pause time.Duration
		// second are the CPUs that the second reading finds; "as before" for what they were.
		second      string
		readings    int
		unconfirmed bool
	}{
		"running":          {true, 1, "", 2, false},
		"mended":           {true, 1, "as before", 2, false},
		"wrong once again": {true, 1, "0-14\n", 2, false}, // the kubelet sets them between the readings, and they lag behind again
		"slow":             {true, 1, "", 2, true},        // cpuManagerReconcilePeriod is longer than the time between the readings
		"running, now":     {true, 0, "", 1, true},
		"out of time":      {true, time.Hour, "", 1, true},
		"a copy":           {false, 1, "", 1, true},
	} {
		recordings[at].RewriteKernel(t, root)
		tick := func() error {
			return os.WriteFile(filepath.Join(root, "proc/uptime"), fmt.Appendf(nil, "%d.00 1.00\n", uptime), 0o600)
		}
		if err := tick(); err != nil {
			t.Fatal(err)
		}
		recordings[at].Rewrite(t, root)
		sameBoot(t, root)
		if name == "slow" {
			replace(t, filepath.Join(root, "var/lib/kubelet/config.yaml"), `"cpuManagerReconcilePeriod": *"5s"`,
				`"cpuManagerReconcilePeriod": "60s"`)
		}
		found, err := filepath.Glob(filepath.Join(root,
			"sys/fs/cgroup/kubepods.slice/kubepods-pod*00003.slice/cri-containerd-[^0]*/cpuset.cpus.effective"))
		if err != nil || len(found) != 1 {
			t.Fatalf("cgroups of a container: %q, %v", found, err)
		}
		before, err := os.ReadFile(found[0])
		if err == nil {
			err = os.WriteFile(found[0], []byte("0-15\n"), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		pods, readings := podsOf(t, filepath.Join(root, nodetest.PodsFile)), 0
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		checked, err := observe.Check(ctx, observe.CheckOptions{
			Root: root, Pause: row.pause, List: func(context.Context, string) ([]observe.Pod, error) {
				if readings++; readings > 1 && row.second != "" {
					if row.second != "as before" {
						before = []byte(row.second)
					}
					if err := os.WriteFile(found[0], before, 0o600); err != nil {
						return nil, err
					}
				}
				if row.runs {
					uptime++
				}
				return pods, tick()
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		var ids []string
		for _, f := range checked.Findings {
			if ids = append(ids, f.ID); f.Unconfirmed != row.unconfirmed {
				t.Errorf("%s: %s: unconfirmed is %t", name, f.ID, f.Unconfirmed)
			}
		}
		want := []string{"cpus-open", "other-cpus"}
		if row.second != "" {
			want = nil
		}
		if !slices.Equal(ids, want) || readings != row.readings {
			t.Errorf("%s: got %q in %d readings, want %q in %d: %+v", name, ids, readings, want, row.readings, checked)
		}
	}
}

// replace changes a text of a file, which has to be there.
func replace(t *testing.T, file, pattern, by string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	changed := regexp.MustCompile(pattern).ReplaceAll(text, []byte(by))
	if slices.Equal(changed, text) {
		t.Fatalf("%s has no %s", file, pattern)
	}
	if err := os.WriteFile(file, changed, 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestCheckPipe: a check does not wait for who writes to a pipe in a copy of a node's files.
func TestCheckPipe(t *testing.T) {
	t.Parallel()
	root := nodetest.Recordings(t)[0].Write(t)
	file := filepath.Join(root, "proc/uptime")
	if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(file, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := observe.Check(t.Context(), observe.CheckOptions{Root: root, List: given(nil)}); err != nil {
		t.Error(err)
	}
}

// given returns the same pods for each reading.
func given(pods []observe.Pod) func(context.Context, string) ([]observe.Pod, error) {
	return func(context.Context, string) ([]observe.Pod, error) { return pods, nil }
}

// sameBoot gives the machine the memory that the memory checkpoint has: the machine was recorded in another boot, in which the kernel put
// some memory and huge pages on other nodes.
func sameBoot(t *testing.T, root string) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root, "var/lib/kubelet/memory_manager_state"))
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	state, err := kubelet.ParseMemory(data)
	if err != nil {
		t.Fatal(err)
	}
	total := regexp.MustCompile(`(MemTotal:\s*)\d+ kB`)
	for id, node := range state.Nodes {
		dir := filepath.Join(root, "sys/devices/system/node", "node"+strconv.Itoa(id))
		for resource, table := range node.Tables {
			file, change := filepath.Join(dir, "meminfo"), func(text []byte) []byte {
				return total.ReplaceAll(text, fmt.Appendf(nil, "${1}%d kB", table.Total>>10))
			}
			if size, err := workload.HugePageSize(workload.Resource(resource)); err == nil {
				file = filepath.Join(dir, "hugepages", fmt.Sprintf("hugepages-%dkB", size>>10), "nr_hugepages")
				change = func([]byte) []byte { return fmt.Appendf(nil, "%d\n", table.Total/uint64(size)) }
			}
			text, err := os.ReadFile(file)
			if err == nil {
				err = os.WriteFile(file, change(text), 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
}

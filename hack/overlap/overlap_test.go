package overlap

import (
	"strings"
	"testing"
	"time"

	"github.com/berthd/berth/managers/cpuset"
)

const ms = time.Millisecond

func TestParse(t *testing.T) {
	t.Parallel()
	at := 11847*time.Second + 900350*time.Microsecond
	for _, row := range []struct {
		line string
		want event
		lost int
		ok   bool
	}{
		{
			line: "            bash-2938    [001] d..2. 11847.900350: sched_switch: prev_comm=bash prev_pid=2938 prev_prio=120 prev_state=R ==> next_comm=runc:[2:INIT] next_pid=1925 next_prio=120",
			want: event{at: at, cpu: 1, kind: switched, pid: 2938, other: 1925, text: "runc:[2:INIT]"}, ok: true,
		},
		{
			line: "   odd [x] -- co-2938    [013] d..2. 11847.900350: sched_switch: prev_comm=odd [x] -- co prev_pid=2938 prev_prio=120 prev_state=R ==> next_comm=a next_pid=7 b next_pid=1925 next_prio=120",
			want: event{at: at, cpu: 13, kind: switched, pid: 2938, other: 1925, text: "a next_pid=7 b"}, ok: true,
		},
		{
			line: "            bash-2938    [001] ..... 11847.900350: task_newtask: pid=2942 comm=bash clone_flags=200010000 oom_score_adj=0",
			want: event{at: at, cpu: 1, kind: created, pid: 2938, other: 2942, text: "bash", flags: cloneIntoCgroup | cloneThread},
			ok:   true,
		},
		{
			line: "              sh-2943    [001] d..1. 11847.900350: cgroup_attach_task: dst_root=8 dst_id=269720 dst_level=1 dst_path=/a/b pid=2944 comm=sh",
			want: event{at: at, cpu: 1, kind: attached, pid: 2944, text: "/a/b"}, ok: true,
		},
		{
			line: "           sleep-2944    [000] ..... 11847.900350: sched_process_exec: filename=/usr/bin/sleep pid=2944 old_pid=2944",
			want: event{at: at, kind: executed, pid: 2944, other: 2944, text: "/usr/bin/sleep"}, ok: true,
		},
		{
			line: "           mkdir-2942    [001] ..... 11847.900350: sched_process_exit: comm=mkdir pid=2942 prio=120 group_dead=true",
			want: event{at: at, cpu: 1, kind: exited, pid: 2942}, ok: true,
		},
		{line: "CPU:1 [LOST 1234 EVENTS]", lost: 1234},
		{line: "CPU:1 [LOST EVENTS]", lost: 1},
		{line: ""},
		{line: "           mkdir-2942    [001] ..... 11847.900350: other: comm=mkdir"},
	} {
		got, lost, ok := parse(row.line)
		if ok != row.ok || lost != row.lost || ok && got != row.want {
			t.Errorf("%s:\n%+v, lost %d, %v; want\n%+v, lost %d, %v", row.line, got, lost, ok, row.want, row.lost, row.ok)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("a-1 [001] d 1.000001: cgroup_attach_task: dst_path=/a")
	f.Add("a-1 [001] d 1.000001: sched_process_exec: ")
	f.Add("CPU:1 [LOST 1 EVENTS]")
	f.Fuzz(func(t *testing.T, line string) { parse(line) })
}

// named has containers in the cgroups below /c.
func named(cgroup string) string {
	name, _ := strings.CutPrefix(cgroup, "/c/")
	if name == cgroup {
		return ""
	}
	return name
}

// TestTasks puts lives together in which "own" holds CPU 1 from 20 ms to 60 ms.
func TestTasks(t *testing.T) {
	t.Parallel()
	// The own container: a runtime (10) makes the init process (11), which executes.
	own := []event{
		{at: 5 * ms, kind: created, pid: 10, other: 11, text: "runc"},
		{at: 6 * ms, kind: executed, pid: 11, text: "/proc/self/exe"},
		{at: 10 * ms, kind: attached, pid: 11, text: "/c/own"},
		{at: 20 * ms, kind: executed, pid: 11, text: "/probe"},
		{at: 21 * ms, kind: switched, cpu: 1, other: 11, text: "probe"},
	}
	end := event{at: 60 * ms, kind: exited, pid: 11}
	other := []event{
		{at: 1 * ms, kind: created, pid: 10, other: 31, text: "x"},
		{at: 2 * ms, kind: attached, pid: 31, text: "/c/other"},
		{at: 3 * ms, kind: created, pid: 31, other: 32, text: "x", flags: cloneThread},
	}
	for _, row := range []struct {
		name      string
		events    []event
		fromBirth bool
		want      []Overlap
	}{
		{name: "nobody else"},
		{name: "another's thread on the CPU", events: []event{
			{at: 30 * ms, kind: switched, cpu: 1, other: 32, text: "y"}, {at: 33 * ms, kind: switched, cpu: 1, other: 11},
		}, want: []Overlap{{Holder: "own", Intruder: "other", Command: "y", PID: 32, CPU: 1, After: 10 * ms, Length: 3 * ms,
			Running: 3 * ms}}},
		{name: "two slices, and one after a break", events: []event{
			{at: 25 * ms, kind: switched, cpu: 1, other: 31}, {at: 26 * ms, kind: switched, cpu: 1, other: 11},
			{at: 28 * ms, kind: switched, cpu: 1, other: 32}, {at: 29 * ms, kind: switched, cpu: 1, other: 11},
			{at: 58 * ms, kind: switched, cpu: 1, other: 32}, {at: 59 * ms, kind: switched, cpu: 1, other: 11},
		}, want: []Overlap{
			{Holder: "own", Intruder: "other", Command: "x", PID: 31, CPU: 1, After: 5 * ms, Length: 4 * ms, Running: 2 * ms},
			{Holder: "own", Intruder: "other", Command: "x", PID: 32, CPU: 1, After: 38 * ms, Length: ms, Running: ms},
		}},
		{name: "before the program runs", events: []event{
			{at: 12 * ms, kind: switched, cpu: 1, other: 31}, {at: 18 * ms, kind: switched, cpu: 1, other: 0},
		}},
		{name: "until the program runs, and a moment longer", events: []event{
			{at: 12 * ms, kind: switched, cpu: 1, other: 31}, {at: 20*ms + 500*time.Microsecond, kind: switched, cpu: 1, other: 0},
		}, want: []Overlap{{Holder: "own", Intruder: "other", Command: "x", PID: 31, CPU: 1, Length: ms / 2, Running: ms / 2}}},
		{name: "after the holder's end", events: []event{
			{at: 61 * ms, kind: switched, cpu: 1, other: 31}, {at: 70 * ms, kind: switched, cpu: 1, other: 0},
		}},
		{name: "on another CPU", events: []event{
			{at: 30 * ms, kind: switched, cpu: 0, other: 31}, {at: 40 * ms, kind: switched, cpu: 0, other: 0},
		}},
		{name: "one that is no container's", events: []event{
			{at: 30 * ms, kind: switched, cpu: 1, other: 10}, {at: 40 * ms, kind: switched, cpu: 1, other: 0},
		}},
		{name: "one that becomes a container's while it runs", events: []event{
			{at: 29 * ms, kind: created, pid: 10, other: 40, text: "z"}, {at: 29 * ms, kind: executed, pid: 40, text: "/bin/z"},
			{at: 30 * ms, kind: switched, cpu: 1, other: 40, text: "z"}, {at: 35 * ms, kind: attached, pid: 40, text: "/c/late"},
			{at: 40 * ms, kind: switched, cpu: 1, other: 0},
		}, want: []Overlap{{Holder: "own", Intruder: "late", Command: "z", PID: 40, CPU: 1, After: 15 * ms, Length: 5 * ms,
			Running: 5 * ms}}},
		{name: "the same from its birth", fromBirth: true, events: []event{
			{at: 29 * ms, kind: created, pid: 10, other: 40, text: "z"}, {at: 29 * ms, kind: executed, pid: 40, text: "/bin/z"},
			{at: 30 * ms, kind: switched, cpu: 1, other: 40, text: "z"}, {at: 35 * ms, kind: attached, pid: 40, text: "/c/late"},
			{at: 40 * ms, kind: switched, cpu: 1, other: 0},
		}, want: []Overlap{{Holder: "own", Intruder: "late", Command: "z", PID: 40, CPU: 1, After: 10 * ms, Length: 10 * ms,
			Running: 10 * ms}}},
		{name: "one that ends on the CPU", events: []event{
			{at: 30 * ms, kind: switched, cpu: 1, other: 32, text: "y"}, {at: 33 * ms, kind: exited, pid: 32},
			{at: 34 * ms, kind: switched, cpu: 1, other: 11},
		}, want: []Overlap{{Holder: "own", Intruder: "other", Command: "y", PID: 32, CPU: 1, After: 10 * ms, Length: 3 * ms,
			Running: 3 * ms}}},
		{name: "a thread that executes a program, and ends as the first one", events: []event{
			{at: 30 * ms, kind: switched, cpu: 1, other: 32, text: "y"}, {at: 31 * ms, kind: exited, pid: 31},
			{at: 32 * ms, kind: executed, pid: 31, other: 32, text: "/bin/y"}, {at: 33 * ms, kind: switched, cpu: 1, other: 11},
			{at: 34 * ms, kind: exited, pid: 31}, {at: 35 * ms, kind: switched, cpu: 1, other: 32},
			{at: 36 * ms, kind: switched, cpu: 1, other: 11},
		}, want: []Overlap{{Holder: "own", Intruder: "other", Program: "/bin/y", Command: "y", PID: 32, CPU: 1, After: 10 * ms,
			Length: 3 * ms, Running: 3 * ms}}},
		{name: "one that was cloned into the cgroup", events: []event{
			{at: 29 * ms, kind: created, pid: 10, other: 77, text: "z", flags: cloneIntoCgroup},
			{at: 30 * ms, kind: switched, cpu: 1, other: 77, text: "z"}, {at: 31 * ms, kind: switched, cpu: 1, other: 0},
		}, want: []Overlap{{Holder: "own", Intruder: "cloned", Command: "z", PID: 77, CPU: 1, After: 10 * ms, Length: ms, Running: ms}}},
	} {
		c := Config{Container: named, CPUs: cpuset.Of(0, 1), FromBirth: row.fromBirth}
		all := newTasks(c, func(pid int) []string {
			if pid == 77 {
				return []string{"/", "/c/cloned"}
			}
			return nil
		})
		all.add(10, 10, "runc", "")
		all.life("own").cpus = cpuset.Of(1)
		r := &recorder{pending: append(append(append([]event{end}, own...), row.events...), other...)}
		for _, e := range r.take(time.Second) {
			all.apply(e)
		}
		got := all.report(100 * ms)
		if len(got.Overlaps) != len(row.want) {
			t.Errorf("%s: %v, want %v", row.name, got.Overlaps, row.want)
			continue
		}
		for i := range row.want {
			if got.Overlaps[i] != row.want[i] {
				t.Errorf("%s: %+v, want %+v", row.name, got.Overlaps[i], row.want[i])
			}
		}
		if got.Holders != 1 || got.Held != 40*ms {
			t.Errorf("%s: %d holders for %v", row.name, got.Holders, got.Held)
		}
	}
}

func TestIntrudes(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		container, holder string
		want              bool
	}{
		{"a", "b", true},
		{"a", "a", false},
		{"planted 1-intruder", "planted 1-holder", true},
		{"planted 2-intruder", "planted 1-holder", false},
		{"planted 1-holder", "planted 1-holder", false},
		{"a", "planted 1-holder", false},
		{"planted 1-intruder", "a", false},
		{"a", "b-holder", true},
	} {
		if got := intrudes(row.container, row.holder); got != row.want {
			t.Errorf("%s on a CPU of %s: %v", row.container, row.holder, got)
		}
	}
}

func TestValid(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name string
		r    Report
		ok   bool
	}{
		{"enough", Report{Planted: 10, Found: 10}, true},
		{"with overlaps", Report{Planted: 10, Found: 10, Overlaps: make([]Overlap, 1)}, true},
		{"one missed", Report{Planted: 11, Found: 10}, false},
		{"too few", Report{Planted: 9, Found: 9}, false},
		{"lost", Report{Planted: 10, Found: 10, Lost: 1}, false},
	} {
		if err := row.r.Valid(); (err == nil) != row.ok {
			t.Errorf("%s: %v", row.name, err)
		}
	}
	if got := (Report{Method: Trace, Overlaps: make([]Overlap, 2)}).String(); !strings.Contains(got, "overlaps: 2; method trace") ||
		strings.Count(got, "\n") != 2 {
		t.Error(got)
	}
}

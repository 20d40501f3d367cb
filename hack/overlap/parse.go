package overlap

import (
	"strconv"
	"strings"
	"time"
)

// parse reads a line of trace_pipe (kernel documentation, trace/ftrace.rst): command and
// number of the task, CPU, flags, time, event and its fields. lost is the count in a line
// about lost events.
func parse(line string) (e event, lost int, ok bool) {
	if rest, cut := strings.CutPrefix(line, "CPU:"); cut {
		// CPU:1 [LOST 1234 EVENTS]
		_, text, found := strings.Cut(rest, "[LOST ")
		n, err := strconv.Atoi(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(text), " EVENTS]")))
		if !found || err != nil {
			return e, 1, false
		}
		return e, n, false
	}
	// A command may hold anything: what follows it is found by its form.
	head, rest, found := "", line, false
	for !found {
		var next string
		if next, rest, found = strings.Cut(rest, " ["); !found {
			return e, 0, false
		}
		head += next
		if digits, _, closed := strings.Cut(rest, "] "); !closed || strings.Trim(digits, "0123456789") != "" {
			head, found = head+" [", false
		}
	}
	digits, rest, _ := strings.Cut(rest, "] ")
	e.cpu = number(digits)
	e.pid = number(head[strings.LastIndexByte(head, '-')+1:])
	_, rest, _ = strings.Cut(rest, " ")
	stamp, rest, ok1 := strings.Cut(strings.TrimLeft(rest, " "), ": ")
	name, fields, ok2 := strings.Cut(rest, ": ")
	if !ok1 || !ok2 {
		return e, 0, false
	}
	e.at = seconds(stamp)
	switch name {
	case "sched_switch":
		e.kind = switched
		_, next, _ := strings.Cut(fields, " ==> next_comm=")
		at := strings.LastIndex(next, " next_pid=")
		if at < 0 {
			return e, 0, false
		}
		e.text, e.other = next[:at], number(field(next[at:], "next_pid"))
	case "task_newtask":
		e.kind, e.other = created, number(field(fields, "pid"))
		e.text = field(fields, "comm")
		e.flags, _ = strconv.ParseUint(field(fields, "clone_flags"), 16, 64)
	case "cgroup_attach_task":
		e.kind, e.text = attached, field(fields, "dst_path")
		e.pid = number(field(last(fields, " pid="), "pid"))
	case "sched_process_exec":
		e.kind, e.text, e.other = executed, field(fields, "filename"), number(field(last(fields, " old_pid="), "old_pid"))
		e.pid = number(field(last(fields, " pid="), "pid"))
	case "sched_process_exit":
		e.kind = exited
	default:
		return e, 0, false
	}
	return e, 0, true
}

// field gives a value up to the next blank.
func field(fields, name string) string {
	_, value, found := strings.Cut(" "+fields, " "+name+"=")
	if !found {
		return ""
	}
	value, _, _ = strings.Cut(value, " ")
	return value
}

// last gives a text from the last mark on.
func last(text, mark string) string { return text[max(0, strings.LastIndex(text, mark)):] }

func number(text string) int {
	n, _ := strconv.Atoi(strings.TrimSpace(text))
	return n
}

// seconds reads a time with six decimals.
func seconds(text string) time.Duration {
	whole, part, _ := strings.Cut(strings.TrimSpace(text), ".")
	return time.Duration(number(whole))*time.Second + time.Duration(number(part))*time.Microsecond
}

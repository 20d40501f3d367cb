package affinity_test

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/berthd/berth/clients/affinity"
	"github.com/berthd/berth/managers/cpuset"
)

// allowed reads the CPUs of a process (proc_pid_status(5)).
func allowed(t *testing.T, pid int) cpuset.Set {
	t.Helper()
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "\nCpus_allowed_list:")
	list, _, _ := strings.Cut(rest, "\n")
	set, err := cpuset.Parse(strings.TrimSpace(list))
	if err != nil {
		t.Fatal(err)
	}
	return set
}

func TestSet(t *testing.T) {
	t.Parallel()
	cmd := exec.Command("/bin/sh", "-c", "read _")
	stdin, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	before := allowed(t, cmd.Process.Pid)
	for cpu := range before.All() {
		one := cpuset.Of(cpu)
		if err := affinity.Set(cmd.Process.Pid, one); err != nil {
			t.Error(err)
		}
		if got := allowed(t, cmd.Process.Pid); got != one {
			t.Errorf("the process is on %s, want %s", got, one)
		}
	}
	if err := affinity.Set(cmd.Process.Pid, cpuset.Set{}); err == nil {
		t.Error("a process was put on no CPU")
	}
	_ = stdin.Close()
	_ = cmd.Wait()
	if err := affinity.Set(cmd.Process.Pid, before); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a process that has ended: %v", err)
	}
}

package numamaps

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strconv"
	"syscall"
	"testing"
)

// withoutFirst makes the test binary a process whose first thread has ended.
const withoutFirst = "NUMAMAPS_TEST_WITHOUT_FIRST_THREAD"

func TestMain(m *testing.M) {
	if os.Getenv(withoutFirst) != "" {
		endFirstThread()
	}
	os.Exit(m.Run())
}

// endFirstThread ends the first thread. Another one reports it, and ends the process with its input.
func endFirstThread() {
	debug.SetGCPercent(-1) // the garbage collector would wait for the ended thread
	go func() {
		for {
			if text, err := os.ReadFile("/proc/self/status"); err != nil || bytes.Contains(text, []byte("State:\tZ")) {
				break
			}
		}
		_, _ = os.Stdout.WriteString("ended\n")
		_, _ = syscall.Read(0, make([]byte, 1))
		os.Exit(0)
	}()
	// Each goroutine keeps its thread, so one of them gets the first one.
	for {
		go func() {
			runtime.LockOSThread()
			if syscall.Gettid() == os.Getpid() {
				_, _, _ = syscall.RawSyscall(syscall.SYS_EXIT, 0, 0, 0)
			}
			select {}
		}()
		runtime.LockOSThread()
		if syscall.Gettid() == os.Getpid() {
			_, _, _ = syscall.RawSyscall(syscall.SYS_EXIT, 0, 0, 0)
		}
		if text, err := os.ReadFile("/proc/self/status"); err != nil || bytes.Contains(text, []byte("State:\tZ")) {
			select {}
		}
	}
}

// The kernel shows no memory at the first thread of a process after the thread has ended, and all of it at the others.
func TestFirstThreadOfTheKernel(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("/proc/self/numa_maps"); errors.Is(err, fs.ErrNotExist) {
		t.Skip("needs a kernel with NUMA: there is no /proc/self/numa_maps")
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), withoutFirst+"=1", "GOMAXPROCS=4")
	input, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	output, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(output).ReadString('\n'); err != nil || line != "ended\n" {
		t.Fatalf("%q, %v", line, err)
	}
	proc, pid := os.DirFS("/proc"), cmd.Process.Pid
	if a, shown := readFile(proc, fmt.Sprintf("%d/numa_maps", pid), false); shown {
		t.Errorf("the first thread shows memory: %+v", a)
	}
	others := 0
	for _, thread := range threads(proc, fmt.Sprintf("%d/task", pid)) {
		if _, shown := readFile(proc, fmt.Sprintf("%d/task/%s/numa_maps", pid, thread), false); shown && thread != strconv.Itoa(pid) {
			others++
		}
	}
	if a := read(proc, pid, false); others == 0 || a.Gone || a.Error != "" {
		t.Errorf("%d other threads show memory, and the process %+v", others, a)
	}
	_ = input.Close()
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

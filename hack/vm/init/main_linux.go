// Command init is the first process in the VM of hack/vm: it mounts what a
// test expects of a Linux system, runs the test binaries of its job one after the
// other and turns the machine off.
//
// As process 1 it starts itself once more and from then on only reaps orphans, so
// that a test finds them gone as on any system. Under an init system of the
// VM's own it is a service, called with the argument "run".
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"github.com/berthd/berth/hack/vm/job"
)

func main() {
	if os.Getpid() == 1 {
		first()
	}
	run()
	turnOff()
}

// first is the life of process 1.
func first() {
	defer turnOff()
	if err := mountSystem(); err != nil {
		fmt.Println("init:", err) // the console is all there is
		return
	}
	runner, err := os.StartProcess("/proc/self/exe", []string{"init", "run"}, &os.ProcAttr{
		Files: []*os.File{os.Stdin, os.Stdout, os.Stderr},
		Env:   []string{"PATH=/usr/bin:/usr/sbin:/bin:/sbin", "HOME=/root", "TMPDIR=/tmp", "GOTRACEBACK=all"},
	})
	if err != nil {
		fmt.Println("init:", err)
		return
	}
	for {
		pid, err := syscall.Wait4(-1, nil, 0, nil)
		if pid == runner.Pid || err == syscall.ECHILD {
			return
		}
	}
}

// turnOff does not return.
func turnOff() {
	syscall.Sync()
	fmt.Println("init:", syscall.Reboot(syscall.LINUX_REBOOT_CMD_POWER_OFF))
	select {}
}

// run does the job and says how it went.
func run() {
	line, err := openLine()
	if err != nil {
		fmt.Println("init:", err)
		return
	}
	defer line.drain()
	version, _ := os.ReadFile("/proc/version")
	line.say(job.Event{Kind: job.Boot, Text: strings.TrimSpace(string(version))})
	var j job.Job
	text, err := os.ReadFile(job.Path)
	if err == nil {
		err = json.Unmarshal(text, &j)
	}
	if err == nil {
		err = prepare(j)
	}
	if err != nil {
		line.say(job.Event{Kind: job.Trouble, Text: err.Error()})
		return
	}
	for i, t := range j.Tests {
		line.test(i, t)
	}
	line.say(job.Event{Kind: job.Done})
}

// prepare sets up what the job requests.
func prepare(j job.Job) error {
	// Everybody may write to the root of the first file system. berthd trusts no such directory.
	if err := os.Chmod("/", 0o755); err != nil {
		return err
	}
	if err := raiseLoopback(); err != nil {
		return err
	}
	if err := loadModules(); err != nil {
		return err
	}
	return mountCgroups(j.Cgroup)
}

// loadModules loads the kernel modules of the image.
func loadModules() error {
	paths, err := filepath.Glob(filepath.Join(job.Modules, "*.ko"))
	if err != nil {
		return err
	}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		options := []byte{0}
		_, _, errno := syscall.Syscall(syscall.SYS_INIT_MODULE, uintptr(unsafe.Pointer(&text[0])), uintptr(len(text)),
			uintptr(unsafe.Pointer(&options[0])))
		if errno != 0 {
			return fmt.Errorf("load %s: %w", path, errno)
		}
	}
	return nil
}

// test runs one test binary.
func (l *line) test(i int, t job.Test) {
	l.say(job.Event{Kind: job.Start, Test: i})
	start := time.Now()
	cmd := exec.Command(t.Binary, t.Args...)
	cmd.Dir = t.Dir
	cmd.Env = append(os.Environ(), t.Env...)
	out := &output{l, i}
	cmd.Stdout, cmd.Stderr = out, out
	// An orphan of the test may hold its output open.
	cmd.WaitDelay = 5 * time.Second
	err := cmd.Run()
	if cmd.ProcessState == nil {
		l.say(job.Event{Kind: job.Trouble, Text: err.Error()})
	}
	l.say(job.Event{Kind: job.End, Test: i, Status: status(cmd.ProcessState, err), Seconds: time.Since(start).Seconds()})
}

// status is the exit status as a shell has it.
func status(state *os.ProcessState, err error) int {
	if state == nil {
		return 127
	}
	if ws, ok := state.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	if state.ExitCode() == 0 && err != nil {
		return 1 // an orphan kept the output open
	}
	return state.ExitCode()
}

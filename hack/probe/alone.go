package main

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"
)

// alone executes a verb for an additional program in a container.
func alone(verb string, args []string) error {
	switch verb {
	case "die":
		number, err := strconv.Atoi(strings.Join(args, ""))
		if err != nil {
			return err
		}
		if err := syscall.Kill(syscall.Getpid(), syscall.Signal(number)); err != nil {
			return err
		}
		select {} // until it comes
	case "leave":
		cmd := exec.Command("/proc/self/exe", args...)
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		return cmd.Start()
	case "terminal":
		var are []string
		for fd := range 3 {
			answer := "yes"
			if _, err := windowSize(fd); err != nil {
				answer = "no"
			}
			are = append(are, answer)
		}
		size, _ := windowSize(0)
		fmt.Printf("terminal=%s %s\n", strings.Join(are, " "), size)
	case "resized":
		terminated := make(chan os.Signal, 1)
		signal.Notify(terminated, syscall.SIGWINCH)
		fmt.Println("waits for another size")
		<-terminated
		size, err := windowSize(0)
		fmt.Printf("resized=%s\n", size)
		return err
	}
	return nil
}

// windowSize gives the columns and lines of a terminal.
func windowSize(fd int) (string, error) {
	var size struct{ lines, columns, x, y uint16 }
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, uintptr(fd), syscall.TIOCGWINSZ, uintptr(unsafe.Pointer(&size))); errno != 0 {
		return "", errno
	}
	return fmt.Sprintf("%dx%d", size.columns, size.lines), nil
}

// The main goroutine stays on the first thread, for headless.
func init() { runtime.LockOSThread() }

// headless ends the first thread. The process goes on with its other threads; ps shows it as a zombie.
func headless(terminated <-chan os.Signal) error {
	go func() {
		for first := fmt.Sprintf("/proc/self/task/%d/stat", os.Getpid()); ; time.Sleep(time.Millisecond) {
			if text, err := os.ReadFile(first); err == nil && strings.Contains(string(text), ") Z ") {
				break
			}
		}
		fmt.Println("is headless")
		<-terminated
		os.Exit(0)
	}()
	_, _, errno := syscall.Syscall(syscall.SYS_EXIT, 0, 0, 0)
	return errno
}

package main

import (
	"fmt"
	"os"
	"sync"
	"syscall"

	"github.com/berthd/berth/hack/vm/job"
)

// line is the serial line on which events go out.
type line struct {
	mu   sync.Mutex // one event after the other
	file *os.File
}

func openLine() (*line, error) {
	file, err := os.OpenFile(job.Line, os.O_WRONLY|syscall.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	return &line{file: file}, nil
}

// say sends an event. A failure can only be written to the console.
func (l *line) say(e job.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := job.Encode(l.file, e); err != nil {
		fmt.Println("init:", err)
	}
}

// drain waits until everything has left the machine (tcdrain(3)).
func (l *line) drain() {
	const tcsbrk, wait = 0x5409, 1
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, l.file.Fd(), tcsbrk, wait); errno != 0 {
		fmt.Println("init:", errno)
	}
}

// output passes on what a test prints.
type output struct {
	line *line
	test int
}

func (o *output) Write(p []byte) (int, error) {
	o.line.say(job.Event{Kind: job.Output, Test: o.test, Text: string(p)})
	return len(p), nil
}

package main

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"unsafe"
)

// setPipeSize is F_SETPIPE_SZ of fcntl(2).
const setPipeSize = 1031

// pin puts the pages of blocks of 1 MiB into pipes until SIGUSR1. The kernel does not move a page that is in a pipe: vmsplice(2).
func pin(blocks [][]byte) error {
	held = append(held, blocks...)
	released := make(chan os.Signal, 1)
	signal.Notify(released, syscall.SIGUSR1)
	var pipes []int
	for _, block := range blocks {
		var ends [2]int
		if err := syscall.Pipe(ends[:]); err != nil {
			return err
		}
		pipes = append(pipes, ends[:]...)
		if _, _, errno := syscall.Syscall(syscall.SYS_FCNTL, uintptr(ends[1]), setPipeSize, uintptr(len(block))); errno != 0 {
			return fmt.Errorf("make room in a pipe: %w", errno)
		}
		vec := syscall.Iovec{Base: &block[0]}
		vec.SetLen(len(block))
		n, _, errno := syscall.Syscall6(syscall.SYS_VMSPLICE, uintptr(ends[1]), uintptr(unsafe.Pointer(&vec)), 1, 0, 0, 0)
		if errno != 0 || int(n) != len(block) {
			return fmt.Errorf("put %d bytes into a pipe: %d, %w", len(block), n, errno)
		}
	}
	fmt.Println("pins")
	go func() {
		<-released
		for _, fd := range pipes {
			_ = syscall.Close(fd)
		}
	}()
	return nil
}

package main

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// pin puts the pages of blocks of 1 MiB into pipes until SIGUSR1. The kernel does not move a page that is in a pipe: vmsplice(2).
func pin(blocks [][]byte) error {
	held = append(held, blocks...)
	released := make(chan os.Signal, 1)
	signal.Notify(released, syscall.SIGUSR1)
	var pipes []int
	for _, block := range blocks {
		var ends [2]int
		if err := unix.Pipe(ends[:]); err != nil {
			return err
		}
		pipes = append(pipes, ends[:]...)
		if _, err := unix.FcntlInt(uintptr(ends[1]), unix.F_SETPIPE_SZ, len(block)); err != nil {
			return fmt.Errorf("make room in a pipe: %w", err)
		}
		vec := unix.Iovec{Base: &block[0]}
		vec.SetLen(len(block))
		if n, err := unix.Vmsplice(ends[1], []unix.Iovec{vec}, 0); err != nil || n != len(block) {
			return fmt.Errorf("put %d bytes into a pipe: %d, %w", len(block), n, err)
		}
	}
	fmt.Println("pins")
	go func() {
		<-released
		for _, fd := range pipes {
			_ = unix.Close(fd)
		}
	}()
	return nil
}

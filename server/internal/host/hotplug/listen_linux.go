package hotplug

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// longestEvent is the kernel's limit of a uevent, UEVENT_BUFFER_SIZE, with room for its path.
const longestEvent = 8192

// kernelGroup is the multicast group of the kernel's own uevents.
const kernelGroup = 1

// Listen calls event after each event, until the context ends. An error means that the kernel's
// events cannot be received, for example because a filter of system calls forbids the socket.
func Listen(ctx context.Context, event func()) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_KOBJECT_UEVENT)
	if err != nil {
		return fmt.Errorf("open a socket for the kernel's events: %w", err)
	}
	defer func() { _ = unix.Close(fd) }()
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: kernelGroup}); err != nil {
		return fmt.Errorf("receive the kernel's events: %w", err)
	}
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return fmt.Errorf("receive the kernel's events: %w", err)
	}
	defer func() { _ = unix.Close(wake) }()
	woken := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(woken)
		_, _ = unix.Write(wake, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	})
	defer func() {
		if !stop() {
			<-woken // the descriptor is in use until then
		}
	}()
	for {
		ready := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}, {Fd: int32(wake), Events: unix.POLLIN}}
		if _, err := unix.Poll(ready, -1); err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("wait for the kernel's events: %w", err)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err := receive(fd, event); err != nil {
			return err
		}
	}
}

// receive reads all waiting messages.
func receive(fd int, event func()) error {
	buffer := make([]byte, longestEvent)
	for {
		n, from, err := unix.Recvfrom(fd, buffer, 0)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return nil
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.ENOBUFS): // events were lost
			event()
		case err != nil:
			return fmt.Errorf("receive an event of the kernel: %w", err)
		case ofKernel(from) && concerns(buffer[:n]):
			event()
		}
	}
}

// ofKernel returns whether the kernel broadcast a message. Other processes have a port, and can
// send to this socket alone.
func ofKernel(from unix.Sockaddr) bool {
	sender, ok := from.(*unix.SockaddrNetlink)
	return ok && sender.Pid == 0 && sender.Groups == kernelGroup
}

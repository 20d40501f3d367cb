package hotplug

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

// TestOnlyTheKernelCounts: a process can send to the socket, and its messages are ignored.
func TestOnlyTheKernelCounts(t *testing.T) {
	t.Parallel()
	for _, from := range []unix.Sockaddr{
		&unix.SockaddrNetlink{Pid: 7, Groups: kernelGroup}, &unix.SockaddrNetlink{Pid: 0}, &unix.SockaddrNetlink{Pid: 0, Groups: 2},
		&unix.SockaddrUnix{}, nil,
	} {
		if ofKernel(from) {
			t.Errorf("%+v is taken for the kernel", from)
		}
	}
	if !ofKernel(&unix.SockaddrNetlink{Groups: kernelGroup}) {
		t.Error("the kernel is not recognized")
	}
	receiver, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK, unix.NETLINK_KOBJECT_UEVENT)
	if err != nil {
		t.Skipf("no socket for uevents: %v", err)
	}
	defer unix.Close(receiver)
	if err := unix.Bind(receiver, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		t.Fatal(err)
	}
	name, err := unix.Getsockname(receiver)
	if err != nil {
		t.Fatal(err)
	}
	sender, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM, unix.NETLINK_KOBJECT_UEVENT)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(sender)
	forged := []byte("offline@/devices/system/cpu/cpu3\x00SUBSYSTEM=cpu\x00")
	if err := unix.Sendto(sender, forged, 0, name); err != nil && !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.ECONNREFUSED) {
		t.Fatal(err)
	}
	if err := receive(receiver, func() { t.Error("a forged event counts") }); err != nil {
		t.Fatal(err)
	}
}

func TestListenEnds(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	var events atomic.Int64
	ended := make(chan error)
	go func() { ended <- Listen(ctx, func() { events.Add(1) }) }()
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) && !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.EPROTONOSUPPORT) {
		t.Errorf("ended with %v", err)
	}
}

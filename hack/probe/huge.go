package main

import (
	"fmt"
	"math/bits"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"syscall"
	"unsafe"
)

// huge maps huge pages, in a file of a directory if there is one, writes to all of them, and tells their NUMA nodes.
func huge(size, number, dir string) error {
	bytes, err := strconv.Atoi(size)
	count, err2 := strconv.Atoi(number)
	if err != nil || err2 != nil || bytes < 4096 || bytes&(bytes-1) != 0 || count < 1 || count > 1<<20 {
		return fmt.Errorf("huge pages of %q bytes, %q of them: expected a power of two, and a number", size, number)
	}
	fd, flags := -1, syscall.MAP_PRIVATE|syscall.MAP_ANONYMOUS|syscall.MAP_HUGETLB|bits.TrailingZeros(uint(bytes))<<26
	if dir != "" {
		file, err := os.Create(filepath.Join(dir, "pages"))
		if err != nil {
			return err
		}
		defer func() { _ = file.Close() }()
		fd, flags = int(file.Fd()), syscall.MAP_SHARED
	}
	data, err := syscall.Mmap(fd, 0, bytes*count, syscall.PROT_READ|syscall.PROT_WRITE, flags)
	if err != nil {
		fmt.Printf("huge=mmap of %d: %v\n", count, err)
		return nil
	}
	defer func() { _ = syscall.Munmap(data) }()
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	touched, nodes := 0, []int(nil)
	defer func() {
		if recover() != nil {
			fmt.Printf("huge=SIGBUS after %d of %d\n", touched, count)
			return
		}
		fmt.Printf("huge=%d on %v\n", count, nodes)
	}()
	for ; touched < count; touched++ {
		data[touched*bytes] = 1
		if node := nodeOf(&data[touched*bytes]); !slices.Contains(nodes, node) {
			nodes = append(nodes, node)
		}
	}
	return nil
}

// nodeOf is the NUMA node of an address (get_mempolicy(2)); -1 if the kernel does not say.
func nodeOf(address *byte) int {
	const flags = 1 | 2 // MPOL_F_NODE and MPOL_F_ADDR
	var node int32
	if _, _, errno := syscall.Syscall6(syscall.SYS_GET_MEMPOLICY, uintptr(unsafe.Pointer(&node)), 0, 0, uintptr(unsafe.Pointer(address)),
		flags, 0); errno != 0 {
		return -1
	}
	return int(node)
}

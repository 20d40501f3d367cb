package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"unsafe"
)

// attack executes a verb of a container that tries to break out. It returns false for other
// verbs.
func attack(verb string, args []string, terminated <-chan os.Signal) (bool, error) {
	wanted := map[string]int{"link": 2, "directory": 1, "pipe": 1, "swap": 2, "copy": 3, "appear": 1, "node": 1, "call": 1, "mode": 1,
		"files": 0, "reach": 1, "overwrite": 0}
	n, ok := wanted[verb]
	if !ok {
		return false, nil
	}
	if len(args) != n {
		return true, fmt.Errorf("%s: %d arguments, expected %d", verb, len(args), n)
	}
	switch verb {
	case "link":
		return true, os.Symlink(args[0], args[1])
	case "directory":
		return true, os.MkdirAll(args[0], 0o755)
	case "pipe":
		return true, syscall.Mkfifo(args[0], 0o644)
	case "swap":
		return true, swap(args[0], args[1], terminated)
	case "copy":
		return true, copyFile(args[0], args[1], args[2])
	case "appear":
		_, err := os.Lstat(args[0])
		fmt.Printf("appear.%s=%t\n", args[0], err == nil)
	case "node":
		// The null device. A device cgroup refuses its creation without permission.
		fmt.Printf("node=%v\n", syscall.Mknod(args[0], syscall.S_IFCHR|0o666, 1<<8|3))
	case "mode":
		var stat syscall.Stat_t
		if err := syscall.Lstat(args[0], &stat); err != nil {
			return true, err
		}
		fmt.Printf("mode.%s=%o %d:%d\n", args[0], stat.Mode, stat.Uid, stat.Gid)
	case "files":
		return true, files()
	case "overwrite":
		return true, overwrite(terminated)
	case "reach":
		reach(args[0])
	case "call":
		fmt.Printf("call.%s=%s\n", args[0], call(args[0]))
	}
	return true, nil
}

// reach reports whether a file of the machine's could be read and written to. It writes
// nothing: if it could, it would be the machine that runs the test.
func reach(path string) {
	can := func(flag int, use func(f *os.File) error) string {
		f, err := os.OpenFile(path, flag|syscall.O_NONBLOCK, 0)
		if err != nil {
			return "no"
		}
		defer f.Close()
		if err := use(f); err != nil {
			return "no"
		}
		return "yes"
	}
	read := can(os.O_RDONLY, func(f *os.File) error { _, err := f.Read(make([]byte, 1)); return err })
	write := can(os.O_WRONLY, func(*os.File) error { return nil })
	fmt.Printf("reach.%s=read %s write %s\n", path, read, write)
}

// overwrite tries to write to the programs of all processes until SIGTERM.
func overwrite(terminated <-chan os.Signal) error {
	fmt.Println("tries")
	own := "/proc/" + strconv.Itoa(os.Getpid()) + "/exe"
	for len(terminated) == 0 {
		programs, err := filepath.Glob("/proc/[0-9]*/exe")
		if err != nil {
			return err
		}
		for _, path := range programs {
			if path == own {
				continue
			}
			// A descriptor of a program that runs can be opened for writing when it has ended.
			held, err := os.Open(path)
			if err != nil {
				continue
			}
			for range 100 {
				f, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", held.Fd()), os.O_WRONLY, 0)
				if err != nil {
					continue
				}
				target, _ := os.Readlink(f.Name())
				if n, err := f.WriteString("#!"); err == nil && n > 0 && !strings.HasSuffix(target, "/probe") {
					fmt.Println("overwritten:", target)
				}
				_ = f.Close()
			}
			_ = held.Close()
		}
	}
	return nil
}

// swap exchanges two names until SIGTERM. It prints a line once it has begun.
func swap(a, b string, terminated <-chan os.Signal) error {
	from, err := syscall.BytePtrFromString(a)
	if err != nil {
		return err
	}
	to, err := syscall.BytePtrFromString(b)
	if err != nil {
		return err
	}
	const exchange = 2
	here := -100 // AT_FDCWD
	for first := true; len(terminated) == 0; first = false {
		if _, _, errno := syscall.Syscall6(sysRenameat2, uintptr(here), uintptr(unsafe.Pointer(from)), uintptr(here),
			uintptr(unsafe.Pointer(to)), exchange, 0); errno != 0 {
			return fmt.Errorf("exchange %s and %s: %w", a, b, errno)
		}
		if first {
			fmt.Println("swaps")
		}
	}
	return nil
}

// files lists open descriptors that this program has not opened. A descriptor of another file
// than a pipe or the null device was leaked by the container's creator.
func files() error {
	var open []string
	for fd := range 1024 {
		target, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
		if err != nil || strings.HasPrefix(target, "anon_inode:[event") || strings.HasPrefix(target, "/sys/fs/cgroup/") { // Go's own
			continue
		}
		open = append(open, strconv.Itoa(fd))
	}
	fmt.Printf("files=%s\n", strings.Join(open, " "))
	if input, err := os.Readlink("/proc/self/fd/0"); err == nil {
		kind, _, _ := strings.Cut(input, ":")
		fmt.Printf("input=%s\n", kind)
	}
	return nil
}

// copyFile copies a file and gives it a mode, in octal digits: also setuid.
func copyFile(from, to, digits string) error {
	mode, err := strconv.ParseUint(digits, 8, 32)
	if err != nil {
		return err
	}
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close(), syscall.Chmod(to, uint32(mode)))
}

// call makes a system call with arguments that change nothing, and returns the result. A filter's
// result comes before the kernel checks the arguments.
func call(name string) string {
	var number int
	var arg uintptr
	switch name {
	case "keyctl":
		number, arg = syscall.SYS_KEYCTL, 1<<20
	case "unshare":
		number = syscall.SYS_UNSHARE
	case "mount":
		number = syscall.SYS_MOUNT
	case "getppid":
		number = syscall.SYS_GETPPID
	case "unknown":
		number = 4000
	case "raw": // a raw socket
		return socket(syscall.AF_INET, syscall.SOCK_RAW, syscall.IPPROTO_ICMP)
	case "vsock":
		return socket(40, syscall.SOCK_STREAM, 0)
	default:
		return "no such call here"
	}
	_, _, errno := syscall.RawSyscall(uintptr(number), arg, 0, 0)
	return word(errno)
}

func socket(family, kind, protocol int) string {
	fd, err := syscall.Socket(family, kind, protocol)
	if err != nil {
		return word(err)
	}
	return word(syscall.Close(fd))
}

func word(err error) string {
	if errno := syscall.Errno(0); err == nil || errors.As(err, &errno) && errno == 0 {
		return "done"
	}
	return strings.ReplaceAll(err.Error(), " ", "-")
}

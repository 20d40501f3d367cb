// Command probe is what runs in the containers of tests and of the demo: one
// static binary, built on the spot, which is a whole root file system by itself.
//
// Its arguments are things to do, one after the other, with a comma between them:
//
//	probe show , print hello , write /data/x hello , wait
//
//	exit N            ends with the code N
//	fail-once FILE    ends with the code 1, unless the file is there, and makes it
//	print WORDS...    writes a line to standard output
//	complain WORDS... writes a line to standard error
//	cat FILE          writes a file to standard output
//	write FILE WORD   makes a file
//	show              reports where it runs and as what, in lines of the form name=value:
//	                  its CPUs (also as sched_getaffinity(2) has them), memory nodes,
//	                  namespaces, variables, the values of its cgroup
//	device FILE       opens a device for reading and writing, and prints its numbers
//	fill              uses memory until there is none
//	hold MIB          uses so much memory, and keeps it
//	pin MIB           has so much of its memory pinned until SIGUSR1, so that the kernel cannot move it
//	spin              uses a CPU until SIGTERM
//	burn CPU TIME     uses the named CPU for a time, as in "5ms"
//	pulse TIME        uses a CPU for a moment again and again, with a time in between,
//	                  until SIGTERM
//	wait              says so, and ends with the code 0 on SIGTERM
//	stubborn          says so, and stays until it is killed
//	die N             sends itself the signal with the number N
//	headless          ends its first thread, says so, and ends with the code 0 on SIGTERM
//	leave DOINGS...   starts itself once more, and does not wait for that
//	terminal          reports which of its streams are a terminal, and the size of that
//	resized           says so, and waits until its terminal has another size
//
// and what a container does to escape:
//
//	link TARGET PATH  makes a symbolic link
//	directory PATH    makes a directory
//	pipe PATH         makes a named pipe
//	swap A B          exchanges two names until SIGTERM
//	copy FROM TO MODE copies a file and gives it a mode, also setuid
//	appear PATH       reports whether there is such a file
//	node PATH         makes a device file, and reports how that went
//	mode PATH         prints a file's type and mode, in octal digits, and its owner
//	overwrite         tries to write to the programs of all processes, until SIGTERM
//	files             reports which descriptors are open
//	call NAME         makes a system call that changes nothing, and prints the result
package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

func main() {
	// The first process of a PID namespace receives only signals that it handles.
	terminated := make(chan os.Signal, 1)
	signal.Notify(terminated, syscall.SIGTERM)
	args := os.Args[1:]
	for len(args) > 0 {
		task, rest := args, []string(nil)
		if comma := slices.Index(args, ","); comma >= 0 {
			task, rest = args[:comma], args[comma+1:]
		}
		if err := do(task, terminated); err != nil {
			fmt.Fprintln(os.Stderr, "probe:", err)
			os.Exit(2)
		}
		args = rest
	}
}

func do(task []string, terminated <-chan os.Signal) error {
	if len(task) == 0 {
		return errors.New("nothing to do before a comma")
	}
	verb, args := task[0], task[1:]
	arg := func(i int) string {
		if i < len(args) {
			return args[i]
		}
		return ""
	}
	switch verb {
	case "exit":
		code, err := strconv.Atoi(arg(0))
		if err != nil {
			return err
		}
		os.Exit(code)
	case "fail-once":
		if _, err := os.Stat(arg(0)); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := os.WriteFile(arg(0), nil, 0o644); err != nil {
			return err
		}
		os.Exit(1)
	case "print":
		fmt.Println(strings.Join(args, " "))
	case "complain":
		fmt.Fprintln(os.Stderr, strings.Join(args, " "))
	case "cat":
		text, err := os.ReadFile(arg(0))
		if err != nil {
			return err
		}
		_, err = os.Stdout.Write(text)
		return err
	case "write":
		return os.WriteFile(arg(0), []byte(arg(1)+"\n"), 0o644)
	case "show":
		return show()
	case "device":
		return showDevice(arg(0))
	case "fill":
		fill(1 << 16) // 64 GiB, and still there
	case "hold":
		mib, err := strconv.Atoi(arg(0))
		if err != nil {
			return err
		}
		held = append(held, fill(mib)...)
	case "pin":
		mib, err := strconv.Atoi(arg(0))
		if err != nil {
			return err
		}
		return pin(fill(mib))
	case "spin":
		spin(terminated)
	case "burn":
		return burn(arg(0), arg(1))
	case "pulse":
		return pulse(arg(0), terminated)
	case "huge":
		return huge(arg(0), arg(1), arg(2))
	case "wait":
		fmt.Println("waits")
		<-terminated
	case "stubborn":
		fmt.Println("stays")
		for range terminated {
			fmt.Println("no")
		}
	case "headless":
		return headless(terminated)
	case "die", "leave", "terminal", "resized":
		return alone(verb, args)
	default:
		if known, err := attack(verb, args, terminated); known {
			return err
		}
		return fmt.Errorf("%q: unknown verb", verb)
	}
	return nil
}

// fill takes memory and touches each page of it.
func fill(chunks int) (held [][]byte) {
	const chunk = 1 << 20
	for range chunks {
		block := make([]byte, chunk)
		for i := 0; i < chunk; i += os.Getpagesize() {
			block[i] = 1
		}
		held = append(held, block)
	}
	return held
}

// held is the memory of the verb hold.
var held [][]byte

// spin keeps one thread busy.
func spin(terminated <-chan os.Signal) {
	for len(terminated) == 0 {
	}
}

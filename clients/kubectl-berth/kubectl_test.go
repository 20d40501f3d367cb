package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/berthd/berth/clients/berth"
	"github.com/berthd/berth/clients/berthctl/machine"
	"github.com/berthd/berth/clients/internal/command"
)

// TestMain makes the test program a kubectl, too: kubectl-berth runs it.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && slices.Contains([]string{"get", "exec"}, os.Args[1]) {
		os.Exit(kubectl(os.Args[1:]))
	}
	goleak.VerifyTestMain(m)
}

// kubectl answers from a directory, which --kubeconfig names: pods-NAMESPACE.json has the pods of a DaemonSet, pod-NAME.json a pod,
// POD.sock is the socket of the berthd in a pod, POD.error what kubectl says in place of running a command there, POD.out what a command
// prints, and POD.hangs stands for a node that does not answer.
func kubectl(args []string) int {
	flags := map[string]string{}
	var names []string
	command := slices.Index(args, "--")
	if command < 0 {
		command = len(args)
	}
	for _, arg := range args[:command] {
		name, value, isFlag := strings.Cut(arg, "=")
		if !isFlag && !strings.HasPrefix(arg, "--") {
			names = append(names, arg)
			continue
		}
		flags[name] = value
	}
	dir := flags["--kubeconfig"]
	fail := func(text string) int {
		fmt.Fprintln(os.Stderr, text)
		return 1
	}
	switch names[0] + " " + names[1] {
	case "get pods":
		text, err := os.ReadFile(filepath.Join(dir, "pods-"+flags["--namespace"]+".json"))
		if err != nil {
			return fail(`Error from server (Forbidden): pods is forbidden: User "eve" cannot list resource "pods"`)
		}
		fmt.Println(string(text))
		return 0
	case "get pod":
		text, err := os.ReadFile(filepath.Join(dir, "pod-"+flags["--namespace"]+names[2]+".json"))
		if err != nil {
			return fail(fmt.Sprintf("Error from server (NotFound): pods %q not found", names[2]))
		}
		fmt.Println(string(text))
		return 0
	}
	pod, verb := names[1], args[command+1:]
	if _, err := os.Stat(filepath.Join(dir, pod+".hangs")); err == nil {
		_, _ = io.Copy(io.Discard, os.Stdin) // which ends with the program that waits
	}
	if text, err := os.ReadFile(filepath.Join(dir, pod+".error")); err == nil {
		return fail(string(text))
	}
	if text, err := os.ReadFile(filepath.Join(dir, pod+".out")); err == nil && verb[1] != "proxy" {
		fmt.Printf("%s of %v", text, verb)
		return 3
	}
	return proxy(filepath.Join(dir, pod+".sock"))
}

// proxy is what berthctl does in the pod.
func proxy(socket string) int {
	c := &command.Ctl{Env: command.Env{In: os.Stdin, Out: os.Stdout, Err: os.Stderr,
		Dial: func(context.Context, string) (*berth.Client, error) { panic("a proxy makes no call") }}, Address: socket}
	verb := machine.Proxy(c)
	verb.SetArgs([]string{})
	if err := verb.ExecuteContext(context.Background()); err != nil {
		return c.Fail(err)
	}
	return 0
}

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/berthd/berth/api/trust"
	"github.com/berthd/berth/clients/berthlet/agent"
	"github.com/berthd/berth/clients/berthlet/logs"
	"github.com/berthd/berth/clients/internal/table"
)

// poll is how often a log that is followed is read again.
const poll = 200 * time.Millisecond

// logging is the flags of logs.
type logging struct {
	state, root, namespace       string
	follow, previous, timestamps bool
	tail                         int
}

// logsCommand prints the output of a container.
func logsCommand(state *string) *cobra.Command {
	l := &logging{}
	cmd := &cobra.Command{
		Use: "logs POD [CONTAINER]", Short: "Print the output of a container", Args: cobra.RangeArgs(1, 2), DisableFlagsInUseLine: true,
		Long: `Print what a container has written. POD is a name, namespace/name or a uid of 'berthlet status'. CONTAINER can be left out if
the pod has only one. On a terminal, control characters are escaped as in Go.`,
		Example: "  berthlet logs web\n  berthlet logs default/web main -f --tail 20",
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := trust.CheckFlags(cmd.Flags()); err != nil {
				return err
			}
			l.state = *state
			return l.run(cmd.Context(), cmd.OutOrStdout(), args)
		},
	}
	f := cmd.Flags()
	f.StringVar(&l.root, "pod-logs-dir", "/var/log/pods", "where the output of containers goes")
	trust.Mark(f, trust.Directory, "pod-logs-dir")
	f.StringVarP(&l.namespace, "namespace", "n", "", "namespace of the pod, if POD is only its name")
	f.BoolVarP(&l.follow, "follow", "f", false, "continue until the container ends")
	f.BoolVarP(&l.previous, "previous", "p", false, "the output of the container before its last restart")
	f.BoolVar(&l.timestamps, "timestamps", false, "begin each line with its time")
	f.IntVar(&l.tail, "tail", -1, "begin with this many lines from the end; -1 is all")
	return cmd
}

func (l *logging) run(ctx context.Context, out io.Writer, args []string) error {
	pod, container, err := l.find(args)
	if err != nil {
		return err
	}
	path := container.LogPath
	if l.previous {
		if container.RestartCount == 0 {
			return fmt.Errorf("container %s of pod %s/%s was not restarted", container.Name, pod.Namespace, pod.Name)
		}
		path = filepath.Join(filepath.Dir(path), fmt.Sprintf("%d.log", container.RestartCount-1))
	}
	if container.LogPath == "" {
		return fmt.Errorf("container %s of pod %s/%s has not begun", container.Name, pod.Namespace, pod.Name)
	}
	root, err := filepath.Abs(l.root)
	if err != nil {
		return err
	}
	r, err := logs.Read(root, path)
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }() // it is only read
	if err := l.print(out, r); err != nil || !l.follow || l.previous {
		return err
	}
	ticker := time.NewTicker(poll)
	defer ticker.Stop()
	for l.tail = -1; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		// The end of the container is known now, so this reads all that it has written.
		_, now, err := l.find(args)
		if perr := l.print(out, r); perr != nil {
			return perr
		}
		if err != nil || now.ContainerID != container.ContainerID || now.State.Running == nil {
			return nil
		}
	}
}

// print prints the entries up to the end of the log.
func (l *logging) print(out io.Writer, r *logs.Reader) error {
	show := oneOf(out)
	var last []string
	line := ""
	for {
		e, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if l.timestamps && line == "" {
			line = e.Time + " "
		}
		if line += show(string(e.Text)); !e.Partial {
			line += "\n"
		}
		if l.tail < 0 {
			if _, err := io.WriteString(out, line); err != nil {
				return err
			}
			line = ""
			continue
		}
		if e.Partial {
			continue
		}
		if last = append(last, line); len(last) > l.tail {
			last = last[1:]
		}
		line = ""
	}
	_, err := io.WriteString(out, strings.Join(last, "")+line)
	return err
}

// oneOf returns a function that prepares a line for an output. For a terminal it escapes control
// characters.
func oneOf(out io.Writer) func(string) string {
	file, ok := out.(*os.File)
	if !ok {
		return func(s string) string { return s }
	}
	if !isTerminal(file) {
		return func(s string) string { return s }
	}
	return forTerminal
}

// forTerminal escapes all but tabs.
func forTerminal(s string) string {
	parts := strings.Split(s, "\t")
	for i := range parts {
		parts[i] = table.Printable(parts[i])
	}
	return strings.Join(parts, "\t")
}

// find finds a pod and its container in the status.
func (l *logging) find(args []string) (agent.PodStatus, agent.ContainerStatus, error) {
	none := agent.ContainerStatus{}
	s, _, err := readStatus(l.state)
	if err != nil {
		return agent.PodStatus{}, none, err
	}
	pod, err := findPod(s, args[0], l.namespace)
	if err != nil {
		return pod, none, err
	}
	all := slices.Concat(pod.InitContainerStatuses, pod.ContainerStatuses)
	var names []string
	for _, c := range all {
		if len(args) == 2 && c.Name == args[1] {
			return pod, c, nil
		}
		names = append(names, c.Name)
	}
	if len(args) == 1 && len(all) == 1 {
		return pod, all[0], nil
	}
	if len(args) == 1 {
		return pod, none, fmt.Errorf("CONTAINER is missing: pod %s/%s has %s", pod.Namespace, pod.Name, strings.Join(names, ", "))
	}
	return pod, none, fmt.Errorf("pod %s/%s has no container %s: it has %s", pod.Namespace, pod.Name, args[1], strings.Join(names, ", "))
}

// findPod finds a pod by uid, by namespace/name, or by a unique name.
func findPod(s agent.Status, what, namespace string) (agent.PodStatus, error) {
	var found []agent.PodStatus
	for _, p := range s.Pods {
		qualified := p.Namespace + "/" + p.Name
		if p.UID == what || qualified == what || p.Name == what && (namespace == "" || namespace == p.Namespace) {
			found = append(found, p)
		}
	}
	switch len(found) {
	case 0:
		return agent.PodStatus{}, fmt.Errorf("no pod is called %s: 'berthlet status' lists the pods", what)
	case 1:
		return found[0], nil
	}
	var names []string
	for _, p := range found {
		names = append(names, fmt.Sprintf("%s (%s/%s)", p.UID, p.Namespace, p.Name))
	}
	return agent.PodStatus{}, fmt.Errorf("%d pods are called %s: name one by its uid, %s", len(found), what, strings.Join(names, ", "))
}

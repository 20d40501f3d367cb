package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/berthd/berth/clients/berth"
	"github.com/berthd/berth/clients/internal/command"
)

// cluster is what kubectl reaches.
type cluster struct {
	// kubectl is the program. kubeconfig and context are its flags; empty for its defaults.
	kubectl, kubeconfig, context string
	// namespaces have berth's DaemonSets.
	namespaces []string
}

// args are those of kubectl, with the flags that say which cluster is meant.
func (k *cluster) args(args ...string) []string {
	if k.kubeconfig != "" {
		args = append(args, "--kubeconfig="+k.kubeconfig)
	}
	if k.context != "" {
		args = append(args, "--context="+k.context)
	}
	return args
}

// call runs kubectl and gives its output.
func (k *cluster) call(ctx context.Context, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, k.kubectl, k.args(args...)...)
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	if err == nil {
		return out, nil
	}
	var ended *exec.ExitError
	switch {
	case errors.Is(err, exec.ErrNotFound):
		return nil, fmt.Errorf("%s is not installed, or not in PATH: it is what reaches the cluster", k.kubectl)
	case ctx.Err() != nil:
		err = ctx.Err()
	case errors.As(err, &ended):
		err = said(ended.Stderr, err)
	}
	return nil, fmt.Errorf("kubectl %s: %w", args[0], err)
}

// said is what a program has printed about its error, without what it says in between.
func said(stderr []byte, otherwise error) error {
	for line := range strings.Lines(string(stderr)) {
		for _, prefix := range []string{"error: ", "Error from server ", "berthctl: "} {
			if strings.HasPrefix(line, prefix) {
				return errors.New(strings.TrimSpace(line))
			}
		}
	}
	if text := strings.TrimSpace(string(stderr)); text != "" {
		return errors.New(text)
	}
	return otherwise
}

// place is the pod of berth on a node.
type place struct {
	node, namespace, pod string
	// observes means that its berthd only reads what the node's kubelet decides.
	observes bool
	// away is why nothing can answer there; empty if it can.
	away string
}

// podList is what is read of kubectl's answer.
type podList struct {
	Items []struct {
		Metadata struct {
			Name, Namespace   string
			Labels            map[string]string
			DeletionTimestamp *time.Time
		}
		Spec   struct{ NodeName string }
		Status struct{ Phase string }
	}
}

// The label of the pods, and its values: berth that decides, and berth that observes.
const (
	nameLabel = "app.kubernetes.io/name"
	deciding  = "berth"
	observing = "berth-observe"
)

// places finds the nodes with berth, by their names. If a node has several pods, as during an update, it is the one that can answer.
func (k *cluster) places(ctx context.Context) ([]place, error) {
	var (
		all   sync.WaitGroup
		lists = make([]podList, len(k.namespaces))
		errs  = make([]error, len(k.namespaces))
	)
	for i, namespace := range k.namespaces {
		all.Go(func() {
			out, err := k.call(ctx, "get", "pods", "--namespace="+namespace,
				"--selector="+nameLabel+" in ("+deciding+","+observing+")", "--output=json")
			if err == nil {
				err = json.Unmarshal(out, &lists[i])
			}
			errs[i] = err
		})
	}
	all.Wait()
	found := map[string]place{}
	for _, list := range lists {
		for _, p := range list.Items {
			at := place{node: p.Spec.NodeName, namespace: p.Metadata.Namespace, pod: p.Metadata.Name,
				observes: p.Metadata.Labels[nameLabel] == observing}
			switch {
			case at.node == "":
				continue // it waits for one
			case p.Metadata.DeletionTimestamp != nil:
				at.away = "is being deleted"
			case p.Status.Phase != "Running":
				at.away = "is " + cmp.Or(p.Status.Phase, "of an unknown phase")
			}
			if at.away != "" {
				at.away = fmt.Sprintf("the pod %s/%s %s", at.namespace, at.pod, at.away)
			}
			if old, twice := found[at.node]; !twice || old.away != "" && at.away == "" {
				found[at.node] = at
			}
		}
	}
	if len(found) > 0 {
		out := make([]place, 0, len(found))
		for _, at := range found {
			out = append(out, at)
		}
		slices.SortFunc(out, func(a, b place) int { return strings.Compare(a.node, b.node) })
		return out, nil
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return nil, fmt.Errorf("no node has a pod of berth in the namespaces %s: --berth-namespace names another one",
		strings.Join(k.namespaces, ", "))
}

// of finds the place of a node. Without a name it is the only one.
func of(all []place, node string) (place, error) {
	names := make([]string, len(all))
	for i, p := range all {
		if p.node == node || node == "" && len(all) == 1 {
			return p, nil
		}
		names[i] = p.node
	}
	if node == "" {
		return place{}, command.Usagef("", "several nodes have berth: name one of %s", command.Joined(names))
	}
	return place{}, fmt.Errorf("node %s has no pod of berth in the namespaces that were searched; these nodes have one: %s", node,
		command.Joined(names))
}

// nodeOf finds the node of a pod, and the pod's full name. Without a namespace it is that of kubectl's context.
func (k *cluster) nodeOf(ctx context.Context, namespace, name string) (node, pod string, err error) {
	if before, after, qualified := strings.Cut(name, "/"); qualified {
		if namespace != "" && namespace != before {
			return "", "", command.Usagef("", "--namespace %s contradicts %s", namespace, name)
		}
		namespace, name = before, after
	}
	args := []string{"get", "pod", name, "--output=json"}
	if namespace != "" {
		args = append(args, "--namespace="+namespace)
	}
	if strings.HasPrefix(name, "-") { // kubectl would take it for a flag
		return "", "", command.Usagef("", "%s: expected the name of a pod", name)
	}
	out, err := k.call(ctx, args...)
	if err != nil {
		return "", "", err
	}
	var p struct {
		Metadata struct{ Name, Namespace string }
		Spec     struct{ NodeName string }
	}
	if err := json.Unmarshal(out, &p); err != nil {
		return "", "", fmt.Errorf("read kubectl's answer about pod %s: %w", name, err)
	}
	pod = p.Metadata.Namespace + "/" + p.Metadata.Name
	if p.Spec.NodeName == "" {
		return "", "", fmt.Errorf("pod %s is on no node: the scheduler has found none, and 'kubectl describe pod' says why", pod)
	}
	return p.Spec.NodeName, pod, nil
}

// connect calls the berthd of a place, through a program that runs in the pod as long as the connection is used.
func (k *cluster) connect(ctx context.Context, p place) (*berth.Client, error) {
	if p.away != "" {
		return nil, errors.New(p.away)
	}
	return berth.Dial(ctx, "", berth.Options{UserAgent: program, Attempts: 1, Dialer: func(ctx context.Context) (net.Conn, error) {
		return open(ctx, k.kubectl, append(k.args("exec", "--stdin", "--namespace="+p.namespace, p.pod, "--container=berthd"),
			"--", "berthctl", "proxy")...)
	}})
}

// remote runs a command of berthctl in the pod of a place, with the streams of the environment.
func (k *cluster) remote(ctx context.Context, e command.Env, p place, args ...string) error {
	if p.away != "" {
		return errors.New(p.away)
	}
	var stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, k.kubectl, append(k.args("exec", "--namespace="+p.namespace, p.pod, "--container=berthd"),
		append([]string{"--", "berthctl"}, args...)...)...)
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = e.Out, &stderr, time.Second
	err := cmd.Run()
	var ended *exec.ExitError
	if errors.As(err, &ended) && ended.ExitCode() == command.ExitRejected {
		return command.Verdict(command.ExitRejected) // what was found is printed
	}
	if err != nil {
		return fmt.Errorf("node %s: %w", p.node, said(stderr.Bytes(), err))
	}
	return nil
}

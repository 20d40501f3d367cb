package command

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	"google.golang.org/grpc"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/input"
	"github.com/berthd/berth/api/kubelet"
	"github.com/berthd/berth/api/podspec"
	"github.com/berthd/berth/clients/berth"
)

// KubeletNode is a node whose kubelet decides.
type KubeletNode struct {
	// Root is a directory with its files below it, or an archive of one.
	Root string
	// Config is the configuration that the kubelet has told; nil reads the kubelet's files.
	Config []byte
	// Pods lists its pods; nil if they are not known. dir is the kubelet's directory. Given means that they do not change.
	Pods  func(ctx context.Context, dir string) ([]podspec.NodePod, error)
	Given bool
}

// Observed is a node whose kubelet decides, as it was read.
type Observed struct {
	Conn grpc.ClientConnInterface
	// Follow keeps the answers up to date until ctx ends. changed is told why they are not, and nil when they are again.
	Follow func(ctx context.Context, changed func(error)) error
	// Missing are the parts that could not be read.
	Missing []string
	// Decided are the pods that the kubelet has admitted or rejected, in its order.
	Decided []DecidedPod
}

// DecidedPod is a pod that a kubelet has decided about.
type DecidedPod struct {
	*typesv1.Pod
	// Controller is the uid of what replaces the pod when it has ended; empty if nothing does.
	Controller string
	// Rejection is the kubelet's reason; empty for an admitted pod.
	Rejection string
	// Undated means that its place in the order is not known.
	Undated bool
}

// connect connects to berthd, or reads the node of --kubelet.
func (c *Ctl) connect(ctx context.Context) (*Session, error) {
	if c.Kubelet == "" {
		switch {
		case c.NodePods != "":
			return nil, Usagef("", "--pods FILE has the pods of a kubelet's node: add --kubelet")
		case c.NodeConfig != "":
			return nil, Usagef("", "--configz FILE has the configuration of a node's kubelet: add --kubelet")
		}
		client, err := c.Dial(ctx, c.Address)
		return &Session{Ctl: c, Client: client}, err
	}
	if c.Address != "" {
		return nil, errBoth()
	}
	node, err := c.observe(ctx)
	if err != nil {
		return nil, err
	}
	return &Session{Ctl: c, Client: node.client(), following: node.Follow}, nil
}

func (n *Observed) client() *berth.Client { return berth.Over(n.Conn, berth.Options{Attempts: 1}) }

// observe reads the node of --kubelet.
func (c *Ctl) observe(ctx context.Context) (*Observed, error) {
	from, err := c.kubeletNode(ctx)
	if err != nil {
		return nil, err
	}
	node, err := c.Observe(ctx, from)
	if err != nil {
		return nil, fmt.Errorf("--kubelet: %w", err)
	}
	for _, text := range node.Missing {
		c.Warn("not read: %s", text)
	}
	return node, nil
}

// OfNode gives the node of --kubelet to what needs one, for as long as the timeout allows. Without the flag, the error has the hint.
func (c *Ctl) OfNode(ctx context.Context, hint string, f func(ctx context.Context, n *Observed, s *Session) error) error {
	if err := c.forNode(hint); err != nil {
		return err
	}
	ctx, cancel := c.limited(ctx)
	defer cancel()
	node, err := c.observe(ctx)
	if err != nil {
		return err
	}
	return f(ctx, node, &Session{Ctl: c, Client: node.client()})
}

// forNode refuses a command line that names no kubelet's node.
func (c *Ctl) forNode(hint string) error {
	switch {
	case c.Kubelet == "":
		return Usagef("", "it is for a node whose kubelet decides: add --kubelet. %s", hint)
	case c.Address != "":
		return errBoth()
	}
	return nil
}

// limited is a context that ends after the timeout.
func (c *Ctl) limited(ctx context.Context) (context.Context, context.CancelFunc) {
	if c.Timeout > 0 {
		return context.WithTimeout(ctx, c.Timeout)
	}
	return ctx, func() {}
}

func errBoth() error { return Usagef("", "--endpoint and --kubelet: expected one of them") }

// kubeletNode is the node of --kubelet, with the pods of --pods, or of the kubelet if it runs and has the Pods API.
func (c *Ctl) kubeletNode(ctx context.Context) (n KubeletNode, err error) {
	n.Root, n.Given = c.Kubelet, c.NodePods != ""
	if c.NodeConfig != "" {
		text, err := input.FileOrStream(ctx, c.NodeConfig, c.In, input.Most)
		if err != nil {
			return n, err
		}
		if n.Config, err = kubelet.ParseConfigz(bytes.NewReader(text)); err != nil {
			return n, fmt.Errorf("--configz %s: %w", podspec.FileName(c.NodeConfig), err)
		}
	}
	if !n.Given {
		n.Pods = kubelet.NodePods
		return n, nil
	}
	text, err := input.FileOrStream(ctx, c.NodePods, c.In, input.Most)
	if err != nil {
		return n, err
	}
	pods, err := podspec.DecodeNode(bytes.NewReader(text), podspec.Options{})
	if err != nil {
		return n, fmt.Errorf("--pods %s: %w", podspec.FileName(c.NodePods), err)
	}
	n.Pods = func(context.Context, string) ([]podspec.NodePod, error) { return pods, nil }
	return n, ofOneNode(c.NodePods, pods)
}

// ofOneNode refuses the pods of several nodes: all of them would hold CPUs of the one that is read.
func ofOneNode(file string, pods []podspec.NodePod) error {
	var nodes []string
	for _, p := range pods {
		if p.Node != "" && !slices.Contains(nodes, p.Node) {
			nodes = append(nodes, p.Node)
		}
	}
	if len(nodes) < 2 {
		return nil
	}
	slices.Sort(nodes)
	return fmt.Errorf("--pods %s: the pods are on several nodes (%s), expected those of the node that is read: "+
		"kubectl get pods -A -o json --field-selector spec.nodeName=NODE", podspec.FileName(file), Some(nodes))
}

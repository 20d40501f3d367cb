package command

import (
	"bytes"
	"context"
	"fmt"
	"path/filepath"

	"google.golang.org/grpc"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/input"
	"github.com/berthd/berth/api/kubelet"
	"github.com/berthd/berth/api/podspec"
	"github.com/berthd/berth/clients/berth"
	"github.com/berthd/berth/managers/errdefs"
)

// Observed is a node whose kubelet decides, as it was read.
type Observed struct {
	Conn grpc.ClientConnInterface
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
func (c *Ctl) connect(ctx context.Context) (*berth.Client, error) {
	if c.Kubelet == "" {
		if c.NodePods != "" {
			return nil, Usagef("", "--pods FILE has the pods of a kubelet's node: add --kubelet")
		}
		return c.Dial(ctx, c.Address)
	}
	if c.Address != "" {
		return nil, errBoth()
	}
	node, err := c.observe(ctx)
	if err != nil {
		return nil, err
	}
	return node.client(), nil
}

func (n *Observed) client() *berth.Client { return berth.Over(n.Conn, berth.Options{Attempts: 1}) }

// observe reads the node of --kubelet.
func (c *Ctl) observe(ctx context.Context) (*Observed, error) {
	pods, err := c.nodePods(ctx)
	if err != nil {
		return nil, err
	}
	node, err := c.Observe(ctx, c.Kubelet, pods)
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

// nodePods returns the pods of the node: those of --pods, or of the kubelet if it runs and has the Pods API; nil if they are not known.
func (c *Ctl) nodePods(ctx context.Context) (pods []podspec.NodePod, err error) {
	if c.NodePods != "" {
		text, err := input.FileOrStream(ctx, c.NodePods, c.In, input.Most)
		if err != nil {
			return nil, err
		}
		if pods, err = podspec.DecodeNode(bytes.NewReader(text), podspec.Options{}); err != nil {
			return nil, fmt.Errorf("--pods %s: %w", podspec.FileName(c.NodePods), err)
		}
		return pods, nil
	}
	pods, err = kubelet.NodePods(ctx, filepath.Join(c.Kubelet, kubelet.Dir))
	if err != nil && errdefs.ClassOf(err) != errdefs.Unsupported {
		c.Warn("not read: %v", err)
	}
	return pods, nil
}

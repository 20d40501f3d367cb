package command

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc"

	"github.com/berthd/berth/api/input"
	"github.com/berthd/berth/clients/berth"
	"github.com/berthd/berth/clients/internal/kubelet"
	"github.com/berthd/berth/clients/podspec"
)

// Observed is a node whose kubelet decides, as it was read.
type Observed struct {
	Conn grpc.ClientConnInterface
	// Missing are the parts that could not be read.
	Missing []string
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
	return berth.Over(node.Conn, berth.Options{Attempts: 1}), nil
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
	path := filepath.Join(c.Kubelet, kubelet.PodsSocket)
	if info, err := os.Lstat(path); err != nil || info.Mode().Type() != fs.ModeSocket {
		return nil, nil
	}
	conn, err := kubelet.Dial(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(ctx, podsTime)
	defer cancel()
	all, err := kubelet.Pods(ctx, conn)
	if err != nil {
		c.Warn("not read: pods of the kubelet at %s: %v", path, err)
		return nil, nil
	}
	pods = []podspec.NodePod{}
	for i := range all {
		p, err := podspec.FromNode(&all[i])
		if err != nil {
			return nil, err
		}
		pods = append(pods, p)
	}
	return pods, nil
}

// podsTime is the time for the list of all pods.
const podsTime = 5 * time.Second

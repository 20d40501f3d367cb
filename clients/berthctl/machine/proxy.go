package machine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/spf13/cobra"

	"github.com/berthd/berth/clients/berth"
	"github.com/berthd/berth/clients/internal/command"
)

const proxyLong = `Connect standard input and output with berthd's socket, until one side ends. A program elsewhere calls berthd through it, as
kubectl-berth does with kubectl exec. It calls with the rights of the user who runs the proxy.`

// Proxy makes the verb that another program runs to reach berthd.
func Proxy(c *command.Ctl) *cobra.Command {
	return c.Local(command.About{
		Use: "proxy", Short: "Connect standard input and output with berthd",
		Long: proxyLong, Example: `  ssh HOST berthctl proxy`,
	}, func(ctx context.Context, _ []string) error {
		if c.Kubelet != "" {
			return command.Usagef("proxy", "--kubelet: a proxy leads to a berthd, and a kubelet's node has none")
		}
		path, err := berth.SocketPath(c.Address)
		if err != nil {
			return err
		}
		conn, err := new(net.Dialer).DialContext(ctx, "unix", path)
		if err != nil {
			return fmt.Errorf("connect to berthd: %w", err)
		}
		return relay(ctx, conn.(*net.UnixConn), c.In, c.Out)
	})
}

// relay copies both ways until berthd ends the connection, as it does after the end of the input.
func relay(ctx context.Context, conn *net.UnixConn, in io.Reader, out io.Writer) error {
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	defer func() { _ = conn.Close() }()
	go func() {
		_, _ = io.Copy(conn, in) // what is wrong with the connection is seen below
		_ = conn.CloseWrite()
	}()
	if _, err := io.Copy(out, conn); err != nil && !errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("copy berthd's answers: %w", err)
	}
	return nil
}

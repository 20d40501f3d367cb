package health

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"

	"github.com/spf13/cobra"

	"github.com/berthd/berth/api/probe"
	"github.com/berthd/berth/api/trust"
	"github.com/berthd/berth/managers/errdefs"
)

// maxAnswer bounds the text of an answer.
const maxAnswer = 4 << 10

// paths are what the probes call.
var paths = map[string]string{probe.Live: "/healthz", probe.Ready: "/readyz"}

// Probe calls /healthz (live) or /readyz (ready) at a program's socket. The error has the program's reason.
func Probe(ctx context.Context, socket, kind string) error {
	return probe.Run(ctx, kind, func(ctx context.Context) error { return call(ctx, socket, paths[kind]) })
}

// call calls a path at a socket.
func call(ctx context.Context, socket, path string) error {
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://localhost"+path, nil)
	if err != nil {
		return err
	}
	answer, err := transport.RoundTrip(req)
	if err != nil {
		return fmt.Errorf("--health-socket %s: %w", socket, err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, maxAnswer))
	if err == nil && answer.StatusCode != http.StatusOK {
		err = errdefs.Unavailablef("%s", strings.TrimSpace(string(text)))
	}
	return err
}

// probeCommand is the command with which a kubelet probes a program: at a socket that other users can neither take nor fill.
func (a *Addresses) probeCommand(program string) *cobra.Command {
	return &cobra.Command{
		Use: "probe {live|ready}", Short: "Report whether the running " + program + " answers, or works", Args: cobra.MaximumNArgs(1),
		Long: "Call the running " + program +
			" at its --health-socket. The exit code is 1 if it does not answer (live), or does not work (ready); the message says why.",
		Example: "  " + program + " probe ready\n  " + program + " probe live --health-socket " + defaultSocket(program),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := trust.CheckFlags(cmd.Flags()); err != nil {
				return err
			}
			return Probe(cmd.Context(), cmp.Or(a.Socket, defaultSocket(program)), strings.Join(args, ""))
		},
	}
}

package health

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/berthd/berth/api/trust"
	"github.com/berthd/berth/managers/errdefs"
)

const (
	// probeTimeout bounds a probe. A kubelet waits longer for it (timeoutSeconds).
	probeTimeout = 8 * time.Second
	// probeAgain is the pause between two calls of one probe.
	probeAgain = 250 * time.Millisecond
	// maxAnswer bounds the text of an answer.
	maxAnswer = 4 << 10
)

// kinds are what a probe can call.
var kinds = map[string]string{"live": "/healthz", "ready": "/readyz"}

// Probe calls /healthz (live) or /readyz (ready) at a program's socket. The error has the program's reason. A program that is not ready
// yet, as at its start, is waited for until the probe must end.
func Probe(ctx context.Context, socket, kind string) error {
	path, ok := kinds[kind]
	if !ok {
		return errdefs.Invalidf("%q: expected live or ready", kind)
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	for {
		err := call(ctx, socket, path)
		if err == nil || kind == "live" {
			return err
		}
		select {
		case <-time.After(probeAgain):
		case <-ctx.Done():
			return err
		}
	}
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
		Long:    "Call the running " + program + " at its --health-socket. The exit code is 1 if it does not answer (live), or does not work (ready); the message says why.",
		Example: "  " + program + " probe ready\n  " + program + " probe live --health-socket " + defaultSocket(program),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := trust.CheckFlags(cmd.Flags()); err != nil {
				return err
			}
			return Probe(cmd.Context(), cmp.Or(a.Socket, defaultSocket(program)), strings.Join(args, ""))
		},
	}
}
